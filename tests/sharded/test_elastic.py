"""Jobs whose workers are started again: by torchrun, and with another world size."""

import json
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT, Job

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

SCRIPT = ROOT / "tests" / "sharded" / "train_elastic.py"
# Attempt, rank, step: one rank is killed, and in the attempt after that another one raises an error.
EVENTS = json.dumps([[0, 1, 5, "kill"], [1, 0, 10, "raise"]])


def steps_of(folder, rank=0):
    return [json.loads(line) for line in Path(folder, f"steps-{rank}.jsonl").read_text().splitlines()]


def final(steps):
    """What was trained at each step in the end: loss, learning rate and samples."""
    return {each["step"]: (each["loss"], each["rate"], each["samples"]) for each in steps}


def failure_of(job):
    path = job.folder / "algo-1" / "output" / "failure"
    return path.read_text() if path.exists() else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Both ranks' steps of a run that nothing interrupts."""
    job = Job(tmp_path_factory.mktemp("whole"), SCRIPT).torchrun(1, 2)
    job.results(2)
    return [final(steps_of(job.folder, rank)) for rank in (0, 1)]


def test_workers_that_torchrun_starts_again_go_on_where_they_were(tmp_path, whole):
    job = Job(tmp_path, SCRIPT, EVENTS=EVENTS, timeout=400).torchrun(1, 2, "--max-restarts=2")
    assert [result["steps"] for result in job.results(2)] == [16, 16]
    for rank in (0, 1):
        steps = steps_of(tmp_path, rank)
        assert final(steps) == whole[rank]
        # From the newest checkpoint each time: of steps 3 and 9.
        assert [min(each["step"] for each in steps if each["attempt"] == attempt) for attempt in range(3)] == [0, 3, 9]
    assert failure_of(job) is None
    assert job.output.count("torchrun has started the workers again: restart ") == 2
    assert "Another rank failed: Rank 1 on algo-1 was killed" in job.output
    assert "Another rank failed: ValueError: no such column (rank 0" in job.output
    assert "could not be reported" not in job.output


def test_another_world_size_and_a_schedule_that_no_longer_fits(tmp_path):
    """After 3 of 16 steps on two ranks, one rank takes 32 more."""
    common = {"timeout": 300, "CHECKPOINTS": tmp_path / "checkpoints", "SCHEDULER": "one_cycle"}
    first = Job(tmp_path / "first", SCRIPT, EVENTS=json.dumps([[0, 1, 5, "kill"]]), **common).torchrun(1, 2)
    assert first.codes == [1]
    assert failure_of(first).startswith("Rank 1 on algo-1 was killed")
    second = Job(tmp_path / "second", SCRIPT, **common).torchrun(1, 1)
    assert "step-3.ckpt was saved by 2 processes, and this job has 1. What differs from the earlier" in second.output
    line = "Restarting epoch 0: the checkpoint is from epoch 0 after 3 batches, but the world size was 2"
    assert line in second.output
    assert [each["step"] for each in steps_of(second.folder)] == list(range(3, 17))
    assert failure_of(second).startswith("ValueError: Tried to step 17 times.")
