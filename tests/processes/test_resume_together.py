"""Two hosts that do not hold the same saves continue together from the newest one that any of them has whole."""

from pathlib import Path

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import Job

pytestmark = pytest.mark.full

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
        ("not on the second host", 1),
        ("not on the main host", 1),
        ("another version", 1),
        ("ckpt_path", 2),
        ("finished", 0),
    ],
)
def test_both_continue_from_the_newest_whole_save(ranks, case, epochs):
    for result in ranks:
        seen = result[case]
        assert "error" not in seen, seen
        assert seen["steps"] == epochs * _EPOCH
        assert seen["weights"] == result["trained"]["weights"]
        assert seen["global_step"] == 3 * _EPOCH


def test_both_stop_where_the_model_has_changed(ranks):
    for result in ranks:
        error = result["changed model"]["error"]
        assert "step-8.ckpt does not fit this model or trainer: " in error
        assert "size mismatch for layers.0.weight" in error
        assert "HINT: Undo what has changed" in error


def test_the_main_host_says_why(job, ranks):
    assert job.output.count("Sending ") == 4
    assert job.output.count("This fit had ended with fit 0: step-12.ckpt") == 1
