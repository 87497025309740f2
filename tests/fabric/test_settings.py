"""``fabric_settings``: what a Fabric is given under each launcher, and what ``fabric run`` and the program decide."""

import importlib.util

import pytest

import lightning_sm
from lightning_sm import SageMakerEnvironment
from lightning_sm._distributed.backend import BackendChoice
from lightning_sm._distributed.registry import FABRIC_STRATEGIES, strategy_class
from lightning_sm._lightning import FABRICS, choose_fabric
from lightning_sm.errors import StrategyUnavailableError, TopologyError
from tests.helpers.environ import torchrun

_NAMESPACES = [each for each in FABRICS if each.is_installed]
_WORLD = {"num_nodes": 2, "devices": 2, "strategy": "smddp"}
each_namespace = pytest.mark.parametrize("namespace", _NAMESPACES, ids=lambda namespace: namespace.name)


@pytest.fixture
def second_host(opt_ml, in_environ):
    """The first process of the second of two hosts, under torchrun in a job."""
    in_environ(opt_ml.host("algo-2", "algo-1", "algo-2").environ(SM_NUM_GPUS=0))
    in_environ(torchrun(2, 4, 0, 2, 1, MASTER_ADDR="algo-1", MASTER_PORT=7777))


@pytest.fixture
def fabric_run(in_environ):
    """Return a function that sets what ``fabric run`` sets."""

    def run(**arguments):
        in_environ({"LT_CLI_USED": "1", **{f"LT_{name.upper()}": str(value) for name, value in arguments.items()}})

    return run


def test_a_fabric_of_a_job_gets_its_world_and_what_the_program_sets(second_host):
    given = {"precision": "bf16-mixed"}
    assert lightning_sm.fabric_settings(**given) == {**_WORLD, "accelerator": "cpu", **given}
    found = lightning_sm.fabric_settings(strategy="ddp", accelerator="cpu")
    (environment,) = found.pop("plugins")
    assert found == {**_WORLD, "strategy": "ddp", "accelerator": "cpu"}
    assert isinstance(environment, SageMakerEnvironment)
    assert environment.global_rank() == 2
    with pytest.raises(TopologyError, match="sets num_nodes=3, but the job has this world"):
        lightning_sm.fabric_settings(num_nodes=3)


def test_on_a_laptop_nothing_is_added():
    assert lightning_sm.fabric_settings(devices=2) == {"devices": 2}


@each_namespace
def test_loggers_write_below_the_output_directory_or_to_a_url(second_host, opt_ml, namespace):
    loggers = [namespace.module("loggers").CSVLogger("logs")]
    if importlib.util.find_spec("tensorboard") is not None:
        loggers.append(namespace.module("loggers").TensorBoardLogger("memory://runs"))
    assert lightning_sm.fabric_settings(loggers=loggers)["loggers"] == loggers
    folders = [logger.root_dir for logger in loggers]
    assert folders == [str(opt_ml.base / "output" / "data"), "memory://runs"][: len(loggers)]


def test_what_fabric_run_was_told_is_left_to_it(second_host, fabric_run):
    fabric_run(devices=2, num_nodes=2, accelerator="cpu")
    assert lightning_sm.fabric_settings() == {"strategy": "smddp"}
    fabric_run(strategy="ddp", devices="auto")
    (environment,) = lightning_sm.fabric_settings()["plugins"]
    assert environment.global_rank() == 2
    fabric_run(devices=3)
    with pytest.raises(TopologyError, match="devices=3"):
        lightning_sm.fabric_settings()


def test_fabric_run_on_each_host_alone(opt_ml, in_environ, fabric_run):
    in_environ(opt_ml.host("algo-2", "algo-1", "algo-2").environ())
    in_environ(torchrun(0, 2, 0, 2, 0, nodes=1))
    fabric_run(devices=2, num_nodes=1)
    with pytest.raises(TopologyError, match=r"1 host\(s\), and the job has 2.*fabric run: --num-nodes, --node-rank"):
        lightning_sm.fabric_settings()


@each_namespace
@pytest.mark.parametrize("name", ["smddp", "smddp_find_unused_parameters_true", "smddp_fsdp"])
def test_the_registered_strategies_take_the_launchers_world(in_environ, namespace, name):
    in_environ(torchrun(3, 4, 1, 2, 1))
    registry = namespace.module("strategies").STRATEGY_REGISTRY
    strategy = registry.get(name)
    fabric = namespace.module().Fabric(accelerator="cpu", strategy=strategy)
    assert (strategy.num_nodes, strategy.num_processes, fabric.world_size, fabric.global_rank) == (2, 2, 4, 3)
    assert isinstance(strategy.cluster_environment, SageMakerEnvironment)
    assert strategy.distributed_sampler_kwargs == {"num_replicas": 4, "rank": 3}
    assert getattr(strategy, "_ddp_kwargs", {}).get("find_unused_parameters", False) == ("unused" in name)
    with pytest.raises(TopologyError, match="num_nodes=3"):
        namespace.module().Fabric(accelerator="cpu", strategy=registry.get(name), num_nodes=3)


def test_public_classes_are_those_of_the_fabric_in_use():
    from lightning_sm import fabric

    for name in FABRIC_STRATEGIES:
        assert getattr(fabric, name) in [strategy_class(each, name) for each in _NAMESPACES]
    assert choose_fabric(strategy_class(_NAMESPACES[-1], "SMDDPStrategy")) == _NAMESPACES[-1]
    assert strategy_class(_NAMESPACES[0], "SMDDPStrategy") is not lightning_sm.SMDDPStrategy


@each_namespace
@pytest.mark.parametrize("option", [{"gradient_compression": "bf16"}, {"local_steps": 4}])
def test_options_that_a_fabric_would_not_follow_are_refused(namespace, option):
    said = rf"for the Trainer of Lightning 2\.1 and newer, and this is a strategy of {namespace.name} .* HINT: Leave"
    with pytest.raises(StrategyUnavailableError, match=said):
        strategy_class(namespace, "SMDDPStrategy")(**option)
    assert strategy_class(namespace, "SMDDPStrategy")()._ddp_kwargs == {}


def test_means_over_smddp_are_a_sum_and_a_division(monkeypatch):
    import torch

    strategy = strategy_class(_NAMESPACES[-1], "SMDDPStrategy")()
    base = next(cls for cls in type(strategy).__mro__ if cls.__module__.startswith(_NAMESPACES[-1].name))
    asked = []
    monkeypatch.setattr(base, "all_reduce", lambda self, tensor, group, how: asked.append(how) or tensor * 4)
    strategy._choice = BackendChoice("smddp")
    monkeypatch.setattr(type(strategy), "world_size", 4)
    assert strategy.all_reduce(torch.tensor(3.0), reduce_op="mean") == 3
    assert asked == ["sum"]
