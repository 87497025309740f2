"""Jobs whose workers are started again: by torchrun, and with another world size."""

import json
import shutil
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT, Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SCRIPT = ROOT / "tests" / "sharded" / "train_elastic.py"


def steps_of(folder, rank=0):
    return [json.loads(line) for line in Path(folder, f"steps-{rank}.jsonl").read_text().splitlines()]


def final(steps):
    """What was trained at each step in the end: loss, learning rate and samples."""
    return {each["step"]: (each["loss"], each["rate"], each["samples"]) for each in steps}


def failure_of(job):
    path = job.folder / "algo-1" / "output" / "failure"
    return path.read_text() if path.exists() else None


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("job"), SCRIPT, KILL_AT=5, timeout=400).torchrun(1, 2, "--max-restarts=1")


def test_workers_that_torchrun_starts_again_go_on_where_they_were(job, ranks):
    for rank, result in enumerate(ranks):
        assert result["steps"] == [16, 16]
        steps = steps_of(job.folder, rank)
        assert final(steps) == final(steps_of(job.folder / "whole", rank))
        # From the newest checkpoint.
        assert [min(each["step"] for each in steps if each["attempt"] == attempt) for attempt in (0, 1)] == [0, 3]
    assert failure_of(job) is None
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
    assert [each["step"] for each in steps_of(alone.folder)] == list(range(12, 17))
    assert failure_of(alone).startswith("ValueError: Tried to step 17 times.")
