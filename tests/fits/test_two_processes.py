"""Programs with several fits on two processes."""

import pytest

from tests.fits.jobs import KILLED, TERMINATED, same

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", ["directories", "one"])
def test_folds(job, whole, where):
    killed = job(f"kfold {where}", processes=2)
    killed.run("fold1:7").died(KILLED)
    killed.run("final:3").died(KILLED)
    attempt = killed.interrupted("end")
    same(attempt, whole(f"kfold {where}", processes=2))
    assert not attempt.steps("final")


def test_a_stop_in_the_second_fit(job, whole):
    stopped = job("two_stages one", processes=2)
    stopped.run("finetune:6", "term").died(TERMINATED)
    attempt = stopped.run()
    same(attempt, whole("two_stages one", processes=2))
    # Ranks ask each other four times a second, and at the start of each epoch.
    assert 6 <= attempt.found["fit-1"] <= 8
    assert attempt.steps("finetune") == list(range(attempt.found["fit-1"], 8))


def test_a_choice_by_results(job, whole):
    attempt = job("choose", processes=2).interrupted("width8:3", "end")
    same(attempt, whole("choose", processes=2))


def test_two_programs(job, whole):
    attempt = job("pretrain", "finetune", processes=2).interrupted("pretrain:5", "finetune:6")
    same(attempt, whole("pretrain", "finetune", processes=2))


@pytest.mark.parametrize("search", ["lr_find", "LearningRateFinder"])
def test_a_search(job, whole, search):
    attempt = job(f"searches {search}", processes=2).interrupted("searched:6", "end")
    same(attempt, whole(f"searches {search}", processes=2))
    assert attempt.result["lr"] != 0.02
