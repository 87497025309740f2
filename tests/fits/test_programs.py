"""A program that is killed or stopped, and started again, ends as one that was not interrupted.

What it reads after each fit (metrics, weights, best checkpoint, counters, the next random numbers), what it exports and
which files its hooks write are the same.
"""

import pytest

from tests.fits.jobs import KILLED, TERMINATED, same

SEARCHES = ("lr_find", "scale_batch_size", "LearningRateFinder", "BatchSizeFinder")
FOLDS = ("fold0", "fold1", "fold2")

# The programs of a job, the moments at which they die one start after the other, and the fits that the last start does
# not train. Those of the first list run by default.
KILLED_FAST = [
    ("kfold directories", ["fold1:11", "final:13"], FOLDS),
    ("searches lr_find", ["searched:13", "end"], ["after"]),
    ("writes_files", ["fit:on_fit_end"], ["fit"]),
]
KILLED_SLOW = [
    ("raised_limit same", ["end"], ["first", "longer"]),
    ("experiment 0 + finetune", ["between", "finetune:11"], ["fold0"]),
    ("caught_error", ["batches of 10:4", "end"], ["batches of 5"]),
    ("kfold one", ["fold1:11", "fold2:validation"], FOLDS[:2]),
    ("kfold callbacks", ["fold0:on_train_end", "fold1:on_fit_end"], FOLDS[:1]),
    ("two_stages directory", ["finetune:11"], ["pretrain"]),
    ("raised_limit same", ["longer:19", "longer:on_train_end"], ["first"]),
    ("raised_limit new", ["longer:21"], ["first"]),
    ("own_checkpoint", ["saved", "second:13"], ["fit"]),
    ("experiment 0 + experiment 1", ["fold1:11"], ["fold0"]),
    ("searches scale_batch_size", ["searched:9", "end"], ["after"]),
    ("searches LearningRateFinder", ["searched:validation"], []),
]
# With the directory of the fit that is stopped.
STOPPED = [
    ("kfold one", "fold1:13", "fit-1", ["fold0"], {}),
    ("raised_limit same", "longer:27", "fit-1", ["first"], {}),
    ("searches BatchSizeFinder", "searched:7", "fit-0", [], {}),
    ("two_stages one", "finetune:6", "fit-1", ["pretrain"], {"processes": 2}),
]
TOGETHER = [
    ("kfold one", ["fold1:3"], ["fold0"]),
    ("searches lr_find", ["searched:6"], []),
]
COMMAND_LINE = {"hyperparameters": {"sagemaker.save_every": "1ms", "lr": 0.05}}


@pytest.mark.parametrize(
    ("programs", "moments", "untrained", "more"),
    [
        *((*case, {}) for case in KILLED_FAST),
        *(pytest.param(*case, {}, marks=pytest.mark.full) for case in KILLED_SLOW),
        *(pytest.param(*case, {"processes": 2}, marks=pytest.mark.full) for case in TOGETHER),
        pytest.param("command_line", ["longer:21"], ["first"], COMMAND_LINE, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_killed(job, whole, programs, moments, untrained, more):
    names = programs.split(" + ")
    attempt = job(*names, **more).interrupted(*moments)
    same(attempt, whole(*names, **more))
    assert [attempt.steps(fit) for fit in untrained] == [[]] * len(untrained)


@pytest.mark.full
@pytest.mark.parametrize(("programs", "moment", "place", "untrained", "more"), STOPPED, ids=str)
def test_stopped(job, whole, programs, moment, place, untrained, more):
    fit, step = moment.split(":")
    stopped = job(programs, **more)
    stopped.run(moment, "term").died(TERMINATED)
    attempt = stopped.run()
    same(attempt, whole(programs, **more))
    found = attempt.found[place]
    # After this step or the next; ranks ask each other four times a second, and at the start of each epoch.
    assert found - int(step) in (0, 1, 2)[: 1 + more.get("processes", 1)]
    assert attempt.steps(fit)[:1] in ([found], [])  # a search has an end of its own
    assert [attempt.steps(fit) for fit in untrained] == [[]] * len(untrained)


@pytest.mark.full
def test_the_time_limit_in_the_first_of_two_fits(job, whole):
    limited = job("two_stages one", options={"max_runtime": "8s"}, PAUSE=0.8)
    attempt = limited.run().ended()
    assert 0 < len(attempt.steps("pretrain")) < 16
    assert attempt.steps("finetune") == []
    assert attempt.results == []
    reason, steps = "sagemaker.max_runtime 8s is nearly reached", len(attempt.steps("pretrain"))
    assert f"{reason}: stopping after step {steps}, before the program's end." in attempt.log
    # The exported model is there, and its description tells it from the one of a program that has ended.
    assert attempt.summary["global_step"] == steps
    assert (attempt.summary["ended"], attempt.summary["stopped_by"]) == (False, reason)
    assert whole("two_stages one").summary["ended"] is True
    limited.variables, limited.options = {}, {}
    same(limited.run(), whole("two_stages one"))


# --- what makes these programs tell


def test_every_fit_of_a_first_attempt_trains(whole):
    attempt = whole("kfold directories")
    assert [attempt.steps(fold) for fold in FOLDS] == [list(range(16))] * 3
    assert attempt.steps("final") == list(range(24))
    assert len({fit["weights"] for fit in (*attempt.result["folds"], attempt.result["final"])}) == 4
    assert attempt.summary["global_step"] == 24


@pytest.mark.full
def test_what_the_programs_do(whole):
    for search in SEARCHES:
        result = whole(f"searches {search}").result
        finds_batch_size = search in ("scale_batch_size", "BatchSizeFinder")
        assert ((result["batch_size"] != 5), (result["lr"] != 0.02)) == (finds_batch_size, not finds_batch_size)
    files = whole("writes_files")
    assert {"calibration.json", "encoder.pt", "model.json", "model.pt"} == set(files.model)
    assert files.hooks("fit") == ["on_train_start", "on_train_end", "on_fit_end"]
    assert whole("raised_limit same").result["longer"]["epoch"] == 4
    programs = ("experiment 0", "experiment 1")
    assert whole(*programs).results == [whole(program).result for program in programs]
    caught, laptop = whole("caught_error"), whole("caught_error", in_container=False)
    assert caught.results == laptop.results
    assert caught.steps("batches of 5") == list(range(24))


@pytest.mark.full
def test_the_own_save_of_a_fit_wins_over_the_given_checkpoint(job, whole, tmp_path):
    given = tmp_path / "given.ckpt"
    job(f"plain {given} 10", in_container=False).run().ended()
    killed = job(f"from_checkpoint {given}")
    killed.run("first:4").died(KILLED)
    first = killed.run("given:27", "term").died(TERMINATED)
    assert first.steps("given")[0] == 10
    attempt = killed.run()
    same(attempt, whole(f"from_checkpoint {given}"))
    assert attempt.found["fit-1"] in (27, 28)
    assert attempt.steps("given") == list(range(attempt.found["fit-1"], 34))
    # A line says that something else is taken than what was asked for.
    assert any("given.ckpt" in line and f"step-{attempt.found['fit-1']}" in line for line in attempt.log.splitlines())
