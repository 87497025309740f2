"""A fit resumes its own saves, and not those of another program, experiment or job, or of plain Lightning."""

import shutil

import pytest

from tests.fits.jobs import TERMINATED, same


def continued_by(job, program, **variables):
    """Run a program in the directory that another has left, as a job that has no name either, after the other's end."""
    job.programs = [program.split()]
    job.variables = variables
    return job.run()


@pytest.mark.full
@pytest.mark.parametrize(("second", "variables"), [("experiment 1 0.05", {}), ("experiment 0", {"WIDTH": 16})])
def test_two_experiments_without_a_jobs_name_in_one_directory(job, whole, second, variables):
    first = job("experiment 0", name=None)
    first.run().ended()
    attempt = continued_by(first, second, **variables)
    if set(attempt.codes) == {0}:
        same(attempt, whole(second, name=None, **variables))
    else:
        assert "CheckpointError" in attempt.failure
        assert "model.pt" not in attempt.model


def test_a_checkpoint_of_plain_lightning_is_no_candidate(job, whole, given):
    with_it = job("experiment")
    for name in ("last.ckpt", "epoch=12-step=100.ckpt"):
        shutil.copy(given, with_it.checkpoints / name)
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
