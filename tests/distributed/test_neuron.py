"""The accelerators for NeuronCores in one process. They train in ``tests/processes``."""

import types
from collections import UserList
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lightning_sm._distributed.neuron import installed_neuron_accelerator, parse_core_numbers
from lightning_sm._distributed.xla import TorchrunXLAMixin
from lightning_sm._lightning import SupportLevel, installed_namespaces, support_level
from lightning_sm.errors import StrategyUnavailableError, TopologyError

_NAMESPACE = installed_namespaces()[0]
pytestmark = pytest.mark.skipif(
    support_level(_NAMESPACE) is SupportLevel.CORE, reason="the accelerators need Lightning 2.1"
)


@pytest.fixture
def torch_neuron(monkeypatch):
    """``torch.neuron`` on a host with two NeuronCores."""
    module: Any = types.ModuleType("torch.neuron")
    module.is_available = lambda: True
    module.device_count = lambda: 2
    monkeypatch.setattr(torch, "neuron", module, raising=False)


def _registered(name):
    return _NAMESPACE.module("accelerators").AcceleratorRegistry.get(name)


def test_without_torch_neuron_lightning_says_what_is_there():
    assert installed_neuron_accelerator() in (None, "torchrun_xla")
    with pytest.raises(Exception, match=r"can not run on your system.*'cpu'"):
        _NAMESPACE.module().Trainer(accelerator="neuron", logger=False, enable_checkpointing=False)


@pytest.mark.usefixtures("torch_neuron")
def test_neuron_cores_are_counted_and_chosen():
    assert installed_neuron_accelerator() == "neuron"
    accelerator = _registered("neuron")
    assert (accelerator.auto_device_count(), accelerator.name()) == (2, "neuron")
    assert parse_core_numbers("2") == [0, 1]
    assert parse_core_numbers(UserList([1, 3])) == [1, 3]  # a ListConfig of Hydra is no list, either


@pytest.mark.parametrize("devices", ["all", " ", "2 3", "-1", "0, -1", [-1], 0, [], [True]])
def test_devices_that_name_no_neuron_cores(devices):
    with pytest.raises(TopologyError, match=r"devices=.*\) names no NeuronCores\. HINT: Leave devices out"):
        _registered("neuron").parse_devices(devices)


@pytest.mark.usefixtures("torch_neuron")
def test_lightnings_strategy_for_one_process_would_train_on_the_cpu():
    with pytest.raises(StrategyUnavailableError, match=r"would train on cpu\. HINT: Set strategy='smddp'"):
        _registered("neuron").setup_device(torch.device("cpu"))


def test_a_strategy_for_xla_knows_the_launchers_ranks_before_it_has_a_device():
    environment = SimpleNamespace(
        world_size=lambda: 8, global_rank=lambda: 5, local_rank=lambda: 1, node_rank=lambda: 2
    )
    strategy: Any = TorchrunXLAMixin.__new__(TorchrunXLAMixin)
    strategy.cluster_environment = environment
    ranks = (strategy.world_size, strategy.global_rank, strategy.local_rank, strategy.node_rank)
    assert ranks == (8, 5, 1, 2)
