import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat_sharded import bypasses_checkpoint_io, is_sharded, saves_by_itself, sharded_format
from lightning_sm._lightning.compat_strategies import full_checkpoint, full_state_dict

PL = Namespace("pytorch_lightning")


class Strategy:
    """A strategy that keeps parts unless it is told to gather."""

    def __init__(self, **attributes):
        self.asked = []
        self.lightning_module = torch.nn.Linear(1, 1)
        vars(self).update(attributes)

    def lightning_module_state_dict(self):
        self.asked.append({name: value for name, value in vars(self).items() if name.startswith("_")})
        return self.lightning_module.state_dict()


class FSDPStrategy(Strategy):
    pass


class OwnFSDP(FSDPStrategy):
    pass


class DeepSpeedStrategy(Strategy):
    pass


def trainer_of(strategy, is_global_zero=True):
    connector = SimpleNamespace(
        dump_checkpoint=lambda weights_only: {"state_dict": strategy.lightning_module_state_dict(), "epoch": 1}
    )
    return SimpleNamespace(strategy=strategy, is_global_zero=is_global_zero, _checkpoint_connector=connector)


def test_which_strategies_spread_a_model():
    found = {cls: is_sharded(trainer_of(cls())) for cls in (Strategy, FSDPStrategy, OwnFSDP, DeepSpeedStrategy)}
    assert found == {Strategy: False, FSDPStrategy: True, OwnFSDP: True, DeepSpeedStrategy: True}
    assert [saves_by_itself(trainer_of(cls())) for cls in (FSDPStrategy, DeepSpeedStrategy)] == [False, True]


def test_their_names_are_lightnings():
    strategies = pytest.importorskip("pytorch_lightning.strategies", reason="Lightning 1.5 calls them plugins")
    for name in ("FSDPStrategy", "DDPFullyShardedNativeStrategy", "DeepSpeedStrategy"):
        cls = getattr(strategies, name, None)
        if cls is not None:
            assert is_sharded(SimpleNamespace(strategy=cls.__new__(cls)))


@pytest.mark.parametrize(
    ("name", "attributes", "bypasses", "saved_as"),
    [
        ("DDPStrategy", {}, False, None),
        ("FSDPStrategy", {"_state_dict_type": "full"}, False, None),
        ("FSDPStrategy", {"_state_dict_type": "sharded"}, True, "dcp"),
        ("ModelParallelStrategy", {"_save_distributed_checkpoint": False}, False, None),
        ("ModelParallelStrategy", {"_save_distributed_checkpoint": True}, True, "dcp"),
        ("DeepSpeedStrategy", {}, True, "deepspeed"),
    ],
)
def test_which_of_lightnings_strategies_write_folders(name, attributes, bypasses, saved_as):
    strategies = pytest.importorskip("pytorch_lightning.strategies", reason="Lightning 1.5 calls them plugins")
    cls = getattr(strategies, name, None)
    if cls is None or (bypasses and PL.version < (2, 3) and name != "DeepSpeedStrategy"):
        pytest.skip("this Lightning has none, or none that shards its checkpoints")
    strategy = cls.__new__(type("Own", (cls,), {}))
    vars(strategy).update(attributes)
    assert bypasses_checkpoint_io(strategy) is bypasses
    if bypasses:
        assert sharded_format(strategy) == saved_as


@pytest.mark.parametrize(
    ("kept", "gathered"),
    [
        ({"_state_dict_type": "sharded"}, {"_state_dict_type": "full"}),
        ({"_save_distributed_checkpoint": True}, {"_save_distributed_checkpoint": False}),
        ({"_state_dict_type": "full"}, {"_state_dict_type": "full"}),
        ({}, {}),
    ],
)
@pytest.mark.parametrize(
    "ask", [full_state_dict, lambda trainer: full_checkpoint(PL, trainer, has_ended=False)["state_dict"]]
)
def test_parts_are_gathered_and_the_strategy_stays_as_it_was(kept, gathered, ask):
    strategy = FSDPStrategy(**kept)
    assert set(ask(trainer_of(strategy))) == {"weight", "bias"}
    assert strategy.asked == [gathered]
    assert {name: getattr(strategy, name) for name in kept} == kept


def test_what_deepspeed_partitions_is_copied_while_it_is_there(monkeypatch):
    strategy = DeepSpeedStrategy(zero_stage_3=True)
    weight = strategy.lightning_module.weight

    @contextmanager
    def gathered(parameters):
        assert weight in parameters
        weight.data.fill_(3)
        yield
        weight.data.fill_(0)

    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(zero=SimpleNamespace(GatheredParameters=gathered)))
    assert full_state_dict(trainer_of(strategy))["weight"] == 3
    assert weight == 0
    assert full_state_dict(trainer_of(strategy, is_global_zero=False)) == {}
