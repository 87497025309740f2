"""Two hosts that do not hold the same checkpoints go on from the newest one that both have."""

from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job

pytestmark = [pytest.mark.processes, pytest.mark.jobs]

_SCRIPT = Path(__file__).parent / "resume_together.py"
# Batches that each rank trains in an epoch.
_EPOCH = 4


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return Job(tmp_path_factory.mktemp("resume"), _SCRIPT, installed_namespaces()[0].name).torchrun(2, 1)


def test_without_any_interruption(ranks):
    assert [result["trained"]["steps"] for result in ranks] == [3 * _EPOCH, 3 * _EPOCH]


@pytest.mark.parametrize(
    ("case", "epochs"),
    [
        ("all the same", 1),  # of four
        ("not on every host", 1),
        ("another version", 1),
        ("damaged", 1),
        ("nothing in common", 3),
        ("never", 3),
        ("ckpt_path", 2),
        ("finished", 0),
    ],
)
def test_both_go_on_from_the_newest_that_both_have(ranks, case, epochs):
    for result in ranks:
        seen = result[case]
        assert "error" not in seen, seen
        assert seen["steps"] == epochs * _EPOCH
        if case == "all the same":
            assert seen["global_step"] == 4 * _EPOCH
        else:
            assert seen["weights"] == result["trained"]["weights"]
            assert seen["global_step"] == 3 * _EPOCH


def test_both_stop_where_a_checkpoint_is_required(ranks):
    for result in ranks:
        assert "sagemaker.resume is require" in result["require"]["error"]
        assert "not every host has the same file" in result["require"]["error"]


def test_both_stop_before_the_checkpoints_of_another_job(ranks):
    for result in ranks:
        error = result["another job"]["error"]
        assert (
            "of-epoch-2.ckpt (epoch 2, step 12) was written by the job this-job, and this is the job another-job"
            in error
        )


def test_both_stop_where_the_model_has_changed(ranks):
    for result in ranks:
        error = result["changed model"]["error"]
        assert "of-epoch-2.ckpt" in error
        assert "size mismatch for layers.0.weight" in error
        assert "HINT: Undo what has changed" in error


def test_each_says_why(job, ranks):
    assert "Rejected of-epoch-2.ckpt on global_rank 1: this host does not have it" in job.output
    assert "Rejected of-epoch-2.ckpt on global_rank 1: this host has another version of it" in job.output
    assert "Rejected of-epoch-2.ckpt: not every host has the same file" in job.output
    assert job.output.count("This job had finished with of-epoch-2.ckpt") == 1
