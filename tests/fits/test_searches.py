"""Searches for a learning rate or a batch size neither resume nor count as fits."""

import pytest

from tests.fits.jobs import TERMINATED, same

SEARCHES = ("lr_find", "scale_batch_size", "LearningRateFinder", "BatchSizeFinder")


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_finds_something(whole, search):
    attempt = whole(f"searches {search}")
    finds_batch_size = search in ("scale_batch_size", "BatchSizeFinder")
    assert (attempt.result["batch_size"] != 5) == finds_batch_size
    assert (attempt.result["lr"] != 0.02) == (not finds_batch_size)


@pytest.mark.parametrize("search", ["lr_find", *(pytest.param(name, marks=pytest.mark.slow) for name in SEARCHES[1:])])
def test_killed_after_the_end(job, whole, search):
    killed = job(f"searches {search}")
    attempt = killed.interrupted("end")
    same(attempt, whole(f"searches {search}"))
    assert attempt.steps("after") == []
    assert killed.ended_fits() == ["fit-0", "fit-1"]


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_killed_in_each_fit(job, whole, search):
    killed = job(f"searches {search}")
    attempt = killed.interrupted("searched:9", "after:3")
    same(attempt, whole(f"searches {search}"))
    assert attempt.steps("after")[0] == attempt.found.get("fit-1", 0)
    assert set(killed.saves()) == {"fit-0", "fit-1"}


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
def test_stopped_in_the_fit_after_the_search(job, whole, search):
    stopped = job(f"searches {search}")
    stopped.run("searched:7", "term").died(TERMINATED)
    attempt = stopped.run()
    same(attempt, whole(f"searches {search}"))
    assert attempt.found["fit-0"] in (7, 8)
    assert attempt.found["fit-0"] in attempt.steps("searched")
