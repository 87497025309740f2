"""Real processes: the toolkits and torchrun on hosts that this machine makes. With mpirun: ``tests/toolkits``.

However a rehearsal ends, the reason is reported and no process, mount, interface or file is left.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from lightning_sm.rehearse import RehearsalOptions, create_request
from lightning_sm.rehearse import rehearse as run_request
from lightning_sm.rehearse._host import kill_marked
from tests.helpers.processes import until
from tests.helpers.rehearsal import needs, processes_with

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a rehearsal could leave on this machine is gone."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))

    def left() -> List[str]:
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]
        interfaces = [name for name in os.listdir("/sys/class/net") if name.startswith(("palgo", "bridge0"))]
        return [*map(str, folder.glob("lightning-sm-rehearsal-*")), *mounts, *interfaces]

    yield
    deadline = time.monotonic() + 10
    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left() == []


@needs("userns", torch=True)
def test_hyperpods_agent_takes_the_place_of_torchrun(rehearse) -> None:
    """By the agent itself where it is installed (it needs a torch below 2.12), else by its stand-in."""
    is_installed = importlib.util.find_spec("hyperpod_elastic_agent") is not None
    own = () if is_installed else ("--env", f"PATH={Path(__file__).parents[1] / 'standins' / 'hyperpod'}")
    done = rehearse(
        "--isolation", "userns", "--launcher", "hyperpodrun", "--distribution", "torch_distributed", *own,
        "--hosts", 2, "--processes", 2, "ranks.py", "--lr", "0.1",
    )  # fmt: skip
    assert sorted((host, each["global_rank"], each["world_size"], each["sum"]) for host, each in done.topologies) == [
        ("algo-1", 0, 4, 10.0), ("algo-1", 1, 4, 10.0), ("algo-2", 2, 4, 10.0), ("algo-2", 3, 4, 10.0),
    ]  # fmt: skip
    assert any("stand-in of HyperPod's operator" in warning for warning in done.summary["warnings"])


@needs("loopback")
def test_loopback_runs_the_program_once_on_each_host(rehearse, source: Path, tmp_path: Path) -> None:
    (source / ".gitignore").write_text("*.log\n")
    (source / "old.log").write_text("")
    done = rehearse(
        "--isolation", "loopback", "--hosts", 2, "--env", "GREETING=hello", "--output-dir", tmp_path / "out",
        "--channel", f"training={source}",
        "plain.py", "fit", "--config", "c.yaml", "--trainer.max_epochs", "2", "--+x", "null",
    )  # fmt: skip
    assert done.summary["status"] == "Completed"
    assert done.log.startswith("isolation: loopback")
    assert done.log.count("'--+x', '', '--config', 'c.yaml', '--trainer.max_epochs', '2'") == 2
    # What `launch` packs: nothing that git ignores, and a wheel of this package.
    (names,) = {line.partition("files ")[2] for line in done.log.splitlines() if "] files " in line}
    assert "old.log" not in names
    assert "'plain.py'" in names
    assert "-py3-none-any.whl'" in names
    assert "data ['training']" in done.log
    assert [each["name"] for each in done.summary["uploads"]] == ["by-127.0.0.1", "by-127.0.0.2"]
    with tarfile.open(tmp_path / "out" / "model.tar.gz") as archive:
        member = archive.extractfile("by-127.0.0.2")
        assert member is not None
        assert member.read() == b"hello"
    assert any("share this machine" in warning for warning in done.summary["warnings"])


@needs("netns")
def test_hosts_share_nothing(rehearse, source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "1.csv").touch()
    source.joinpath("writes.py").write_text(
        "import glob, os, time\n"
        "host = os.environ['SM_CURRENT_HOST']\n"
        "folders = ('/tmp', '/root', '/etc', '/dev/shm', '/opt/ml', os.environ['SM_CHANNEL_TRAINING'])\n"
        "for folder in folders:\n"
        "    open(f'{folder}/seen-{host}', 'w').close()\n"
        "    time.sleep(0.2)\n"
        "time.sleep(2)\n"
        "seen = [path for folder in folders for path in glob.glob(f'{folder}/seen-*') if not path.endswith(host)]\n"
        "assert not seen, seen\n"
        "assert len([name for name in os.listdir('/proc') if name.isdigit()]) < 15\n"
    )
    rehearse("--hosts", 2, "--channel", f"training={data}", "writes.py")
    assert [path.name for path in data.iterdir()] == ["1.csv"]
    assert not list(Path("/tmp").glob("seen-*"))


@needs("netns")
def test_a_failing_host_ends_the_others(source: Path, capfd: pytest.CaptureFixture) -> None:
    options = RehearsalOptions(source_dir=str(source), abort_after=1, isolation="netns")
    outcome = run_request(create_request("fail.py", options, hosts=2), log_to_stderr=True)
    assert (outcome.exit_code, outcome.status) == (1, "Failed")
    assert str(outcome.failure_reason).startswith("ExecuteUserScriptError:\nExitCode 1\n")
    assert "no such column" in str(outcome.failure_reason)
    assert (outcome.ended_by, outcome.failed_host) == ("exit", outcome.hosts[1])
    assert [(host.exit_code, host.ended_because) for host in outcome.hosts] == [
        (None, "another host failed"),
        (1, None),
    ]
    assert capfd.readouterr().out == ""


@needs("netns")
def test_a_host_that_cannot_be_set_up(rehearse, tmp_path: Path) -> None:
    stub = tmp_path / "bin" / "chmod"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\necho no such luck\nexit 1\n")
    stub.chmod(0o755)
    done = rehearse("--isolation", "netns", "plain.py", exit_code=2, PATH=f"{stub.parent}:{os.environ['PATH']}")
    assert "Host algo-1 was not started: `chmod" in done.log
    assert "no such luck" in done.log


@needs("userns")
def test_timeout(rehearse) -> None:
    mark = uuid.uuid4().hex
    done = rehearse("--isolation", "userns", "--hosts", 2, "--timeout", "15s", "talk.py", "--mark", mark, exit_code=124)
    assert done.summary["failure_reason"].startswith("Still running after 1")
    assert processes_with(mark) == []


@pytest.mark.parametrize(
    ("number", "isolation"),
    [
        pytest.param(signal.SIGINT, "loopback", marks=needs("loopback")),
        pytest.param(signal.SIGTERM, "userns", marks=needs("userns")),
        pytest.param(signal.SIGKILL, "loopback", marks=needs("loopback")),
        pytest.param(signal.SIGKILL, "netns", marks=needs("netns")),
    ],
)
def test_a_signal_to_the_command(command: List[str], isolation: str, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    with _started([*command, "--isolation", isolation, "--hosts", "2", "sleep.py", "--mark", mark]) as process:
        process.send_signal(number)
        assert process.wait(timeout=30) == (-9 if number == signal.SIGKILL else 130)
    until(lambda: processes_with(mark) == [])


@needs("netns")
def test_a_holder_that_is_killed(command: List[str]) -> None:
    mark = uuid.uuid4().hex
    with _started([*command, "--isolation", "netns", "sleep.py", "--mark", mark]) as process:
        holder = subprocess.check_output(["pgrep", "-P", str(process.pid), "-f", "_holder"]).decode().split()
        os.kill(int(holder[0]), signal.SIGKILL)
        assert process.wait(timeout=30) == 2
    until(lambda: processes_with(mark) == [])


def test_processes_are_found_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("ps") is None:
        pytest.skip("ps is not installed")
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, "BASE": "/nowhere/marked"}) as process:
        kill_marked("/nowhere/else")
        assert process.poll() is None
        # Until it is waited for, it is listed without its environment.
        kill_marked("/nowhere/marked")
        assert process.wait(10) == -signal.SIGKILL


@needs("netns")
def test_a_job_that_was_interrupted_goes_on_with_its_checkpoints(rehearse, tmp_path: Path) -> None:
    bucket = tmp_path / "checkpoints"
    options = ("--hosts", 2, "--checkpoint-dir", bucket)
    done = rehearse(*options, "--stop-at", "counted 20", "--stop-grace", "1s", "count.py", exit_code=143)
    assert done.summary["status"] == "Stopped"
    counted = int((bucket / "count").read_text())
    assert 20 <= counted < 100
    done = rehearse(*options, "count.py")
    assert done.log.count(f"starts at {counted}") == 2
    assert (bucket / "count").read_text() == "100"


# Knows nothing of this package, nor of other processes.
SCRIPT = """
import lightning.pytorch as pl
from lightning.pytorch.demos.boring_classes import BoringModel
pl.Trainer(
    max_epochs=1, limit_train_batches=2, limit_val_batches=0, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, devices=1,
).fit(BoringModel())
"""


@needs("loopback", torch=True)
def test_processes_that_trained_alone_are_told(rehearse, source: Path) -> None:
    pytest.importorskip("lightning")
    source.joinpath("train.py").write_text(SCRIPT)
    launch = ("--isolation", "loopback", "--hosts", 2, "--distribution", "torch_distributed")
    done = rehearse(*launch, "--env", "LIGHTNING_SM_AUTO=0", "train.py")
    (problem,) = done.summary["problems"]
    assert problem.startswith("2 processes were started as one job, ")


LISTEN = """
import signal, sys, time
def heard(*_):
    print("heard it", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, heard)
print("listening", flush=True)
time.sleep(600)
"""


@needs("netns")
def test_the_toolkit_alone_hears_nothing_and_is_killed(rehearse, source: Path) -> None:
    source.joinpath("listen.py").write_text(LISTEN)
    options = ("--isolation", "netns", "--no-forward-sigterm", "--stop-at", "listening", "--stop-grace", "3s")
    done = rehearse(*options, "listen.py", exit_code=143)
    assert (done.summary["status"], done.summary["failure_reason"]) == ("Stopped", None)
    assert done.summary["ended_by"] == "stopped"
    (host,) = done.summary["hosts"]
    assert (host["exit_code"], host["ended_because"]) == (None, "SIGKILL 3 s after SIGTERM")
    assert "process 1 has no handler for SIGTERM" in done.log
    assert "heard it" not in done.log


# Measures the round trip between two hosts, and how long one MiB takes.
PING = """
import json, os, socket, time
is_first = os.environ["SM_CURRENT_HOST"] == "algo-1"
deadline = time.monotonic() + 20
while True:
    try:
        peer = socket.create_server(("", 5000)).accept()[0] if is_first else socket.create_connection(("algo-1", 5000))
        break
    except OSError:
        assert time.monotonic() < deadline
        time.sleep(0.2)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def receive(size):
    while size:
        size -= len(peer.recv(size))
def measure(size):
    if is_first:
        receive(size)
        peer.sendall(b"x")
        return 0
    start = time.monotonic()
    peer.sendall(bytes(size))
    receive(1)
    return (time.monotonic() - start) * 1000
took = {"trip": min(measure(1) for _ in range(10)), "mebibyte": measure(2**20)}
if not is_first:
    print("measured " + json.dumps(took), flush=True)
"""


@pytest.mark.parametrize(
    ("name", "latency", "bandwidth"),
    [
        pytest.param("netns", None, "50mbit", marks=needs("netns")),
        pytest.param("netns", "5ms", "50mbit", marks=needs("netns", netem=True)),
        pytest.param("userns", "5ms", None, marks=needs("userns", netem=True)),
    ],
)
def test_the_network_is_as_slow_as_asked(rehearse, source: Path, name: str, latency: Any, bandwidth: Any) -> None:
    source.joinpath("ping.py").write_text(PING)
    given = (("--latency", latency), ("--bandwidth", bandwidth))
    options = [text for option, value in given if value is not None for text in (option, value)]
    done = rehearse("--isolation", name, "--hosts", 2, "--timeout", "60s", *options, "ping.py")
    (seen,) = [json.loads(line.split("measured ", 1)[1]) for line in done.log.splitlines() if "measured {" in line]
    if latency is None:
        assert seen["trip"] < 5
    else:
        assert 10 <= seen["trip"] < 30
    # 1 MiB at 50 Mbit/s takes 168 ms, of which the bucket saves 10.
    assert (seen["mebibyte"] > 140) == (bandwidth is not None)


@contextlib.contextmanager
def _started(command: List[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A rehearsal that is under way: its program has said so."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A test run in a shell's background ignores Ctrl-C, and what it starts would too.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        try:
            assert process.stdout is not None
            assert any(b"asleep" in line for line in process.stdout)
            yield process
        finally:
            process.kill()
