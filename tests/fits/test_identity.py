"""A fit resumes its own saves, and not those of another program, experiment or job, or of plain Lightning."""

import shutil

import pytest

from tests.fits.jobs import KILLED, TERMINATED, Job, same

PROGRAMS = ("pretrain", "finetune")


def test_two_programs_of_an_entry_point(job, whole):
    """Of equal models, in one directory."""
    attempt = whole(*PROGRAMS)
    assert attempt.steps("pretrain") == attempt.steps("finetune") == list(range(16))
    restarted = job(*PROGRAMS).interrupted("finetune:11")
    same(restarted, attempt)
    assert restarted.steps("pretrain") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moments", "by"),
    [
        (("pretrain:5", "between"), "kill"),
        (("pretrain:on_fit_end", "finetune:on_fit_end"), "kill"),
        (("pretrain:12", "finetune:12"), "term"),
    ],
)
def test_two_programs_interrupted_in_both(job, whole, moments, by):
    same(job(*PROGRAMS).interrupted(*moments, by=by), whole(*PROGRAMS))


@pytest.mark.slow
def test_one_program_twice_in_a_job_with_other_arguments(job, whole):
    programs = ("experiment 0", "experiment 1")
    attempt = whole(*programs)
    assert attempt.results == [whole(program).result for program in programs]
    restarted = job(*programs).interrupted("fold1:11", "end")
    # The container before it had ended with the first program.
    assert restarted.steps("fold0") == []
    assert restarted.steps("fold1")[0] in (10, 11)
    same(restarted, attempt)


def continued_by(job, program, **variables):
    """Run a program in the directory that another has left, as a job that has no name either, after the other's end."""
    job.programs = [program.split()]
    job.variables = variables
    return job.run()


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_new_fit_after_a_caught_error(job, whole):
    attempt = whole("caught_error")
    laptop = whole("caught_error", in_container=False)
    assert attempt.results == laptop.results
    assert attempt.steps("batches of 5") == laptop.steps("batches of 5") == list(range(24))


@pytest.mark.slow
def test_killed_after_a_caught_error_and_after_the_end(job, whole):
    attempt = job("caught_error").interrupted("batches of 10:4", "batches of 5:13", "end")
    same(attempt, whole("caught_error"))


@pytest.fixture(scope="module")
def foreign(server, tmp_path_factory):
    """A checkpoint of plain Lightning, of the same model and with more steps than any fit takes."""
    folder = tmp_path_factory.mktemp("foreign")
    Job(server, folder / "job", f"plain {folder / 'foreign.ckpt'} 100", in_container=False).run().ended()
    return folder / "foreign.ckpt"


def test_a_checkpoint_of_plain_lightning_is_no_candidate(job, whole, foreign):
    with_it = job("experiment")
    for name in ("last.ckpt", "epoch=12-step=100.ckpt"):
        shutil.copy(foreign, with_it.checkpoints / name)
    attempt = with_it.run()
    same(attempt, whole("experiment"))
    assert attempt.steps("fold0") == list(range(16))


@pytest.mark.extended
@pytest.mark.slow
def test_a_checkpoint_of_plain_lightning_beside_the_own_ones(job, whole, foreign):
    killed = job("experiment")
    killed.run("fold0:11").died(KILLED)
    shutil.copy(foreign, killed.checkpoints / "last.ckpt")
    same(killed.run(), whole("experiment"))


@pytest.mark.slow
@pytest.mark.parametrize("moments", [("saved",), ("second:13", "end")])
def test_a_checkpoint_that_the_program_saves_after_a_fit(job, whole, moments):
    attempt = job("own_checkpoint").interrupted(*moments)
    same(attempt, whole("own_checkpoint"))
    assert attempt.steps("fit") == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["fold0:11", "end"])
def test_another_job_is_refused(job, moment):
    other = job("experiment")
    other.run(moment).died(KILLED)
    other.name = "job-2"
    attempt = other.run()
    assert set(attempt.codes) == {1}
    assert "CheckpointError" in attempt.failure
    assert attempt.steps("fold0") == []


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["always", "require"])
def test_another_job_continues_where_it_may(job, whole, resume):
    other = job("experiment")
    other.run("fold0:13", "term").died(TERMINATED)
    other.name, other.options = "job-2", {"resume": resume}
    attempt = other.run()
    same(attempt, whole("experiment"))
    assert attempt.steps("fold0") == list(range(attempt.found["fit-0"], 16))
