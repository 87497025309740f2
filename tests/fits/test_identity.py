"""A fit resumes its own saves, and not those of another program, experiment or job, or of plain Lightning."""

import shutil

import pytest

from tests.fits.jobs import TERMINATED, same


@pytest.fixture
def left(job):
    """A job that has no name, after its first experiment has ended."""
    first = job("experiment 0", name=None)
    first.run().ended()
    return first


@pytest.mark.full
def test_another_experiment_in_the_same_directory_begins(left, whole):
    left.programs = [["experiment", "1", "0.05"]]
    same(left.run(), whole("experiment 1 0.05", name=None))


@pytest.mark.full
def test_an_experiment_whose_model_has_changed_is_refused(left):
    left.variables = {"WIDTH": 16}
    attempt = left.run()
    assert attempt.codes == [1]
    assert "step-16-2.ckpt: its hyperparameters differ in width." in attempt.failure
    assert "model.pt" not in attempt.model


def test_a_checkpoint_of_plain_lightning_is_no_candidate(job, whole, given):
    with_it = job("experiment")
    for name in ("last.ckpt", "epoch=12-step=100.ckpt"):
        shutil.copy(given, with_it.checkpoints() / name)
    attempt = with_it.run()
    same(attempt, whole("experiment"))
    assert attempt.steps("fold0") == list(range(16))


@pytest.mark.full
@pytest.mark.parametrize("resume", ["always", "require"])
def test_another_job_continues_where_it_may(job, whole, resume):
    other = job("experiment")
    other.run("fold0:13", "term").died(TERMINATED)
    other.name, other.options = "job-2", {"resume": resume}
    attempt = other.run()
    same(attempt, whole("experiment"))
    assert attempt.steps("fold0") == list(range(attempt.found["fit-0"], 16))
