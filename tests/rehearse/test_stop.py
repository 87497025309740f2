"""A rehearsal is stopped as StopTrainingJob stops a job: SIGTERM reaches process 1 only if it has a handler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_sm.rehearse import Attempt, EndedBy, HostOutcome, Limits, Outcome, RehearsalError
from lightning_sm.rehearse._command import read_command
from tests.helpers.rehearsal import cli_request as request
from tests.helpers.rehearsal import needs

ISOLATIONS = [pytest.param(name, marks=needs(name)) for name in ("loopback", "userns", "netns")]

LISTEN = """
import signal, sys, time
def heard(*_):
    print("heard it", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, heard)
print("listening", flush=True)
time.sleep(600)
"""


@pytest.fixture
def program(source: Path) -> Path:
    source.joinpath("listen.py").write_text(LISTEN)
    return source


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    path = tmp_path / "entrypoint.json"
    made = subprocess.run([sys.executable, "-m", "lightning_sm", "entrypoint"], stdout=subprocess.PIPE, check=True)
    path.write_bytes(made.stdout)
    return path


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_toolkit_alone_hears_nothing_and_is_killed(rehearse, program, isolation: str) -> None:
    done = rehearse("--isolation", isolation, "--stop-at", "listening", "--stop-grace", "3s", "listen.py")
    assert done.exit_code == 143
    assert done.summary["status"] == "Stopped"
    assert done.summary["failure_reason"] is None
    (attempt,) = done.summary["attempts"]
    assert attempt["ended_by"] == "stopped"
    assert attempt["hosts"][0]["exit_code"] is None
    assert attempt["hosts"][0]["ended_because"] == "SIGKILL 3 s after SIGTERM"
    assert "process 1 has no handler for SIGTERM" in done.log
    assert "heard it" not in done.log


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_an_entry_point_that_listens_hands_it_on(rehearse, program, entrypoint, isolation: str) -> None:
    done = rehearse(
        "--isolation", isolation, "--hosts", 2, "--entrypoint", entrypoint, "--stop-at", "listening", "listen.py"
    )
    assert done.exit_code == 143
    assert done.summary["status"] == "Stopped"
    (attempt,) = done.summary["attempts"]
    assert [host["exit_code"] for host in attempt["hosts"]] == [143, 143]
    assert attempt["seconds"] < 100
    assert "heard it" in done.log


@pytest.mark.rehearsal
@pytest.mark.processes
@needs("loopback")
def test_a_stop_by_the_clock(rehearse, program) -> None:
    done = rehearse("--isolation", "loopback", "--stop-after", "4s", "--stop-grace", "1s", "listen.py")
    assert done.exit_code == 143
    assert 5 <= done.summary["attempts"][0]["seconds"] < 30


def test_the_options(source: Path) -> None:
    asked = request(source, "--stop-after", "20s", "--stop-grace", "2m", "plain.py")
    assert asked.limits == Limits(abort_after=10.0, stop_after=20.0, stop_grace=120.0)
    assert request(source, "--stop-at", "step 5", "plain.py").limits.stop_at == "step 5"
    with pytest.raises(RehearsalError, match="exclude each other"):
        request(source, "--stop-after", "20s", "--spot-interrupt-after", "5s", "plain.py")


def test_an_entry_point_from_a_file(source: Path, entrypoint: Path, tmp_path: Path) -> None:
    printed = json.loads(entrypoint.read_text())
    words = (*printed["ContainerEntrypoint"], *printed["ContainerArguments"])
    assert request(source, "--entrypoint", entrypoint, "plain.py").command == words
    estimator = tmp_path / "estimator.json"
    estimator.write_text(json.dumps({"container_entry_point": ["a"], "container_arguments": ["b"]}))
    assert read_command(estimator) == ("a", "b")
    estimator.write_text(json.dumps({"ContainerEntrypoint": ["a"]}))
    assert read_command(estimator) == ("a",)
    with pytest.raises(RehearsalError, match="ModelTrainer sends its own"):
        request(source, "--sdk", "v3", "--entrypoint", estimator, "plain.py")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ContainerEntrypoint": "train"}', '{"ContainerEntrypoint": [1]}'])
def test_a_file_without_an_entry_point(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(RehearsalError, match="--entrypoint"):
        read_command(tmp_path / "bad.json")


def test_a_stopped_job_has_no_failure_reason_whatever_its_hosts_ended_with() -> None:
    host = HostOutcome("algo-1", "homogeneousCluster", 143, 1.0, failure="ExecuteUserScriptError: ExitCode 143")
    stopped = Outcome((Attempt((host,), EndedBy.STOPPED, 1.0),))
    assert (stopped.status, stopped.exit_code, stopped.failure_reason) == ("Stopped", 143, None)
    interrupted = Outcome((Attempt((host,), EndedBy.STOP, 1.0),))
    assert (interrupted.status, interrupted.exit_code) == ("Stopped", 130)
