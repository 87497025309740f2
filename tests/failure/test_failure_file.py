import pytest

from lightning_sm._failure.failure_file import count_oom_kills, with_oom_kills, withdraw_failure, write_failure
from lightning_sm._failure.reason import FailureReason
from lightning_sm._sagemaker.hyperparameters import Hyperparameters
from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.failure_file import reason
from tests.projects.container import log_lines


def test_the_first_reason_stays(job):
    write_failure(job, "first")
    write_failure(job, "second")
    assert reason(job) == "first"


def test_sagemaker_shows_1024_characters(job):
    write_failure(job, "é" * 2000)
    assert reason(job) == "é" * 1024


def test_nothing_outside_a_container(tmp_path):
    write_failure(TrainingJob(), "reason")
    withdraw_failure(TrainingJob(), "reason")
    assert not list(tmp_path.iterdir())


def test_a_secret_at_the_cut_is_masked_whole(tmp_path):
    job = TrainingJob(
        in_container=True,
        failure_file=str(tmp_path / "failure"),
        hyperparameters=Hyperparameters({"model": {"hub_token": "0123456789"}}),
    )
    write_failure(job, "x" * 1020 + "0123456789")
    assert reason(job) == "x" * 1020 + "***"


def test_what_no_encoding_has(job):
    write_failure(job, "a\udcffb")
    assert reason(job) == "a\\udcffb"


def test_what_is_escaped_is_cut_too(job):
    write_failure(job, "\udcff" * 1000)
    assert reason(job) == ("\\udcff" * 1000)[:1024]


def test_a_reason_can_be_taken_back(job):
    write_failure(job, "Rank 1 was killed; 2 oom kills")
    withdraw_failure(job, "KeyError")
    assert reason(job)
    withdraw_failure(job, "Rank 1 was killed")
    with pytest.raises(FileNotFoundError):
        reason(job)
    withdraw_failure(job, "Rank 1 was killed")


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    job = TrainingJob(in_container=True, failure_file=str(tmp_path / "file" / "failure"))
    with log_lines() as lines:
        write_failure(job, "reason")
    assert "could not be written" in lines[0]


def test_both_versions_of_control_groups(tmp_path):
    assert count_oom_kills(str(tmp_path)) is None
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert count_oom_kills(str(tmp_path)) == 2
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 4\noom_kill 3\noom_group_kill 0\n")
    assert count_oom_kills(str(tmp_path)) == 3


def test_a_file_that_says_something_else(tmp_path):
    (tmp_path / "memory.events").write_bytes(b"\xff oom 4\noom_kill\n")
    assert count_oom_kills(str(tmp_path)) is None


def test_the_loss_of_a_rank_names_the_oom_kills_of_its_own_host(monkeypatch):
    monkeypatch.setattr("lightning_sm._failure.failure_file.count_oom_kills", lambda: 2)
    loss = FailureReason("Rank 1 on algo-2 was killed", 1, "algo-2", is_loss=True)
    assert str(with_oom_kills(loss, "algo-2")).endswith("; OOM kills in this container (cgroup oom_kill): 2")
    assert with_oom_kills(loss, "algo-1") == loss
    error = FailureReason("KeyError: 'x'", 1, "algo-2")
    assert with_oom_kills(error, "algo-2") == error
