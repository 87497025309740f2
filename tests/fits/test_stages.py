"""Fits that build on each other: other models, raised limits, given checkpoints."""

import pytest

from tests.fits.jobs import KILLED, TERMINATED, Job, same

# Where the second fit has its saves.
PLACES = {"directory": "finetune/fit-0", "one": "fit-1"}


@pytest.mark.parametrize("where", ["directory", pytest.param("one", marks=pytest.mark.slow)])
def test_two_stages_killed_in_the_second(job, whole, where):
    attempt = job(f"two_stages {where}").interrupted("finetune:11")
    same(attempt, whole(f"two_stages {where}"))
    assert not attempt.steps("pretrain")
    assert attempt.steps("finetune") == list(range(attempt.found.get(PLACES[where], 0), 16))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
def test_two_stages_killed_in_both_and_after_the_end(job, whole, where):
    attempt = job(f"two_stages {where}").interrupted("pretrain:7", "pretrain:on_fit_end", "finetune:2", "end")
    same(attempt, whole(f"two_stages {where}"))
    assert attempt.steps("pretrain") == attempt.steps("finetune") == []


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("where", PLACES)
def test_two_stages_stopped_in_each(job, whole, where):
    attempt = job(f"two_stages {where}").interrupted("pretrain:11", "finetune:3", by="term")
    same(attempt, whole(f"two_stages {where}"))
    assert attempt.found[PLACES[where]] in (3, 4)
    assert attempt.steps("finetune") == list(range(attempt.found[PLACES[where]], 16))


@pytest.mark.parametrize("trainer", ["same", pytest.param("new", marks=pytest.mark.slow)])
def test_a_raised_limit_killed_after_the_end(job, whole, trainer):
    attempt = job(f"raised_limit {trainer}").interrupted("end")
    same(attempt, whole(f"raised_limit {trainer}"))
    assert attempt.result["longer"]["epoch"] == 4
    assert attempt.steps("first") == attempt.steps("longer") == []


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["same", "new"])
def test_a_raised_limit_killed_in_each_fit(job, whole, trainer):
    attempt = job(f"raised_limit {trainer}").interrupted("first:12", "longer:19", "longer:on_train_end")
    same(attempt, whole(f"raised_limit {trainer}"))
    assert not attempt.steps("first")


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["same", "new"])
def test_a_raised_limit_stopped_in_the_longer_fit(job, whole, trainer):
    stopped = job(f"raised_limit {trainer}")
    stopped.run("longer:27", "term").died(TERMINATED)
    attempt = stopped.run()
    same(attempt, whole(f"raised_limit {trainer}"))
    assert attempt.found["fit-1"] in (27, 28)
    assert attempt.steps("longer") == list(range(attempt.found["fit-1"], 32))


@pytest.mark.slow
@pytest.mark.parametrize("moments", [("first:10",), ("longer:21", "longer:29"), ("end",)])
def test_a_command_line_of_the_projects_own(job, whole, moments):
    hyperparameters = {"sagemaker.save_every": "1ms", "lr": 0.05}
    attempt = job("command_line", hyperparameters=hyperparameters).interrupted(*moments)
    same(attempt, whole("command_line", hyperparameters=hyperparameters))
    assert attempt.summary["metrics"]


@pytest.fixture(scope="module")
def given(server, tmp_path_factory):
    """A checkpoint of plain Lightning after ten steps."""
    folder = tmp_path_factory.mktemp("given")
    Job(server, folder / "job", f"plain {folder / 'given.ckpt'} 10", in_container=False).run().ended()
    return folder / "given.ckpt"


def test_the_own_save_of_a_fit_wins_over_the_given_checkpoint(job, whole, given):
    stopped = job(f"from_checkpoint {given}")
    stopped.run("given:27", "term").died(TERMINATED)
    attempt = stopped.run()
    same(attempt, whole(f"from_checkpoint {given}"))
    assert attempt.found["fit-1"] in (27, 28)
    assert attempt.steps("given") == list(range(attempt.found["fit-1"], 34))
    # A line says that something else is taken than what was asked for.
    assert any("given.ckpt" in line and f"step-{attempt.found['fit-1']}" in line for line in attempt.log.splitlines())


@pytest.mark.slow
def test_a_fit_without_a_save_begins_at_the_given_checkpoint(job, whole, given):
    """Killed in the fit before it, within it, and after the end."""
    killed = job(f"from_checkpoint {given}")
    killed.run("first:4").died(KILLED)
    second = killed.run("given:30").died(KILLED)
    assert second.steps("given")[0] == 10
    same(killed.interrupted("end"), whole(f"from_checkpoint {given}"))
