"""Lightning's own sharded strategies in a job: they get its environment, as ``ddp`` does."""

import importlib.util

import pytest

from lightning_sm import SageMakerEnvironment, trainer_settings
from lightning_sm._lightning import SupportLevel, installed_namespaces, support_level
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.sharded import cpu_class, runs_here

_NAMESPACE = installed_namespaces()[0]
_RUNS = {
    "FSDPStrategy": runs_here("fsdp"),
    "ModelParallelStrategy": True,
    "DeepSpeedStrategy": importlib.util.find_spec("deepspeed") is not None,
}
_EPOCH = support_level(_NAMESPACE) > SupportLevel.CORE
_HERE = [name for name in _RUNS if _RUNS[name] and _EPOCH and hasattr(_NAMESPACE.module("strategies"), name)]


@pytest.mark.parametrize("name", _HERE)
@pytest.mark.parametrize(
    "variables",
    [torchrun(3, 4, 1, 2, 1, MASTER_ADDR="127.0.0.1"), {**mpirun(3, 4, 1, 2), "MASTER_ADDR": "127.0.0.1"}, {}],
    ids=["torchrun", "mpirun", "none"],
)
def test_objects_get_the_environment_of_the_job(in_environ, opt_ml, name, variables):
    in_environ(opt_ml.host("algo-2", "algo-1", "algo-2").environ(**variables))
    module = _NAMESPACE.module()
    given = {"accelerator": "cpu", "devices": 2, "logger": False, "enable_checkpointing": False}
    strategy = cpu_class(getattr(module.strategies, name))()
    strategy = module.Trainer(**trainer_settings(trainer_class=module.Trainer, strategy=strategy, **given)).strategy
    assert isinstance(strategy.cluster_environment, SageMakerEnvironment)
    assert (strategy.num_nodes, strategy.world_size, strategy.node_rank) == (2, 4, 1)
    assert strategy.global_rank == (3 if variables else 2)
