"""However a rehearsal ends, the reason is reported and no process, mount, interface or file is left."""

import contextlib
import glob
import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Iterator, List, Set

import pytest

from lightning_sm.rehearse import Isolation
from lightning_sm.rehearse._host_process import kill_marked
from tests.helpers.rehearsal import needs, no_netem, processes_with

pytestmark = [pytest.mark.rehearsal, pytest.mark.processes]

ISOLATIONS = [pytest.param(name, marks=needs(name)) for name in ("loopback", "userns", "netns")]


def left_behind() -> Set[str]:
    """What a rehearsal could leave on this machine."""
    folders = glob.glob(os.path.join(tempfile.gettempdir(), "lightning-sm-rehearsal-*"))
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "rehearsal" in line]
    return {*folders, *mounts, *os.listdir("/sys/class/net")}


@pytest.fixture(autouse=True)
def _nothing_left():
    before = left_behind()
    yield
    deadline = time.monotonic() + 10
    while left_behind() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind() - before == set()


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_failing_host_ends_the_others(rehearse, isolation: str) -> None:
    done = rehearse("--isolation", isolation, "--hosts", 2, "--abort-after", "1s", "fail.py")
    assert done.exit_code == 1
    assert done.summary["status"] == "Failed"
    assert done.summary["failure_reason"].startswith("ExecuteUserScriptError:\nExitCode 1\n")
    assert "no such column" in done.summary["failure_reason"]
    first, second = done.summary["attempts"][0]["hosts"]
    assert (first["exit_code"], first["ended_because"]) == (None, "another host failed")
    assert (second["exit_code"], second["ended_because"]) == (1, None)


@needs("loopback", torch=True)
def test_a_rank_that_dies_before_the_rendezvous_ends_the_job(rehearse, source: Path) -> None:
    source.joinpath("early.py").write_text("import os\nassert os.environ['SM_CURRENT_HOST'] != '127.0.0.2'\n")
    source.joinpath("late.py").write_text(
        "import os, runpy\n"
        "runpy.run_path('early.py')\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
    )
    done = rehearse(
        "--isolation", "loopback", "--hosts", 2, "--abort-after", "2s", "--distribution", "torch_distributed", "late.py"
    )
    assert done.exit_code == 1
    assert "AssertionError" in done.summary["failure_reason"]


@needs("netns", mpi=True)
def test_a_failing_rank_under_mpirun_ends_the_waiting_host(rehearse, source: Path) -> None:
    # By host name: under mpi every rank's SM_CURRENT_HOST is the master's.
    source.joinpath("fail.py").write_text(
        "import socket, time\nassert socket.gethostname() != 'algo-2', 'no such column'\ntime.sleep(600)\n"
    )
    done = rehearse("--hosts", 2, "--distribution", "mpi", "--abort-after", "1s", "fail.py")
    assert done.exit_code == 1
    assert "no such column" in done.summary["failure_reason"]
    first, second = done.summary["attempts"][0]["hosts"]
    assert first["exit_code"] == 1
    # The toolkit's worker waits for a status file that never comes.
    assert second["ended_because"] == "another host failed"


@pytest.mark.parametrize("isolation", ISOLATIONS[1:])
def test_a_host_that_cannot_be_set_up(command: List[str], tmp_path: Path, isolation: str) -> None:
    stub = tmp_path / "bin" / "chmod"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\necho no such luck\nexit 1\n")
    stub.chmod(0o755)
    done = subprocess.run(
        [*command, "--isolation", isolation, "plain.py"],
        capture_output=True,
        env={**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"Host algo-1 was not started: `chmod" in done.stderr
    assert b"no such luck" in done.stderr


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_timeout(rehearse, isolation: str) -> None:
    mark = uuid.uuid4().hex
    done = rehearse("--isolation", isolation, "--hosts", 2, "--timeout", "12s", "sleep.py", "--mark", mark)
    assert done.exit_code == 124
    assert done.summary["failure_reason"].startswith("Still running after 12 s (--timeout): ")
    assert "asleep" in done.log
    assert processes_with(mark) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda each: each.name)
def test_a_signal_to_the_command(command: List[str], isolation: str, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    with _started([*command, "--isolation", isolation, "--hosts", "2", "sleep.py", "--mark", mark]) as process:
        process.send_signal(number)
        assert process.wait(timeout=30) == (-9 if number == signal.SIGKILL else 130)
    _gone(mark)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_stage_that_is_killed(command: List[str], isolation: str) -> None:
    mark = uuid.uuid4().hex
    with _started([*command, "--isolation", isolation, "sleep.py", "--mark", mark]) as process:
        stage = subprocess.check_output(["pgrep", "-P", str(process.pid)]).decode().split()
        os.kill(int(stage[0]), signal.SIGKILL)
        assert process.wait(timeout=30) == 2
    _gone(mark)


def test_without_proc_only_what_the_supervisor_started_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    script = "sleep 60 & echo started; wait $!; exit 3"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"started\n"
        kill_marked("/nowhere")
        assert supervisor.poll() is None
        kill_marked("/nowhere", below=supervisor.pid)
        assert supervisor.wait(10) == 3


@needs("netns")
def test_a_name_that_resolves_late_only_delays(rehearse) -> None:
    done = rehearse("--hosts", 2, "--names-after", "3s", "plain.py")
    assert done.exit_code == 0
    assert min(host["seconds"] for host in done.summary["attempts"][0]["hosts"]) > 3


@needs("netns")
def test_a_name_that_never_resolves_ends_with_the_timeout(rehearse) -> None:
    done = rehearse("--hosts", 2, "--names-after", "1h", "--timeout", "12s", "plain.py")
    assert done.exit_code == 124
    assert "arguments" not in done.log


@needs("netns")
def test_spot_interruption_restarts_with_the_checkpoints(rehearse, tmp_path: Path) -> None:
    bucket = tmp_path / "checkpoints"
    # With a shaped network, where the kernel has netem: it is set up anew as well.
    latency = () if no_netem(Isolation.NETNS) else ("--latency", "1ms")
    options = ("--hosts", 2, "--spot-interrupt-after", "20s", "--checkpoint-dir", bucket, *latency)
    mark = uuid.uuid4().hex
    with _networks_kept(mark):
        done = rehearse(*options, "count.py", "--mark", mark)
    assert done.exit_code == 0, done.log
    assert [attempt["ended_by"] for attempt in done.summary["attempts"]] == ["interruption", "exit"]
    starts = [int(line.rsplit(" ", 1)[1]) for line in done.log.splitlines() if "starts at" in line]
    assert starts[:2] == [0, 0]
    assert starts[2] == starts[3]
    assert 0 < starts[2] < 100
    assert (bucket / "count").read_text() == "100"


@contextlib.contextmanager
def _networks_kept(mark: str) -> Iterator[None]:
    """Keep the network namespaces of the first processes with this mark, which a busy kernel removes late."""
    kept: List[int] = []
    over = threading.Event()

    def keep() -> None:
        while not kept and not over.wait(0.1):
            listed = subprocess.run(["pgrep", "-af", mark], stdout=subprocess.PIPE, check=False).stdout.decode()
            for process, line in (line.split(" ", 1) for line in listed.splitlines()):
                if "lightning_sm" not in line:
                    with contextlib.suppress(OSError):
                        kept.append(os.open(f"/proc/{process}/ns/net", os.O_RDONLY))

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        assert kept
        for file in kept:
            os.close(file)


def _gone(mark: str) -> None:
    deadline = time.monotonic() + 15
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_with(mark) == []


class _started:
    """A rehearsal that is under way: its program has said so."""

    def __init__(self, command: List[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A test run in a shell's background ignores Ctrl-C, and what it starts would too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def __enter__(self) -> "subprocess.Popen[bytes]":
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if b"asleep" in line:
                return self._process
        raise AssertionError(f"ended with {self._process.wait()} before the program started")

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
