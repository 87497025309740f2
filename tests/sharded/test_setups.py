"""Callbacks, metrics and schedules under each sharded strategy: equal after a limit and a kill, or refused in words."""

import pytest
import pytorch_lightning as pl

from tests.helpers.processes import Job
from tests.helpers.sharded import KINDS, runs_here
from tests.helpers.sharded_setups import SHARDED_SETUPS, names_of

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

_SHARDED = [kind for kind in KINDS if kind != "ddp" and runs_here(kind)]
# Lightning 2.6 has it.
_NAMES = [name for name in SHARDED_SETUPS if name != "ema_weight_averaging" or hasattr(pl.callbacks, "WeightAveraging")]
_TRAINED = [(kind, name) for kind in _SHARDED for name in names_of(kind, _NAMES)]
_ENDS = [(kind, name) for kind, name in _TRAINED if name in ("stopped_early", "scheduled_and_averaged")]
_ENDS += [(kind, "finetuning") for kind in ("fsdp", "fsdp_full") if kind in _SHARDED]
if "deepspeed_2" in _SHARDED and "ema_weight_averaging" in _NAMES:
    _ENDS.append(("deepspeed_2", "ema_weight_averaging"))
_IN_SHARDS = [kind for kind in _SHARDED if not kind.endswith("_full")]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One job trains them all."""
    words = ("tests.sharded.train_setups", ",".join(_SHARDED), ",".join(_NAMES))
    # Lightning alone is not even protected.
    variables = {"LIGHTNING_SM_AUTO": "0"}
    return Job(tmp_path_factory.mktemp("setups") / "job", *words, timeout=500, **variables).torchrun(1, 2)


@pytest.fixture(params=_ENDS, ids=["-".join(end) for end in _ENDS])
def of_ranks(request, ranks):
    """What each rank found with a set-up that is trained to its end."""
    kind, name = request.param
    return [rank[kind][name] for rank in ranks]


def test_the_end_is_that_of_lightning_alone(of_ranks):
    for found in of_ranks:
        plain, starts = found["plain"], [found[name] for name in ("limited", "killed", "resumed") if name in found]
        assert 0 < found["resumed"]["start"] < found["resumed"]["steps"] == plain["steps"]
        for what in ("batches", "epochs"):
            numbers = {key: values for start in starts for key, values in start[what].items()}
            assert numbers.keys() == plain[what].keys()
            for key, values in plain[what].items():
                assert numbers[key] == pytest.approx(values, rel=1e-6, abs=1e-6), f"{what} {key}"
        assert found["resumed"]["weights"] == plain["weights"]
        assert len({round(batch["loss"], 3) for batch in plain["batches"].values()}) > 8, "otherwise nothing is shown"


def test_a_job_that_had_finished_has_the_same_weights_and_model(of_ranks):
    for found in of_ranks:
        assert found["again"]["batches"] == {}
        for what in ("weights", "counters"):
            assert found["again"][what] == found["resumed"][what] == found["plain"][what]
        assert found["again"]["metrics"] == found["resumed"]["metrics"]
        assert found["again"]["metrics"] == pytest.approx(found["plain"]["metrics"], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", _IN_SHARDS)
def test_with_us_each_number_is_lightnings_own(ranks, kind):
    for rank in ranks:
        compared = [found for found in rank[kind].values() if "ours" in found]
        assert len(compared) == 2
        for found in compared:
            assert found["ours"] == found["plain"]
            losses = {round(batch["loss"], 3) for batch in found["plain"]["batches"].values()}
            assert len(losses) > 4, "a training that changes nothing proves nothing"


@pytest.mark.parametrize("kind", _IN_SHARDS)
def test_a_time_limit_ends_well_and_is_no_end_of_the_training(ranks, kind):
    for found in (rank[kind]["stopped_early"] for rank in ranks):
        limited = found["limited"]
        assert (limited["code"], limited["steps"]) == (0, found["killed"]["start"])
        assert limited["steps"] == 1
        # Early stopping ends it in the middle of the six epochs.
        assert found["plain"]["steps"] == 8


# Older torch crashes when FSDP gathers a full state on a CPU.
@pytest.mark.parametrize("full", [kind for kind in _SHARDED if kind.endswith("_full")])
def test_a_file_with_the_whole_state_is_resumed_by_other_strategies(ranks, full):
    for found in (rank[full]["scheduled_and_averaged"] for rank in ranks):
        for other in (*found["elsewhere"].values(), found["after ddp"]):
            assert (other["start"], other["steps"]) == (12, found["plain"]["steps"])
            assert other["weights"].keys() == found["plain"]["weights"].keys()
            for name, values in found["plain"]["weights"].items():
                assert other["weights"][name] == pytest.approx(values, rel=1e-6, abs=1e-6)


@pytest.mark.skipif("ema_weight_averaging" not in _NAMES, reason="Lightning 2.6 has it")
def test_averages_are_exported(ranks):
    found = ranks[0]["deepspeed_2"]["ema_weight_averaging"]
    assert found["exported"] == found["plain"]["weights"]


@pytest.mark.parametrize(("kind", "name"), _TRAINED)
def test_what_cannot_work_is_refused_before_a_step(ranks, kind, name):
    refused = SHARDED_SETUPS[name](pl, kind).refused
    for found in (rank[kind][name] for rank in ranks):
        assert ("refused" in found) == bool(refused)
        assert refused in found.get("refused", {}).get("error", "")


def test_what_a_restart_cannot_continue_is_said(job, ranks):
    line = "global_rank 1 has other tensors than global_rank 0 in the state of average_of_own_shards.<locals>.Average"
    # With stage 2 each rank has the whole weights.
    assert job.output.count(line) == len({*_IN_SHARDS} - {"deepspeed_2"})
    line = "average of the model is an AveragedModel. With DeepSpeed stage 3"
    assert job.output.count(line) == ("deepspeed_3" in _SHARDED)
