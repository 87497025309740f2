"""Cross-validation: several fits of equal models, and a final one."""

import pytest

from tests.fits.jobs import TERMINATED, same

FOLDS = ("fold0", "fold1", "fold2")
WHERES = ("directories", "callbacks", "one")
# Where each fit has its saves: fits are counted in each checkpoint directory.
PLACES = {
    "directories": ["fold0/fit-0", "fold1/fit-0", "fold2/fit-0", "fit-0"],
    "callbacks": ["fit-0", "fit-1", "fit-2", "fit-3"],
    "one": ["fit-0", "fit-1", "fit-2", "fit-3"],
}


def one_is_fast(fast):
    """All ways to save, one of them without a mark."""
    return [where if where == fast else pytest.param(where, marks=pytest.mark.slow) for where in WHERES]


@pytest.mark.parametrize("where", one_is_fast("directories"))
def test_every_fit_of_a_first_attempt_trains(job, where):
    attempt = job(f"kfold {where}", options={"save_every": "10m"}).run().ended()
    assert [attempt.steps(fold) for fold in FOLDS] == [list(range(16))] * 3
    assert attempt.steps("final") == list(range(24))
    assert len({fit["weights"] for fit in (*attempt.result["folds"], attempt.result["final"])}) == 4
    assert attempt.summary["global_step"] == 24


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERES)
def test_killed_after_all_fits(job, whole, where):
    killed = job(f"kfold {where}")
    attempt = killed.interrupted("end")
    same(attempt, whole(f"kfold {where}"))
    assert not any(attempt.steps(fit) for fit in (*FOLDS, "final"))
    assert killed.ended_fits() == sorted(PLACES[where])


@pytest.mark.slow
@pytest.mark.parametrize("where", WHERES)
def test_killed_in_several_fits(job, whole, where):
    killed = job(f"kfold {where}")
    attempt = killed.interrupted("fold0:5", "fold1:11", "fold2:validation", "final:13")
    same(attempt, whole(f"kfold {where}"))
    assert not any(attempt.steps(fold) for fold in FOLDS)
    assert attempt.steps("final") == list(range(attempt.found.get(PLACES[where][3], 0), 24))


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("where", WHERES)
def test_killed_between_the_last_step_of_a_fit_and_its_end(job, whole, where):
    moments = ("fold0:on_train_end", "fold1:on_fit_end", "final:on_fit_end")
    same(job(f"kfold {where}").interrupted(*moments), whole(f"kfold {where}"))


@pytest.mark.parametrize("where", one_is_fast("one"))
def test_stopped_late_in_the_second_fold(job, whole, where):
    stopped = job(f"kfold {where}")
    first = stopped.run("fold1:13", "term").died(TERMINATED)
    assert not first.steps("fold2")
    attempt = stopped.run()
    same(attempt, whole(f"kfold {where}"))
    found = attempt.found[PLACES[where][1]]
    assert found in (13, 14)  # it stops after this step or the next
    assert not attempt.steps("fold0")
    assert attempt.steps("fold1") == list(range(found, 16))
    assert attempt.steps("fold2") == list(range(16))
