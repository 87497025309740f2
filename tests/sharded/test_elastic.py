"""Jobs whose workers are started again: by torchrun, and with another world size."""

import shutil

import pytest

from tests.helpers.processes import Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SCRIPT = "tests.sharded.train_elastic"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("job"), SCRIPT, KILL_AT=5, timeout=400).torchrun(1, 2, "--max-restarts=1")


def test_workers_that_torchrun_starts_again_go_on_where_they_were(job, ranks):
    for restarted, whole in ranks:
        # From the newest checkpoint.
        assert (restarted["first"], whole["first"]) == (3, 0)
        assert restarted["last"] == whole["last"] == 16
        assert restarted["weights"] == whole["weights"]
    assert not (job.folder / "algo-1" / "output" / "failure").exists()
    assert job.output.count("torchrun has started the workers again: restart ") == 1
    assert "Another rank failed: Rank 1 on algo-1 was killed" in job.output
    assert "could not be reported" not in job.output


def test_another_world_size_and_a_schedule_that_no_longer_fits(tmp_path, job, ranks):
    """After 12 of 16 steps on two ranks, one rank would take 16 more."""
    checkpoints = tmp_path / "checkpoints"
    # As if the job had been lost before its end.
    whole = job.folder / "whole" / "checkpoints"
    shutil.copytree(whole, checkpoints, ignore=shutil.ignore_patterns("fit.json", "step-16*"))
    alone = Job(tmp_path / "alone", SCRIPT, CHECKPOINTS=checkpoints, timeout=300).torchrun(1, 1)
    assert "step-12.ckpt was saved by 2 processes, and this job has 1. What differs from the earlier" in alone.output
    line = "Restarting epoch 1: the checkpoint is from epoch 1 after 4 batches, but the world size was 2"
    assert line in alone.output
    # It began with the thirteenth.
    failure = (alone.folder / "algo-1" / "output" / "failure").read_text()
    assert failure.startswith("ValueError: Tried to step 17 times.")
