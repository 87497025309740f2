"""Each set-up of the library, continued from saves of one run, ends as that run."""

import pytest

from tests.helpers.series import LIBRARY, continue_from, outcome, saves_of, train_keeping_all
from tests.helpers.setups import Size

SIZE = Size(epochs=3, batches=6)
# What is not continued with the same random numbers, with the reason.
LIMITS = {
    "augmenting_workers": "worker processes start their random numbers again",
}
# One of each kind of loop, data, schedule, metric and callback. The others are slow, as is each save.
FAST = {
    "accumulation_by_epoch", "attributes", "changed_arguments", "changed_by_hooks", "manual_optimization",
    "metric_objects", "several_loaders", "stateful_loader", "stream", "validation_within_epochs", "workers",
}  # fmt: skip
SOME_SLOW = [pytest.param(name, marks=() if name in FAST else pytest.mark.full) for name in sorted(LIBRARY)]


def few(saves):
    """One save in the middle, one before a validation, one at an epoch's start."""
    within = [save for save in saves if save["kind"] == "batch"]
    by_kind = {kind: [save for save in saves if save["kind"] == kind] for kind in ("validation", "epoch")}
    picked = [*within[len(within) // 2 :][:1], *by_kind["validation"][1:2], *by_kind["epoch"][:1]]
    return {save["number"]: save for save in picked}.values()


def chosen(saves):
    """These, the first, the last before the end and that of the end."""
    picked = [saves[0], *few(saves), *saves[-2:]]
    return {save["number"]: save for save in picked}.values()


def differences(setup, folder, choose):
    """For each save that was chosen: what differs from the run that made it, where something does."""
    whole = train_keeping_all(setup, SIZE, folder / "whole")
    expected, lines = outcome(whole), whole.logger.lines
    found = {}
    for save in choose(saves_of(folder / "whole")):
        again = continue_from(save, folder / "whole", folder / str(save["number"]), setup, SIZE)
        result, logged = outcome(again), again.logger.lines
        result["lines"], expected["lines"] = logged, lines[len(lines) - len(logged) :]
        different = [key for key, value in expected.items() if result[key] != value]
        found.update({f"{save['kind']} {save['step']}": different} if different else {})
    return found


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SOME_SLOW)
def test_a_continued_fit_ends_as_the_run_that_saved_it(tmp_path, name):
    found = differences(name, tmp_path, chosen if name in FAST else few)
    different = {key for keys in found.values() for key in keys}
    # Of the limits, what follows from other random numbers.
    assert different <= {"weights", "metrics", "lines"} if name in LIMITS else different == set(), found
