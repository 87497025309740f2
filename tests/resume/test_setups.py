"""Each set-up of the library, continued from saves of one run, ends as that run."""

import pytest

from lightning_sm._lightning.restart import resumes_within_epochs
from tests.helpers.interrupted import NAMESPACE
from tests.helpers.series import LIBRARY, continue_from, outcome, saves_of, train_keeping_all
from tests.helpers.setups import Size

pytestmark = pytest.mark.skipif(not resumes_within_epochs(NAMESPACE), reason="saved at the start of an epoch only")

SIZE = Size(epochs=3, batches=6)
# What is not continued with the same random numbers, with the reason.
LIMITS = {
    "augmenting_workers": "worker processes start their random numbers again",
    "data_set_with_generators": "generators in attributes of data sets are not kept",
}
NAMES = sorted(LIBRARY)


def chosen(saves):
    """The first save, one in the middle, one before a validation, one at an epoch's start, the last before the end."""
    within = [save for save in saves if save["kind"] == "batch"]
    by_kind = {kind: [save for save in saves if save["kind"] == kind] for kind in ("validation", "epoch")}
    picked = [saves[0], *within[len(within) // 2 :][:1], *by_kind["validation"][1:2], *by_kind["epoch"][:1], saves[-2]]
    return {save["number"]: save for save in picked}.values()


def differences(name, folder, choose):
    """For each save that was chosen: what differs from the run that made it, where something does."""
    whole = train_keeping_all(name, SIZE, folder / "whole")
    expected, lines = outcome(whole), whole.logger.lines
    found = {}
    for save in choose(saves_of(folder / "whole")):
        again = continue_from(save, folder / "whole", folder / str(save["number"]), name, SIZE)
        result, logged = outcome(again), again.logger.lines
        result["lines"], expected["lines"] = logged, lines[len(lines) - len(logged) :]
        different = [key for key, value in expected.items() if result[key] != value]
        found.update({f"{save['kind']} {save['step']}": different} if different else {})
    return found


@pytest.fixture(autouse=True)
def _working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LIMITS])
def test_a_continued_fit_ends_as_the_run_that_saved_it(tmp_path, name):
    assert differences(name, tmp_path, chosen) == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in LIMITS])
def test_from_each_save(tmp_path, name):
    assert differences(name, tmp_path, list) == {}


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_known_limits_change_nothing_but_the_random_numbers(tmp_path, name):
    found = differences(name, tmp_path, chosen)
    assert found
    assert {key for keys in found.values() for key in keys} <= {"weights", "metrics", "lines"}
