"""What a program reads after a fit that ended in an earlier container is what it was."""

import re

import pytest

from tests.fits.jobs import KILLED, TERMINATED, same

WIDTHS = ("width4", "width8", "width16")


def best_paths(attempt):
    return re.findall("^BEST (.*)$", attempt.log, re.M)


@pytest.mark.slow
def test_the_best_fit_is_chosen_by_the_results_of_ended_ones(job, whole):
    killed = job("choose")
    first = killed.run("chosen:10").died(KILLED)
    attempt = killed.run()
    same(attempt, whole("choose"))
    assert not any(attempt.steps(width) for width in WIDTHS)
    assert best_paths(attempt)[:3] == best_paths(first)
    # Early stopping ended them at different times, or nothing would be chosen.
    assert len({fit["step"] for fit in attempt.result["tried"]}) > 1


@pytest.mark.extended
@pytest.mark.slow
def test_results_after_the_end_of_the_program(job, whole):
    killed = job("choose")
    first = killed.run("end").died(KILLED)
    attempt = killed.run()
    same(attempt, whole("choose"))
    assert best_paths(attempt) == best_paths(first)
    assert not attempt.steps("chosen")
    assert attempt.summary["metrics"]["val_loss"] == attempt.result["chosen"]["metrics"]["val_loss"]


@pytest.mark.slow
def test_results_of_fits_that_were_interrupted(job, whole):
    attempt = job("choose").interrupted("width4:5", "width8:validation", "width16:3", "width16:on_fit_end")
    same(attempt, whole("choose"))


@pytest.mark.slow
def test_results_after_early_stopping_and_a_stop(job, whole):
    stopped = job("choose")
    stopped.run("width8:11", "term").died(TERMINATED)
    attempt = stopped.run()
    same(attempt, whole("choose"))
    assert not attempt.steps("width4")
    assert attempt.steps("width8")[0] == attempt.found["fit-1"] in (11, 12)


def test_hooks_of_the_project_write_their_files_again(job, whole):
    attempt = job("writes_files").interrupted("end")
    assert {"calibration.json", "encoder.pt", "model.json", "model.pt"} == set(attempt.model)
    same(attempt, whole("writes_files"))
    assert attempt.steps("fit") == []
    assert attempt.hooks("fit") == ["on_train_start", "on_train_end", "on_fit_end"]


@pytest.mark.slow
def test_hooks_of_the_project_in_a_fit_that_is_resumed(job, whole):
    attempt = job("writes_files").interrupted("fit:7", "fit:on_train_end", "fit:on_fit_end")
    same(attempt, whole("writes_files"))
    assert attempt.hooks("fit") == ["on_train_start", "on_train_end", "on_fit_end"]
