"""A fit resumes its own saves, and those of another model or job only where that is asked for."""

import pytest

from tests.fits.jobs import TERMINATED, same


@pytest.mark.full
def test_an_experiment_whose_model_has_changed_is_refused(job):
    """Of a job that has no name."""
    left = job("experiment 0", name=None)
    left.run().ended()
    left.variables = {"WIDTH": 16}
    attempt = left.run()
    assert attempt.codes == [1]
    assert "step-16-2.ckpt: its hyperparameters differ in width." in attempt.failure
    assert "model.pt" not in attempt.model


@pytest.mark.full
@pytest.mark.parametrize("resume", ["always", "require"])
def test_another_job_continues_where_it_may(job, whole, resume):
    other = job("experiment")
    other.run("fold0:13", "term").died(TERMINATED)
    other.name, other.options = "job-2", {"resume": resume}
    attempt = other.run()
    same(attempt, whole("experiment"))
    assert attempt.steps("fold0") == list(range(attempt.found["fit-0"], 16))
