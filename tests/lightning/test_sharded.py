import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.gathered import full_checkpoint, full_state_dict
from lightning_sm._lightning.strategies import bypasses_checkpoint_io, is_sharded, sharded_format
from lightning_sm._logging import log

PL = Namespace("pytorch_lightning")


class Strategy:
    """A strategy that keeps shards unless it is told to gather."""

    root_device = torch.device("cpu")

    def __init__(self, module=None, **attributes):
        self.asked = []
        self.lightning_module = self.model = module or torch.nn.Linear(1, 1)
        vars(self).update(attributes)

    def lightning_module_state_dict(self):
        self.asked.append({name: value for name, value in vars(self).items() if name.startswith("_")})
        return self.lightning_module.state_dict()

    def optimizer_state(self, optimizer):
        return optimizer.state_dict()


class DDPFullyShardedStrategy(Strategy):
    """FairScale's, which Lightning had up to 1.9, and which gathers a state dict by itself."""


class FSDPStrategy(Strategy):
    pass


class OwnFSDP(FSDPStrategy):
    pass


class ModelParallelStrategy(Strategy):
    pass


class DeepSpeedStrategy(Strategy):
    pass


def trainer_of(strategy, is_global_zero=True):
    optimizer = torch.optim.SGD(strategy.lightning_module.parameters(), lr=0.1, momentum=0.9)

    def dump_checkpoint(weights_only):
        return {
            "state_dict": strategy.lightning_module_state_dict(),
            "optimizer_states": [strategy.optimizer_state(optimizer)],
            "epoch": 1,
        }

    connector = SimpleNamespace(dump_checkpoint=dump_checkpoint)
    return SimpleNamespace(
        strategy=strategy, is_global_zero=is_global_zero, _checkpoint_connector=connector, optimizers=[optimizer]
    )


def test_which_strategies_shard_a_model():
    found = {cls: is_sharded(trainer_of(cls())) for cls in (Strategy, FSDPStrategy, OwnFSDP, DeepSpeedStrategy)}
    assert found == {Strategy: False, FSDPStrategy: True, OwnFSDP: True, DeepSpeedStrategy: True}


def test_their_names_are_lightnings():
    strategies = pytest.importorskip("pytorch_lightning.strategies", reason="Lightning 1.5 calls them plugins")
    for name in ("FSDPStrategy", "DDPFullyShardedNativeStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"):
        cls = getattr(strategies, name, None)
        if cls is not None:
            assert is_sharded(SimpleNamespace(strategy=cls.__new__(cls)))


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
def test_a_strategy_that_gathers_by_itself_does_so_and_stays_as_it_was(kept, gathered, ask):
    strategy = DDPFullyShardedStrategy(**kept)
    assert set(ask(trainer_of(strategy))) == {"weight", "bias"}
    assert strategy.asked == [gathered]
    assert {name: getattr(strategy, name) for name in kept} == kept


class Partitioned:
    """DeepSpeed's stage 3: a parameter has its value within the context only, one at a time."""

    def __init__(self, monkeypatch, module):
        self.values = {}
        for parameter in module.parameters():
            parameter.ds_id = id(parameter)
            self.values[id(parameter)] = parameter.data
            parameter.data = torch.empty(0)
        self.calls = []
        monkeypatch.setitem(
            sys.modules, "deepspeed", SimpleNamespace(zero=SimpleNamespace(GatheredParameters=self.gathered))
        )

    @contextmanager
    def gathered(self, parameters):
        (parameter,) = parameters
        self.calls.append(parameter)
        value = self.values[id(parameter)]
        parameter.data = value.clone()
        yield
        parameter.data.fill_(0)
        parameter.data = torch.empty(0)


def test_what_deepspeed_partitions_is_copied_while_it_is_there(monkeypatch):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    module[2].weight = module[0].weight
    before = {name: value.clone() for name, value in module.state_dict().items()}
    partitioned = Partitioned(monkeypatch, module)
    found = full_state_dict(trainer_of(DeepSpeedStrategy(module)))
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in before.items()
    }
    assert found["2.weight"] is found["0.weight"]
    assert partitioned.calls == [*module.parameters()]  # one of two names, and all ranks in one order
    assert all(parameter.numel() == 0 for parameter in module.parameters())


def test_other_ranks_of_deepspeed_gather_as_well_and_keep_nothing(monkeypatch):
    module = torch.nn.Linear(2, 2)
    partitioned = Partitioned(monkeypatch, module)
    assert full_state_dict(trainer_of(DeepSpeedStrategy(module), is_global_zero=False)) == {}
    assert partitioned.calls == [*module.parameters()]


def test_a_checkpoint_of_deepspeed_says_that_it_has_no_optimizer_states(monkeypatch):
    logged = []
    monkeypatch.setattr(log, "info", lambda text, *values: logged.append(text % values))
    utils = SimpleNamespace(safe_get_full_fp32_param=lambda parameter: None)
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(utils=utils))
    strategy = DeepSpeedStrategy(torch.nn.Linear(2, 2))
    found = full_checkpoint(PL, trainer_of(strategy), has_ended=False)
    assert set(found) == {"state_dict", "epoch"}
    assert len(logged) == 1
    assert "no optimizer states: DeepSpeed keeps" in logged[0]
    assert "optimizer_state" not in vars(strategy)
    assert "lightning_module_state_dict" not in vars(strategy)


def test_master_weights_are_gathered_where_deepspeed_has_them(monkeypatch):
    module = torch.nn.Linear(2, 2).to(torch.bfloat16)
    module.bias.requires_grad_(False)
    asked = []

    def safe_get_full_fp32_param(parameter):
        asked.append(parameter)
        return masters

    masters = module.weight.detach().float() * 1.0001
    utils = SimpleNamespace(safe_get_full_fp32_param=safe_get_full_fp32_param)
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(utils=utils))
    found = full_state_dict(trainer_of(DeepSpeedStrategy(module)))
    assert asked == [module.weight]
    assert {name: value.dtype for name, value in found.items()} == {"weight": torch.float32, "bias": torch.bfloat16}
    assert found["weight"].tolist() == masters.tolist() != module.weight.tolist()
    # What a callback has put in the place of the weights, such as their averages, is not the optimizer's.
    module.weight.data.fill_(3)
    assert full_state_dict(trainer_of(DeepSpeedStrategy(module)))["weight"].tolist() == [[3, 3], [3, 3]]


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
