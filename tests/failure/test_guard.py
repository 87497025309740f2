import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from lightning_sm._failure.connection import Address, ProcessInfo, loss_reason
from lightning_sm._failure.monitor import FailureMonitor
from tests.failure.ranks import REASON, until

# A process with a guard; its end is filled in.
_CODE = """
import os, signal, sys, time
from lightning_sm._failure.connection import Phase
from lightning_sm._failure.guard import Guard
guard = Guard(sys.argv[1], "algo-2")
guard.set_state(Phase.TRAINING, 1)
{end}
"""


def run(path, end):
    """Run a process with a guard, and wait until the guard has exited too."""
    subprocess.run([sys.executable, "-c", _CODE.format(end=end), str(path)], check=False, timeout=30)
    until(lambda: not _is_guarded(path))


def _is_guarded(path):
    return bool(_processes(str(path).encode()))


def _guards(path):
    guards = _processes(b"lightning_sm._failure.guard import main")
    return [pid for pid in _processes(str(path).encode()) if pid in guards]


def _processes(words):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if words in file.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os.abort()", "os._exit(1)"])
def test_a_process_that_is_lost(tmp_path, end):
    run(tmp_path / "failure", end)
    text = (tmp_path / "failure").read_text()
    assert text.startswith("Rank 1 on algo-2 was killed: it exited without an exception (SIGKILL, often out of memory")


@pytest.mark.parametrize(
    "end",
    [
        "guard.stop()",
        "guard.stop(); os._exit(1)",
        "guard.set_state(Phase.JOINING, 1); os._exit(0)",
        "guard.set_state(Phase.IDLE, 1); os._exit(0)",
    ],
)
def test_a_process_that_exits_regularly(tmp_path, end):
    run(tmp_path / "failure", end)
    assert not (tmp_path / "failure").exists()


def test_the_exit_of_the_program_prints_nothing(tmp_path):
    # On Python 3.8 a warning about a file that nobody closed ends the interpreter by SIGSEGV when it is late enough.
    code = _CODE.format(end="guard.stop(); guard.stop(); sys.keep = guard")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "failure")],
        check=False,
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_modules_of_the_user_do_not_reach_the_guard(tmp_path):
    for name in ("json", "selectors", "lightning_sm", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    start = "import os, lightning_sm._failure.guard; os.environ['PYTHONPATH'] = '.'; "
    code = f"{start}os.chdir({str(tmp_path)!r})" + _CODE.format(end="os.kill(os.getpid(), signal.SIGKILL)")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "failure")], check=False, timeout=30)
    until((tmp_path / "failure").exists)


def test_an_existing_reason_is_kept(tmp_path):
    (tmp_path / "failure").write_text("KeyError: 'x'")
    run(tmp_path / "failure", "os.kill(os.getpid(), signal.SIGKILL)")
    assert (tmp_path / "failure").read_text() == "KeyError: 'x'"


def test_the_child_of_a_fork_does_not_delay_the_guard(tmp_path):
    end = "child = os.fork()\nif child == 0: time.sleep(8); os._exit(0)\nos.kill(os.getpid(), signal.SIGKILL)"
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", _CODE.format(end=end), str(tmp_path / "failure")],
        check=False,
        stdout=subprocess.DEVNULL,
        timeout=30,
    )
    until((tmp_path / "failure").exists)
    assert time.monotonic() - started < 8


class Pair:
    """Rank 0 in a process with a guard, and the monitor of rank 1 in this one."""

    def __init__(self, tmp_path, then):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.told, self.path, address = [], tmp_path / "failure", Address("127.0.0.1", (port,), "token", 2)
        code = f"{_MAIN.format(port=port)}\n{then}"
        self.main = subprocess.Popen([sys.executable, "-c", code, str(self.path)], stdin=subprocess.PIPE)
        self.monitor = FailureMonitor(
            ProcessInfo(1, 0, "algo-2", 1), 2, address, self.told.append, print, exit_process=print
        )
        self.monitor.start()
        until(lambda: self.monitor._connection is not None and self.monitor._main_phase == "training")

    def end(self):
        self.main.communicate(b"\n")
        until(lambda: self.told)
        self.monitor.stop()
        until(lambda: not _is_guarded(self.path))


_MAIN = """
import os, signal, sys
from lightning_sm._failure.connection import ProcessInfo
from lightning_sm._failure.guard import Guard
from lightning_sm._failure.monitor import FailureMonitor
from tests.failure.ranks import REASON, until
from lightning_sm._failure.connection import Address
address = Address("127.0.0.1", ({port},), "token", 2)
monitor = FailureMonitor(
    ProcessInfo(0, 0, "algo-1", 0), 2, address, print, print, start_guard=lambda: Guard(sys.argv[1], "algo-1", address)
)
monitor.start()
sys.stdin.readline()
"""


def test_the_guard_of_the_main_process_reports_its_loss_to_other_ranks(tmp_path):
    pair = Pair(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    pair.end()
    assert pair.told == [loss_reason(ProcessInfo(0, 0, "algo-1", 0))]
    assert (tmp_path / "failure").read_text().startswith("Rank 0 on algo-1 was killed")


def test_the_loss_of_the_guard_of_the_main_process_ends_nothing(tmp_path):
    pair = Pair(tmp_path, "from tests.failure.ranks import REASON; monitor.publish(REASON); monitor.stop()")
    before = pair.monitor._connection
    for pid in _guards(tmp_path / "failure"):
        os.kill(pid, signal.SIGKILL)
    until(lambda: pair.monitor._connection is not before and pair.monitor._main_phase == "training")
    assert pair.told == []
    # Failures are shared as before.
    pair.end()
    assert pair.told == [REASON]
