import sys
from types import SimpleNamespace

import pytest

from lightning_sm._checkpoint.memory_tier import MemoryTier
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import TieredCheckpoints
from lightning_sm.errors import CheckpointError

PL = Namespace("pytorch_lightning")
SHARDED = SimpleNamespace(_state_dict_type="sharded")


def test_each_world_size_has_a_namespace_of_its_own():
    assert MemoryTier("my-model", 16).name == "my-model-16"


@pytest.mark.parametrize("name", ["", "a/b", "-a", "ä", "x" * 129])
def test_a_name_that_the_service_cannot_take_is_refused(name):
    with pytest.raises(CheckpointError, match=r"sagemaker\.tiered_checkpoints is .* HINT: Name"):
        MemoryTier(name, 2).check(PL, SHARDED)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "amzn_sagemaker_checkpointing", None)
    with pytest.raises(CheckpointError, match="HINT: Add amzn-sagemaker-checkpointing"):
        MemoryTier("a", 2).check(PL, SHARDED)


@pytest.mark.parametrize("attributes", [{}, {"_state_dict_type": "full"}, {"_save_distributed_checkpoint": False}])
def test_a_strategy_that_saves_nothing_sharded_is_refused(monkeypatch, attributes):
    monkeypatch.setitem(sys.modules, "amzn_sagemaker_checkpointing", SimpleNamespace())
    with pytest.raises(CheckpointError, match="SimpleNamespace does not save with"):
        MemoryTier("a", 2).check(PL, SimpleNamespace(**attributes))


def test_the_interval_is_a_duration():
    with pytest.raises(CheckpointError, match=r"interval of TieredCheckpoints: .* HINT: Write 30s"):
        TieredCheckpoints("a", interval="soon")
