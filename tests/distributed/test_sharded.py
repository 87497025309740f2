"""The sharded strategies in one process; they train in ``tests/sharded``."""

import importlib.util
import os
import sys
import types
from types import SimpleNamespace

import pytest
import torch

import lightning_sm
from lightning_sm import SageMakerEnvironment, Topology
from lightning_sm._distributed import mixin, sharded
from lightning_sm._distributed.sharded import SHARDED, register_sharded, sharded_class
from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.compat_strategies import SHARDED_BASES, sharded_base_path
from lightning_sm._logging import log
from lightning_sm.errors import SMDDPUnavailableError, StrategyUnavailableError, TopologyError
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.fresh import run_fresh
from tests.helpers.sharded import cpu_class

_NAMESPACE = installed_namespaces()[0]
_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_HERE = [
    name
    for name, (technique, _) in SHARDED.items()
    if _NAMESPACE.version >= SHARDED_BASES[technique].lightning
    and SHARDED_BASES[technique].torch <= _TORCH
    and (technique != "DeepSpeed" or importlib.util.find_spec("deepspeed"))
]
_NAMES = {
    "smddp_fsdp": "SMDDPFSDPStrategy",
    "smddp_fsdp2": "SMDDPModelParallelStrategy",
    "smddp_deepspeed": "SMDDPDeepSpeedStrategy",
    "smddp_deepspeed_stage_3": "SMDDPDeepSpeedStrategy",
}
needs_fsdp2 = pytest.mark.skipif("SMDDPModelParallelStrategy" not in _HERE, reason="Lightning or torch has no FSDP2")
each = pytest.mark.parametrize("name", _HERE)
each_launcher = pytest.mark.parametrize(
    "variables", [torchrun(3, 4, 1, 2, 1), mpirun(3, 4, 1, 2)], ids=["torchrun", "mpirun"]
)


def _strategy(name, **arguments):
    return cpu_class(sharded_class(_NAMESPACE, name))(**arguments)


def _nothing(*args):
    pass


def _unset(monkeypatch, *names):
    """Unset variables that are set during the test, which restores them."""
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def _trainer(**arguments):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 1}
    return _NAMESPACE.module().Trainer(accelerator="cpu", **{**quiet, **arguments})


@each
@each_launcher
def test_takes_the_launchers_world(in_environ, variables, name):
    in_environ(variables)
    trainer = _trainer(strategy=_strategy(name))
    assert isinstance(trainer.strategy.cluster_environment, SageMakerEnvironment)
    assert (trainer.strategy.num_nodes, len(trainer.strategy.parallel_devices), trainer.world_size) == (2, 2, 4)
    assert (trainer.global_rank, trainer.local_rank, trainer.node_rank) == (3, 1, 1)


@each
def test_takes_the_number_of_hosts_where_lightning_starts_the_processes(in_environ, opt_ml, name):
    in_environ(opt_ml.host("algo-2", "algo-1", "algo-2").environ())
    trainer = _trainer(strategy=_strategy(name), devices=2)
    assert (trainer.strategy.num_nodes, trainer.strategy.num_processes, trainer.world_size) == (2, 2, 4)
    assert (trainer.node_rank, trainer.global_rank) == (1, 2)


@each
def test_num_nodes_that_is_not_the_launchers(in_environ, name):
    in_environ(torchrun(3, 4, 1, 2, 1))
    with pytest.raises(TopologyError, match=r"Trainer\(num_nodes=3\), but the job has this world.*HINT: Leave num"):
        _trainer(strategy=_strategy(name), num_nodes=3)


@each
def test_on_a_laptop_it_leaves_everything_to_lightning(name):
    trainer = _trainer(strategy=_strategy(name), devices=3)
    assert type(trainer.strategy.cluster_environment).__name__ == "LightningEnvironment"
    assert (trainer.strategy.num_nodes, trainer.strategy.num_processes, trainer.world_size) == (1, 3, 3)


@pytest.mark.parametrize("name", [name for name in _HERE if name != "SMDDPModelParallelStrategy"])
def test_each_process_reads_its_part_also_on_unequal_hosts(in_environ, name):
    in_environ(torchrun(3, 4, 0, 1, 1, nodes=2))
    assert _trainer(strategy=_strategy(name)).strategy.distributed_sampler_kwargs == {"num_replicas": 4, "rank": 3}


@needs_fsdp2
def test_processes_of_a_tensor_parallel_group_read_the_same_part(in_environ):
    in_environ(torchrun(3, 4, 1, 2, 1))
    strategy = _trainer(strategy=_strategy("SMDDPModelParallelStrategy", tensor_parallel_size=2)).strategy
    mesh = SimpleNamespace(size=lambda: 2, get_local_rank=lambda: 1)
    strategy._device_mesh = {"data_parallel": mesh}
    assert strategy.distributed_sampler_kwargs == {"num_replicas": 2, "rank": 1}


@needs_fsdp2
@pytest.mark.parametrize(
    ("sizes", "resolved"),
    [
        ({"tensor_parallel_size": 1}, (4, 1)),
        ({"tensor_parallel_size": 2}, (2, 2)),
        ({"tensor_parallel_size": 4}, (1, 4)),
        ({}, (2, 2)),
        ({"data_parallel_size": 2}, (2, 2)),
        ({"data_parallel_size": 4, "tensor_parallel_size": 1}, (4, 1)),
    ],
)
def test_sizes_of_the_mesh(in_environ, monkeypatch, sizes, resolved):
    in_environ(torchrun(3, 4, 1, 2, 1))
    strategy = _trainer(strategy=_strategy("SMDDPModelParallelStrategy", **sizes)).strategy
    monkeypatch.setattr(
        sharded_class(_NAMESPACE, "SMDDPModelParallelStrategy").__bases__[1], "setup_environment", _nothing
    )
    strategy.setup_environment()
    assert (strategy._data_parallel_size, strategy._tensor_parallel_size) == resolved


@needs_fsdp2
@pytest.mark.parametrize(
    "sizes",
    [{"tensor_parallel_size": 3}, {"data_parallel_size": 3}, {"data_parallel_size": 4, "tensor_parallel_size": 2}],
)
def test_sizes_that_do_not_divide_the_world(in_environ, sizes):
    in_environ(torchrun(3, 4, 1, 2, 1))
    strategy = _trainer(strategy=_strategy("SMDDPModelParallelStrategy", **sizes)).strategy
    with pytest.raises(TopologyError, match=r"do not divide the 4 processes of the world.*HINT: Set tensor_parallel"):
        strategy.setup_environment()


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
@pytest.mark.parametrize("name", [name for name, cls in _NAMES.items() if cls in _HERE])
def test_registered_names(namespace, name):
    register_sharded(namespace)
    trainer = namespace.module().Trainer(
        accelerator="cpu", devices=1, strategy=name, logger=False, enable_checkpointing=False
    )
    cls = sharded_class(namespace, _NAMES[name])
    assert type(trainer.strategy) is cls
    assert cls.__bases__[1].__module__.startswith(f"{namespace.name}.")
    if name == "smddp_fsdp2":
        found = vars(trainer.strategy)
        assert (found["_data_parallel_size"], found["_tensor_parallel_size"]) == ("auto", 1)
    if "deepspeed" in name:
        assert vars(trainer.strategy)["config"]["zero_optimization"]["stage"] == (3 if name.endswith("3") else 2)


@each
@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_public_classes_are_subclasses_of_lightnings(namespace, name):
    namespace.module()
    built = sharded_class(namespace, name)
    assert issubclass(built, built.__bases__[1])
    assert isinstance(getattr(lightning_sm, name), type)
    assert getattr(lightning_sm.strategies, name) is getattr(lightning_sm, name)


class _Older:
    """A namespace of an older Lightning, which has modules only to register in."""

    name = "pytorch_lightning"

    def __init__(self, version):
        self.version = version
        self.registered = {}

    def module(self, path=""):
        def register(name, cls, description, override, **arguments):
            self.registered[name] = lambda: cls(**arguments)

        registry = SimpleNamespace(register=register)
        return SimpleNamespace(TrainingTypePluginsRegistry=registry, StrategyRegistry=registry)


@pytest.mark.parametrize(
    ("version", "name", "needed"),
    [
        ((1, 5), "smddp_fsdp", "1.8"),
        ((1, 5), "smddp_fsdp2", "2.3"),
        ((1, 5), "smddp_deepspeed_stage_3", "1.6"),
    ],
)
def test_a_lightning_without_it_says_so_when_the_name_is_used(version, name, needed):
    namespace = _Older(version)
    register_sharded(namespace)
    says = rf"{_NAMES[name]} needs Lightning {needed} or newer, and pytorch_lightning 1.5 is installed. HINT: "
    with pytest.raises(StrategyUnavailableError, match=says):
        namespace.registered[name]()


@pytest.mark.parametrize(
    ("technique", "version", "path"),
    [
        ("FSDP", (1, 7), None),
        ("FSDP", (1, 8), "strategies:DDPFullyShardedNativeStrategy"),
        ("FSDP", (1, 9), "strategies:DDPFullyShardedNativeStrategy"),
        ("FSDP", (2, 0), "strategies:FSDPStrategy"),
        ("FSDP2", (2, 2), None),
        ("FSDP2", (2, 3), "strategies:ModelParallelStrategy"),
        ("DeepSpeed", (1, 5), None),
        ("DeepSpeed", (1, 6), "strategies:DeepSpeedStrategy"),
    ],
)
def test_lightnings_classes_by_version(technique, version, path):
    assert sharded_base_path(_Older(version), technique) == path


@needs_fsdp2
def test_a_torch_without_it(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    with pytest.raises(StrategyUnavailableError, match=r"SMDDPModelParallelStrategy needs torch 2\.4 or newer, and t"):
        _strategy("SMDDPModelParallelStrategy")


@pytest.mark.skipif(_NAMESPACE.version < (1, 6), reason="Lightning 1.5 has no DeepSpeedStrategy")
def test_deepspeed_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StrategyUnavailableError, match=r"needs the package deepspeed, which is not installed\. HINT:"):
        sharded_class(_NAMESPACE, "SMDDPDeepSpeedStrategy")()


@each
def test_smddp_is_joined_without_a_device_and_with_all_gather(in_environ, monkeypatch, name):
    joined = []
    monkeypatch.setitem(sys.modules, _MODULE, types.ModuleType("smddp"))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **kwargs: joined.append((args, kwargs)))
    monkeypatch.setattr(mixin, "replace_infinite_barrier", lambda namespace: None)
    _unset(monkeypatch, "SMDATAPARALLEL_OPTIMIZE_SDP", "MASTER_ADDR", "MASTER_PORT")
    in_environ(torchrun(1, 2, 0, 1, 1, MASTER_ADDR="127.0.0.1", MASTER_PORT=1234))
    strategy = _trainer(strategy=_strategy(name, process_group_backend="smddp")).strategy
    said = []
    monkeypatch.setattr(log, "info", lambda *args: said.append(args[0] % args[1:]))
    strategy._prepare_group()
    (((backend,), arguments),) = joined
    assert (backend, arguments["rank"], arguments["world_size"]) == ("smddp", 1, 2)
    assert "device_id" not in arguments
    assert os.environ["SMDATAPARALLEL_OPTIMIZE_SDP"] == "true"
    assert strategy._get_process_group_backend() == "smddp"
    # Rank 0 says which backend it is.
    assert not any("backend" in line for line in said)
    strategy.cluster_environment.teardown()


@each
def test_the_line_about_the_backend_names_the_class(in_environ, monkeypatch, name):
    said = []
    monkeypatch.setattr(log, "info", lambda *args: said.append(args[0] % args[1:]))
    in_environ(torchrun(0, 2, 0, 2, 0, MASTER_ADDR="127.0.0.1"))
    _trainer(strategy=_strategy(name)).strategy._prepare_group()
    assert said[-1] == f"{name}: backend gloo, because this is not a SageMaker training container."


@each
def test_a_library_that_was_imported_without_all_gather_under_mpirun(in_environ, monkeypatch, name):
    monkeypatch.setitem(sys.modules, _MODULE, types.ModuleType("smddp"))
    monkeypatch.delenv("SMDATAPARALLEL_OPTIMIZE_SDP", raising=False)
    in_environ(mpirun(0, 2, 0, 2))
    strategy = _trainer(strategy=_strategy(name, process_group_backend="smddp")).strategy
    with pytest.raises(SMDDPUnavailableError, match="was imported before SMDATAPARALLEL_OPTIMIZE_SDP=true was set"):
        strategy._prepare_group()


@needs_fsdp2
def test_fsdp2_on_a_torch_that_reduces_by_a_mean_only(in_environ, monkeypatch):
    monkeypatch.setattr(sharded, "_fsdp_module", lambda: type("FSDPModule", (), {}))
    in_environ(torchrun(0, 2, 0, 2, 0))
    strategy = _trainer(strategy=_strategy("SMDDPModelParallelStrategy", process_group_backend="smddp")).strategy
    with pytest.raises(SMDDPUnavailableError, match=r"FSDP2 reduces gradients by ReduceOp.AVG, which SMDDP lacks"):
        strategy._prepare_group()


@pytest.mark.sharded
@pytest.mark.skipif("SMDDPDeepSpeedStrategy" not in _HERE, reason="DeepSpeed is not installed")
@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "none"])
def test_what_deepspeed_writes_into_the_environment_is_the_same_world(in_environ, opt_ml, monkeypatch, launcher):
    _unset(monkeypatch, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    variables = {
        "torchrun": torchrun(3, 4, 1, 2, 1, MASTER_ADDR="127.0.0.1"),
        "mpirun": {**mpirun(3, 4, 1, 2), "MASTER_ADDR": "127.0.0.1"},
        "none": {"LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"},
    }[launcher]
    in_environ(opt_ml.host("algo-2", "algo-1", "algo-2").environ(**variables))
    strategy = _trainer(strategy=_strategy("SMDDPDeepSpeedStrategy"), devices=2).strategy
    strategy._set_node_environment_variables()
    after = Topology.resolve()
    assert (after.global_rank, after.world_size, after.local_rank, after.local_world_size) == (3, 4, 1, 2)
    assert (after.node_rank, after.num_nodes) == (1, 2)


def test_importing_them_imports_no_torch():
    said = run_fresh(
        """
        import sys
        from lightning_sm import SMDDPDeepSpeedStrategy, SMDDPFSDPStrategy, SMDDPModelParallelStrategy
        say("torch" in sys.modules)
        """
    )
    assert said == [[len(installed_namespaces()) == 1]]
