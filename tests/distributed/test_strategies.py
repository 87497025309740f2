"""The strategies in one process. They train in ``tests/processes`` and ``tests/sharded``."""

import importlib.util
import os
import sys
import types
from types import SimpleNamespace
from typing import Any, Dict, Tuple

import pytest
import torch

from lightning_sm._distributed import mixin, sharded
from lightning_sm._distributed.registry import STRATEGIES, register_strategies, strategy_class
from lightning_sm._lightning import Namespace, installed_namespaces, namespaces
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm.errors import SMDDPUnavailableError, StrategyUnavailableError, TopologyError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.sharded import cpu_class, runs_here
from tests.helpers.skips import installed_version
from tests.helpers.tiny import loader, tiny_model

_NAMESPACE = installed_namespaces()[0]
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
_MODEL_PARALLEL = "SMDDPModelParallelStrategy"
_LACKS = {
    "SMDDPFSDPStrategy": not runs_here("fsdp"),
    _MODEL_PARALLEL: installed_version("torch") < (2, 4),
    "SMDDPDeepSpeedStrategy": importlib.util.find_spec("deepspeed") is None,
}
_SHARDED = [name for name in _LACKS if _NAMESPACE.version >= STRATEGIES[name].since and not _LACKS[name]]


_REGISTERED: Dict[str, Tuple[str, Dict[str, Any]]] = {
    "smddp": ("SMDDPStrategy", {"_ddp_kwargs": {}}),
    "SMDDP": ("SMDDPStrategy", {}),  # Lightning lower-cases names
    "smddp_find_unused_parameters_true": ("SMDDPStrategy", {"_ddp_kwargs": {"find_unused_parameters": True}}),
    "smddp_find_unused_parameters_false": (
        "SMDDPStrategy",
        {"_ddp_kwargs": {"find_unused_parameters": False}},
    ),
    "smddp_fsdp": ("SMDDPFSDPStrategy", {}),
    "smddp_fsdp2": (_MODEL_PARALLEL, {"_data_parallel_size": "auto", "_tensor_parallel_size": 1}),
    "smddp_deepspeed": ("SMDDPDeepSpeedStrategy", {"zero_stage_3": False}),
    "smddp_deepspeed_stage_3": ("SMDDPDeepSpeedStrategy", {"zero_stage_3": True}),
}
each = pytest.mark.parametrize("name", ["SMDDPStrategy", *_SHARDED])
each_sharded = pytest.mark.parametrize("name", _SHARDED)
needs_fsdp2 = pytest.mark.skipif(_MODEL_PARALLEL not in _SHARDED, reason="Lightning or torch has no FSDP2")
each_namespace = pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)


def _strategy(name, **arguments):
    return cpu_class(strategy_class(_NAMESPACE, name))(**arguments)


def _trainer(namespace=_NAMESPACE, **arguments):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return namespace.module().Trainer(accelerator="cpu", **{**quiet, **arguments})


def _world(trainer):
    """Hosts, processes on this host and of all hosts; global, local and node rank."""
    strategy = strategy_of(trainer)
    sizes = strategy.num_nodes, len(strategy.parallel_devices), trainer.world_size
    return (*sizes, trainer.global_rank, trainer.local_rank, trainer.node_rank)


@each
@pytest.mark.parametrize(
    ("hosts", "variables", "devices", "world"),
    [
        ((), torchrun(3, 4, 1, 2, 1), {}, (2, 2, 4, 3, 1, 1)),
        ((), mpirun(3, 4, 1, 2), {}, (2, 2, 4, 3, 1, 1)),
        ((), torchrun(3, 4, 0, 1, 1, nodes=2), {}, (2, 1, 4, 3, 0, 1)),
        # Lightning starts the processes.
        (("algo-2", "algo-1", "algo-2"), {}, {"devices": 2}, (2, 2, 4, 2, 0, 1)),
        # On a laptop everything is left to Lightning.
        ((), {}, {"devices": 3}, (1, 3, 3, 0, 0, 0)),
    ],
    ids=["torchrun", "mpirun", "unequal hosts", "none", "laptop"],
)
def test_takes_the_launchers_world(in_environ, opt_ml, hosts, variables, devices, world, name):
    in_environ({**(opt_ml.host(*hosts).environ() if hosts else {}), **variables})
    trainer = _trainer(strategy=_strategy(name), **devices)
    is_ours = type(strategy_of(trainer).cluster_environment).__name__ == "SageMakerEnvironment"
    assert is_ours == bool(hosts or variables)
    assert _world(trainer) == world
    if name != _MODEL_PARALLEL:  # it knows its groups later
        assert strategy_of(trainer).distributed_sampler_kwargs == {"num_replicas": world[2], "rank": world[3]}


@each
def test_num_nodes_that_is_not_the_launchers(in_environ, name):
    in_environ(torchrun(3, 4, 1, 2, 1))
    with pytest.raises(TopologyError, match=r"Trainer\(num_nodes=3\), but the job has this world.*HINT: Leave num"):
        _trainer(strategy=_strategy(name), num_nodes=3)


def test_an_environment_of_the_users_own_decides(in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1))
    environment = _NAMESPACE.module("plugins.environments").LightningEnvironment()
    assert _strategy("SMDDPStrategy", cluster_environment=environment).cluster_environment is environment


@each_namespace
@pytest.mark.parametrize(
    "name", [name for name, (cls, _) in _REGISTERED.items() if cls not in _LACKS or cls in _SHARDED]
)
def test_registered_names(namespace, name):
    for _ in range(2):
        register_strategies(namespace)
    strategy = strategy_of(_trainer(namespace, devices=1, strategy=name))
    cls, attributes = _REGISTERED[name]
    assert type(strategy) is strategy_class(namespace, cls)
    assert {key: getattr(strategy, key) for key in attributes} == attributes


# --- the backend


@each
def test_the_backend_and_its_reason_are_one_line_of_rank_zero(in_environ, opt_ml, lines, name):
    opt_ml.host("algo-1").hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    for rank in (0, 1):
        in_environ(opt_ml.environ(**torchrun(rank, 2, rank, 2, 0, MASTER_ADDR="127.0.0.1")))
        strategy_of(_trainer(strategy=_strategy(name)))._prepare_group()
    assert [line for line in lines if "backend" in line] == [
        f"{name}: backend gloo, because SMDDP needs GPUs and the device is cpu."
    ]


@each
def test_smddp_is_joined_without_a_device(in_environ, monkeypatch, lines, name):
    # Lightning since 2.5.5 passes a `device_id`, which nobody documents for SMDDP.
    joined = []
    monkeypatch.setitem(sys.modules, _MODULE, types.ModuleType("smddp"))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **kwargs: joined.append((args, kwargs)))
    monkeypatch.setattr(mixin, "replace_infinite_barrier", lambda namespace: None)
    monkeypatch.setenv("SMDATAPARALLEL_OPTIMIZE_SDP", "")
    monkeypatch.delenv("SMDATAPARALLEL_OPTIMIZE_SDP")
    in_environ(torchrun(1, 2, 0, 1, 1, MASTER_ADDR="127.0.0.1", MASTER_PORT=1234))
    strategy = strategy_of(_trainer(strategy=_strategy(name, process_group_backend="smddp")))
    strategy._prepare_group()
    (((backend,), arguments),) = joined
    assert (backend, arguments["rank"], arguments["world_size"]) == ("smddp", 1, 2)
    assert "device_id" not in arguments
    # What switches AllGather on under mpirun.
    assert os.environ.get("SMDATAPARALLEL_OPTIMIZE_SDP") == (None if name == "SMDDPStrategy" else "true")
    assert not any("backend" in line for line in lines), "rank 0 says which it is"
    strategy.cluster_environment.teardown()


@each_sharded
def test_a_library_that_was_imported_without_all_gather_under_mpirun(in_environ, monkeypatch, name):
    monkeypatch.setitem(sys.modules, _MODULE, types.ModuleType("smddp"))
    in_environ(mpirun(0, 2, 0, 2))
    trainer = _trainer(strategy=_strategy(name, process_group_backend="smddp"))
    with pytest.raises(SMDDPUnavailableError, match="was imported before SMDATAPARALLEL_OPTIMIZE_SDP=true was set"):
        trainer.fit(tiny_model(_NAMESPACE.module()), loader())


@needs_fsdp2
def test_fsdp2_on_a_torch_that_reduces_by_a_mean_only(in_environ, monkeypatch):
    monkeypatch.setattr(sharded, "_fsdp_module", lambda: type("FSDPModule", (), {}))
    in_environ(torchrun(0, 2, 0, 2, 0))
    strategy = _trainer(strategy=_strategy(_MODEL_PARALLEL, process_group_backend="smddp")).strategy
    with pytest.raises(SMDDPUnavailableError, match=r"FSDP2 reduces gradients by ReduceOp.AVG, which SMDDP lacks"):
        strategy._prepare_group()


# --- sharded strategies


@needs_fsdp2
def test_processes_of_a_tensor_parallel_group_read_the_same_part(in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1))
    strategy = _trainer(strategy=_strategy(_MODEL_PARALLEL, tensor_parallel_size=2)).strategy
    strategy._device_mesh = {"data_parallel": SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 1)}
    assert strategy.distributed_sampler_kwargs == {"num_replicas": 2, "rank": 1}


@needs_fsdp2
@pytest.mark.parametrize(
    ("data", "tensor", "resolved"),
    [("auto", 1, 4), ("auto", 2, 2), ("auto", "auto", "auto"), (2, "auto", 2)],  # of the rest Lightning asks hosts
)
def test_sizes_of_the_mesh(in_environ, monkeypatch, data, tensor, resolved):
    in_environ(torchrun(3, 4, 1, 2, 1))
    strategy = _strategy(_MODEL_PARALLEL, data_parallel_size=data, tensor_parallel_size=tensor)
    strategy = _trainer(strategy=strategy).strategy
    base = strategy_class(_NAMESPACE, _MODEL_PARALLEL).__bases__[1]
    monkeypatch.setattr(base, "setup_environment", lambda self: None)
    strategy.setup_environment()
    assert (strategy._data_parallel_size, strategy._tensor_parallel_size) == (resolved, tensor)


@pytest.mark.parametrize(
    ("name", "version", "needed", "namespace"),
    [
        ("SMDDPFSDPStrategy", (1, 9), "2.1", "pytorch_lightning"),
        (_MODEL_PARALLEL, (2, 2), "2.3", "pytorch_lightning"),
        ("SMDDPDeepSpeedStrategy", (1, 5), "2.1", "pytorch_lightning"),
        ("TorchrunXLAStrategy", (1, 9), "2.1", "pytorch_lightning"),
        ("SMDDPStrategy", (2, 0), "2.1", "lightning_fabric"),
    ],
)
def test_a_lightning_without_it_says_so_when_it_is_used(monkeypatch, name, version, needed, namespace):
    monkeypatch.setattr(namespaces, "_version", lambda namespace: version)
    says = rf"{name} needs Lightning {needed} or newer, and {namespace} {version[0]}.{version[1]} is .* HINT: "
    cls: Any = strategy_class(Namespace(namespace), name)
    with pytest.raises(StrategyUnavailableError, match=says):
        cls()
