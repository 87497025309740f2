"""Sharded strategies compute what DDP computes with the same seed, and with us bit for bit what they do without."""

import pytest
import pytorch_lightning as pl

from tests.helpers.processes import ROOT, Job
from tests.helpers.sharded import KINDS, runs_here
from tests.helpers.sharded_cases import CASES

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

_SCRIPT = ROOT / "tests" / "sharded" / "train_cases.py"
# With a full state FSDP and FSDP2 differ from those with a sharded one in their checkpoints only.
_SHARDED = [kind for kind in KINDS if kind not in ("ddp", "fsdp_full", "fsdp2_full") and runs_here(kind)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What each rank computed, by kind, case and way; one job trains them all."""
    kinds = ",".join(["ddp", *_SHARDED])
    folder = tmp_path_factory.mktemp("equal") / "job"
    # What is plain is Lightning's alone, although it is a job.
    job = Job(folder, _SCRIPT, kinds, ",".join(CASES), timeout=500, LIGHTNING_SM_AUTO="0")
    return job.torchrun(1, 2).results(2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", _SHARDED)
def test_losses_and_weights_are_those_of_ddp(trained, kind, name):
    made = CASES[name](pl)
    if kind in made.without:
        assert all(rank[kind][name] == {"plain": None, "ours": None} for rank in trained)
        pytest.skip(f"{kind} refuses {name}")
    for rank in trained:
        expected, found = rank["ddp"][name]["plain"], rank[kind][name]["ours"]
        assert found["steps"] == expected["steps"]
        assert found["losses"] == _close(expected["losses"], made)
        assert len({round(loss, 3) for loss in found["losses"]}) > 4, "a training that changes nothing proves nothing"
        assert found["weights"].keys() == expected["weights"].keys()
        for parameter, numbers in expected["weights"].items():
            assert found["weights"][parameter] == pytest.approx(numbers, rel=made.tolerance, abs=made.tolerance), (
                parameter
            )
        assert [sorted(logged) for logged in found["logged"]] == [sorted(logged) for logged in expected["logged"]]
        for own, other in zip(found["logged"], expected["logged"]):
            assert own == _close(other, made)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", _SHARDED)
def test_with_us_each_number_is_lightnings_own(trained, kind, name):
    for rank in trained:
        assert rank[kind][name]["ours"] == rank[kind][name]["plain"]


def _close(numbers, made):
    return pytest.approx(numbers, rel=made.tolerance, abs=made.tolerance)
