"""What a fresh program sees, in both orders of import and in both namespaces."""

import os
import sys
import textwrap

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.environ import mpirun, torchrun
from tests.helpers.fresh import run_fresh

_NAMES = [namespace.name for namespace in installed_namespaces()]
_LOOK = """
from importlib import import_module
from lightning_sm._distributed.registry import strategy_class
from lightning_sm._lightning import NAMESPACES
from lightning_sm._lightning.legacy import strategy_of, strategy_path
from lightning_sm._lightning.namespaces import RANK_ZERO_MODULES
namespace = next(entry for entry in NAMESPACES if entry.name == pl.__name__)
module, base = strategy_path(namespace, "DDP").split(":")
for name in ("smddp", "smddp_find_unused_parameters_false", "smddp_find_unused_parameters_true"):
    trainer = pl.Trainer(accelerator="cpu", devices=1, strategy=name, logger=False, enable_checkpointing=False)
    strategy = strategy_of(trainer)
    is_ours = type(strategy) is strategy_class(namespace, "SMDDPStrategy")
    say(isinstance(strategy, getattr(namespace.module(module), base)), is_ours)
environment = strategy.cluster_environment
say(isinstance(environment, namespace.module("plugins.environments").ClusterEnvironment), type(environment).__name__)
say(sorted({module.rank_zero_only.rank for name in RANK_ZERO_MODULES for module in [sys.modules.get(name)] if module
    and hasattr(getattr(module, "rank_zero_only", None), "rank")}))
"""
_ORDERS = {
    "ours_first": "import lightning_sm\nimport {0} as pl\n",
    "lightning_first": "from {0} import Trainer\nimport {0} as pl\nimport lightning_sm\n",
}


# With both namespaces one program has one of each before and after ours.
_PROGRAMS = (
    [[("lightning_first", _NAMES[0]), ("ours_first", _NAMES[1])]]
    if len(_NAMES) > 1
    else [[(order, _NAMES[0])] for order in _ORDERS]
)


@pytest.mark.full
@pytest.mark.parametrize("program", _PROGRAMS, ids=str)
def test_names_are_known_in_either_order(program):
    imports = "".join(_ORDERS[order].format(name) for order, name in program)
    looks = "".join(f"import {name} as pl{_LOOK}" for _, name in program)
    said = run_fresh(f"import sys\n{imports}{looks}", **mpirun(1, 2, 0, 1, MASTER_ADDR="127.0.0.1"))
    assert said == ([[True, True]] * 3 + [[True, "SageMakerEnvironment"], [[1]]]) * len(program)


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


_USE = """
import lightning_sm.errors
for use in (
    lambda: lightning_sm.SMDDPStrategy, lambda: lightning_sm.SageMakerEnvironment(),
    lambda: lightning_sm.trainer_settings(max_epochs=1), lambda: lightning_sm.SageMakerCLI,
):
    try:
        use()
        say(None)
    except lightning_sm.errors.LightningSMError as error:
        say(str(error))
"""


@pytest.mark.full
def test_a_lightning_without_the_registry_that_we_know():
    said = run_fresh(
        f"""
        import {_NAMES[0]} as pl
        from importlib import import_module
        for place in ("plugins", "strategies"):
            for name in ("TrainingTypePluginsRegistry", "StrategyRegistry"):
                vars(import_module("{_NAMES[0]}." + place)).pop(name, None) if place in dir(pl) else None
        import lightning_sm
        say(hasattr(pl.Trainer, "fit"))
        """
        + textwrap.indent(_USE, " " * 8)
    )
    assert said[0] == [True]
    for (line,) in said[1:]:
        assert f"lightning_sm does not support this release of {_NAMES[0]}: " in line
        assert "Registry" in line
        assert "HINT: Install a release of Lightning" in line


def test_a_lightning_of_the_future(tmp_path):
    (tmp_path / "pytorch_lightning").mkdir()
    (tmp_path / "pytorch_lightning" / "__init__.py").write_text("__version__ = '2.7rc1'")
    code = "import lightning_sm\nimport pytorch_lightning\nsay(pytorch_lightning.__version__)\n"
    said = run_fresh(code + _USE, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert said[0] == ["2.7rc1"]
    assert all("ModuleNotFoundError" in line for (line,) in said[1:])
