import os
import subprocess
import sys
import time

import pytest

# A process with a guard that ends in some way.
_CODE = """
import os, signal, sys, time
from lightning_sm._failure._guard import Guard
guard = Guard(sys.argv[1], 1, "algo-2")
{end}
"""


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def run(path, end):
    """Run a process with a guard, and wait until that is gone too."""
    subprocess.run([sys.executable, "-c", _CODE.format(end=end), str(path)], check=False, timeout=30)
    until(lambda: not _is_guarded(path))


def _is_guarded(path):
    words = str(path).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if words in file.read():
                    return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os.abort()", "os._exit(1)"])
def test_a_process_that_ends_without_a_word(tmp_path, end):
    run(tmp_path / "failure", end)
    text = (tmp_path / "failure").read_text()
    assert text.startswith("Rank 1 on algo-2 was killed: it ended without an exception (SIGKILL, often out of memory")


@pytest.mark.parametrize(
    "end", ["guard.dismiss()", "guard.dismiss(); os._exit(1)", "guard.set_training(False); os._exit(0)"]
)
def test_a_process_that_ends_otherwise(tmp_path, end):
    run(tmp_path / "failure", end)
    assert not (tmp_path / "failure").exists()


def test_the_end_of_the_program_is_a_quiet_one(tmp_path):
    # On Python 3.8 a warning about a file that nobody closed ends the interpreter by SIGSEGV when it is late enough.
    code = _CODE.format(end="guard.dismiss(); guard.dismiss(); sys.keep = guard")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path / "failure")],
        check=False,
        capture_output=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_reason_that_is_there_stays(tmp_path):
    (tmp_path / "failure").write_text("KeyError: 'x'")
    run(tmp_path / "failure", "os.kill(os.getpid(), signal.SIGKILL)")
    assert (tmp_path / "failure").read_text() == "KeyError: 'x'"


def test_a_forks_child_keeps_nobody_waiting(tmp_path):
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
