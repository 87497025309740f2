"""Everything that one GPU can show; on the CPU the same parts run to see that they are right themselves."""

import importlib.util

import pytest

from tests.helpers.sharded import runs_here

# With the device cpu a loaded machine takes minutes to start a process.
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]

# By the kind of strategy. Of one rank torch's FSDP shards nothing, and has no sharded state.
_PRECISIONS = {
    "ddp": ("32-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true"),
    "fsdp_full": ("32-true", "bf16-mixed"),
    "fsdp2": ("32-true", "bf16-true"),
    "deepspeed_2": ("32-true", "bf16-mixed", "16-mixed"),
    "deepspeed_3": ("32-true", "bf16-mixed"),
}
_TOGETHER = {**_PRECISIONS, "ddp": ("32-true", "bf16-mixed", "16-mixed"), "fsdp": ("32-true", "bf16-mixed")}


def can_run(kind, device):
    if kind.startswith("deepspeed") and importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed")
    if device == "cpu" and not runs_here(kind):
        pytest.skip(f"{kind} does not run on CPUs with these versions")


def equal(played, device, kinds, kind, precision, **more):
    """The numbers of plain Lightning and ours, for the precisions of a kind that run on the device."""
    can_run(kind, device)
    precisions = [each for each in kinds[kind] if device == "cuda" or not each.startswith("16")]
    if precision not in precisions:
        pytest.skip("fp16 is for GPUs")
    return played("equal", device, kind, ",".join(precisions), **more)


def test_nccl_with_one_rank(played, device):
    found = played("group", device)
    assert found["backend"] == {"cuda": "nccl", "cpu": "gloo"}[device]
    assert found["device"] == device
    assert found["sum"] == found["gathered"] == [1.5, 2.5]
    assert found["mean"] == 2.5
    assert found["object"] == {"step": 16}


def test_nccl_with_two_ranks(played, device):
    for found in played("group", device, world_size=2):
        assert (found["backend"], found["device"]) == ({"cuda": "nccl", "cpu": "gloo"}[device], device)
        assert (found["sum"], found["mean"]) == ([3.0, 6.0], 3.0)
        assert found["gathered"] == [3.0, 6.0, 3.0, 6.0]
        assert found["object"] == {"step": 8}


@pytest.mark.parametrize(
    ("kind", "precision"), [(kind, precision) for kind, each in _TOGETHER.items() for precision in each]
)
def test_each_number_of_two_ranks_is_lightnings_own(played, device, kind, precision):
    if device == "cpu" and kind != "ddp":
        pytest.skip("tests/sharded compares them on CPUs")
    first, second = equal(played, device, _TOGETHER, kind, precision, world_size=2)
    assert first[precision]["ours"]["weights"] == second[precision]["ours"]["weights"]
    assert first[precision]["ours"]["losses"] != second[precision]["ours"]["losses"]
    for found in (first, second):
        assert found[precision]["ours"] == found[precision]["plain"]


@pytest.mark.parametrize(
    ("kind", "precision"), [(kind, precision) for kind, each in _PRECISIONS.items() for precision in each]
)
def test_each_number_is_lightnings_own(played, device, kind, precision):
    found = equal(played, device, _PRECISIONS, kind, precision)[precision]
    assert "error" not in found
    assert len({round(loss, 4) for loss in found["plain"]["losses"]}) > 8, "a training that changes nothing"
    assert found["ours"] == found["plain"]


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("kind", _PRECISIONS)
def test_a_fit_continues_within_an_epoch_with_the_random_numbers_of_its_device(played, device, kind, way):
    can_run(kind, device)
    found = played("resume", device, kind)[way]
    assert "error" not in found
    whole, continued = found["whole"], found["continued"]
    assert (whole["first"], continued["first"]) == (0, 5)
    assert whole["step"] == continued["step"] == 16
    assert continued["weights"] == whole["weights"]
    assert continued["drawn"] == whole["drawn"]


def test_a_background_save_holds_the_weights_of_its_step(played, device):
    found = played("async_content", device)
    print(found["megabytes"], "MB")
    assert found["went_on"]
    assert found["equal"]


def test_memory_and_time_of_a_step(played, device):
    found = played("cost", device)
    print(f"a step {found['step']:.2f} of {found['milliseconds']:.2f} ms, memory {found['memory']}")
    if device == "cuda":
        assert found["memory"] < 1.02
        assert found["step"] < 1.25


def test_an_exported_model_gives_the_same_on_a_cpu(played, device):
    found = played("export", device)
    for name, difference in found.items():
        assert not isinstance(difference, dict), f"{name}: {difference}"
        print(name, difference)
        assert isinstance(difference, str) or difference < 1e-5, name
