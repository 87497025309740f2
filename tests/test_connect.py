"""What a fresh program sees, in both orders of import and in both namespaces."""

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.fresh import run_fresh

_NAMES = [namespace.name for namespace in installed_namespaces()]
_LOOK = """
from importlib import import_module
from lightning_sm import SMDDPStrategy, SageMakerEnvironment
from lightning_sm._lightning import NAMESPACES
from lightning_sm._lightning._rank_zero import _MODULES
from lightning_sm._lightning._shims import ddp_base_path, strategy_of
namespace = next(entry for entry in NAMESPACES if entry.name == pl.__name__)
module, base = ddp_base_path(namespace).split(":")
for name in ("smddp", "smddp_find_unused_parameters_false", "smddp_find_unused_parameters_true"):
    trainer = pl.Trainer(accelerator="cpu", devices=1, strategy=name, logger=False, enable_checkpointing=False)
    strategy = strategy_of(trainer)
    say(isinstance(strategy, getattr(namespace.module(module), base)), isinstance(strategy, SMDDPStrategy))
say(issubclass(SageMakerEnvironment, namespace.module("plugins.environments").ClusterEnvironment))
say(sorted({module.rank_zero_only.rank for name in _MODULES for module in [sys.modules.get(name)] if module
    and hasattr(getattr(module, "rank_zero_only", None), "rank")}))
"""
_ORDERS = {
    "ours_first": "import lightning_sm\nimport {0} as pl\n",
    "lightning_first": "from {0} import Trainer\nimport {0} as pl\nimport lightning_sm\n",
}


@pytest.mark.parametrize("order", list(_ORDERS))
@pytest.mark.parametrize("name", _NAMES)
def test_names_are_known_in_either_order(name, order):
    said = run_fresh(
        "import sys\n" + _ORDERS[order].format(name) + _LOOK, **mpirun(1, 2, 0, 1, MASTER_ADDR="127.0.0.1")
    )
    assert said == [[True, True]] * 3 + [[True], [[1]]]


@pytest.mark.skipif(len(_NAMES) < 2, reason="needs both of Lightning's namespaces")
def test_both_namespaces_in_one_program():
    said = run_fresh(
        """
        import lightning.pytorch
        import lightning_sm
        import pytorch_lightning
        for pl in (lightning.pytorch, pytorch_lightning):
            trainer = pl.Trainer(accelerator="cpu", devices=1, strategy="smddp", logger=False)
            say(isinstance(trainer.strategy, pl.strategies.DDPStrategy), type(trainer.strategy).__name__)
        """
    )
    assert said == [[True, "SMDDPStrategy"], [True, "SMDDPStrategy"]]


def test_broken_topology_does_not_keep_lightning_from_being_imported():
    code = f"""
    import lightning_sm
    import {_NAMES[0]} as pl
    say(hasattr(pl, "Trainer"))
    try:
        lightning_sm.SMDDPStrategy()
    except lightning_sm.errors.TopologyError as error:
        say(str(error).splitlines())
    """
    said = run_fresh("import lightning_sm.errors\n" + code.replace("\n    ", "\n"), **torchrun(5, 4, 1, 2, 1))
    assert said[0] == [True]
    assert "global_rank is 5 by RANK, but world_size is 4 by WORLD_SIZE" in said[1][0][0]


def test_nothing_changes_on_a_laptop():
    said = run_fresh(
        f"""
        import lightning_sm
        import {_NAMES[0]} as pl
        from lightning_sm._lightning._shims import strategy_of
        strategy = strategy_of(pl.Trainer(accelerator="cpu", strategy="ddp", devices=1, logger=False))
        say(type(strategy).__module__.split(".")[0], type(strategy.cluster_environment).__name__)
        """
    )
    assert said == [[_NAMES[0].split(".")[0], "LightningEnvironment"]]
