"""``SMDDPStrategy`` in one process; tests with several are in ``tests/processes``."""

import sys
import types

import pytest
import torch

from lightning_sm import SageMakerEnvironment
from lightning_sm._distributed import mixin
from lightning_sm._distributed.smddp import smddp_strategy_class
from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._logging import log
from lightning_sm.errors import SMDDPUnavailableError, TopologyError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.tiny import loader, tiny_model

_NAMESPACE = installed_namespaces()[0]
_BASE = smddp_strategy_class(_NAMESPACE).__bases__[1]


def _strategy(**arguments):
    return smddp_strategy_class(_NAMESPACE)(**arguments)


def _trainer(**arguments):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return _NAMESPACE.module().Trainer(accelerator="cpu", **{**quiet, **arguments})


def _backend(strategy):
    # Lightning 1.5 asks by another name.
    asks = hasattr(_BASE, "_get_process_group_backend")
    return strategy._get_process_group_backend() if asks else strategy.torch_distributed_backend


def _devices(trainer):
    return len(strategy_of(trainer).parallel_devices)


def test_on_a_laptop_it_leaves_everything_to_lightning():
    trainer = _trainer(strategy=_strategy(), devices=3)
    assert type(strategy_of(trainer).cluster_environment).__name__ == "LightningEnvironment"
    assert (strategy_of(trainer).num_nodes, _devices(trainer), trainer.world_size) == (1, 3, 3)


@pytest.mark.parametrize("variables", [torchrun(3, 4, 1, 2, 1), mpirun(3, 4, 1, 2)], ids=["torchrun", "mpirun"])
def test_takes_the_launchers_world(in_environ, variables):
    in_environ(variables)
    trainer = _trainer(strategy=_strategy())
    assert isinstance(strategy_of(trainer).cluster_environment, SageMakerEnvironment)
    assert (strategy_of(trainer).num_nodes, _devices(trainer), trainer.world_size) == (2, 2, 4)
    assert (trainer.global_rank, trainer.local_rank, trainer.node_rank) == (3, 1, 1)
    assert strategy_of(trainer).distributed_sampler_kwargs == {"num_replicas": 4, "rank": 3}


def test_takes_the_number_of_hosts_where_lightning_starts_the_processes(in_environ, opt_ml):
    in_environ(opt_ml.host("algo-2", "algo-1", "algo-2").environ())
    trainer = _trainer(strategy=_strategy(), devices=2)
    assert (strategy_of(trainer).num_nodes, _devices(trainer), trainer.world_size) == (2, 2, 4)
    assert (trainer.node_rank, trainer.global_rank) == (1, 2)
    assert strategy_of(trainer).distributed_sampler_kwargs == {"num_replicas": 4, "rank": 2}


def test_hosts_with_unequal_numbers_count_the_launchers_world(in_environ):
    in_environ(torchrun(3, 4, 0, 1, 1, nodes=2))
    trainer = _trainer(strategy=_strategy())
    assert strategy_of(trainer).distributed_sampler_kwargs == {"num_replicas": 4, "rank": 3}
    assert (trainer.world_size, strategy_of(trainer).num_nodes, _devices(trainer)) == (4, 2, 1)


def test_an_environment_of_the_users_own_decides(in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1))
    environment = _NAMESPACE.module("plugins.environments").LightningEnvironment()
    assert _strategy(cluster_environment=environment).cluster_environment is environment


def test_num_nodes_that_is_not_the_launchers(in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1))
    with pytest.raises(TopologyError, match=r"Trainer\(num_nodes=3\), but the job has this world.*HINT: Leave num"):
        _trainer(strategy=_strategy(), num_nodes=3)


def test_broken_topology_is_told_when_the_strategy_is_made(in_environ):
    in_environ(torchrun(4, 4, 1, 2, 1))
    with pytest.raises(TopologyError, match="global_rank is 4"):
        _strategy()


def test_smddp_by_name_without_the_library_is_told_in_fit(in_environ, monkeypatch):
    monkeypatch.setitem(sys.modules, "smdistributed.dataparallel.torch.torch_smddp", None)
    in_environ(torchrun(0, 1, 0, 1, 0, MASTER_ADDR="127.0.0.1"))
    trainer = _trainer(strategy=_strategy(process_group_backend="smddp"))
    with pytest.raises(SMDDPUnavailableError, match="unknown"):
        trainer.fit(tiny_model(_NAMESPACE.module()), loader(), loader())


@pytest.mark.parametrize("launcher", [torchrun, mpirun])
def test_the_environment_stays_that_of_the_job_also_by_name(in_environ, launcher):
    variables = launcher(0, 1, 0, 1, 0) if launcher is torchrun else launcher(0, 1, 0, 1)
    in_environ(variables)
    for strategy in ("smddp", _strategy()):
        assert isinstance(strategy_of(_trainer(strategy=strategy)).cluster_environment, SageMakerEnvironment)


def test_the_backend_and_its_reason_are_one_line_of_rank_zero(in_environ, opt_ml, monkeypatch):
    told = []
    monkeypatch.setattr(log, "info", lambda *args: told.append(args[0] % args[1:]))
    monkeypatch.setattr(_BASE, "setup_distributed", lambda self: None)
    opt_ml.host("algo-1").hyperparameters(sagemaker_distributed_dataparallel_enabled=True)
    for rank in (0, 1):
        in_environ(opt_ml.environ(**torchrun(rank, 2, rank, 2, 0, MASTER_ADDR="127.0.0.1")))
        strategy_of(_trainer(strategy=_strategy())).setup_distributed()
    assert told == ["SMDDPStrategy: backend gloo, because SMDDP needs GPUs and the device is cpu."]


def test_backend_of_the_users_choice_reaches_lightning(in_environ, monkeypatch):
    chosen = []
    base = _BASE
    monkeypatch.setattr(base, "setup_distributed", lambda self: chosen.append(_backend(self)))
    in_environ(torchrun(0, 1, 0, 1, 0))
    for backend in ("gloo", None, "nccl"):
        strategy_of(_trainer(strategy=_strategy(process_group_backend=backend))).setup_distributed()
    assert chosen == ["gloo", "gloo", "nccl"]


def test_smddp_is_joined_without_a_device(in_environ, monkeypatch):
    # Lightning since 2.5.5 hands over a `device_id`, which nobody documents for SMDDP.
    joined = []
    monkeypatch.setitem(sys.modules, "smdistributed.dataparallel.torch.torch_smddp", types.ModuleType("smddp"))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **kwargs: joined.append((args, kwargs)))
    monkeypatch.setattr(_BASE, "setup_distributed", lambda self: None)
    monkeypatch.setattr(mixin, "replace_infinite_barrier", lambda namespace: None)
    in_environ(torchrun(1, 2, 0, 1, 1, MASTER_ADDR="127.0.0.1", MASTER_PORT=1234))
    strategy_of(_trainer(strategy=_strategy(process_group_backend="smddp"))).setup_distributed()
    ((name,), arguments) = joined[0]
    assert (name, arguments["rank"], arguments["world_size"]) == ("smddp", 1, 2)
    assert "device_id" not in arguments


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_a_backend_that_was_asked_for_shows_before_setup(namespace):
    assert smddp_strategy_class(namespace)(process_group_backend="gloo")._process_group_backend == "gloo"
