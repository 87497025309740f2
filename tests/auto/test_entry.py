"""What the entry points cost in programs that are no job's, and what they are called."""

import importlib.metadata

import pytest

from lightning_sm._lightning import installed_namespaces
from tests.helpers.fresh import run_fresh
from tests.helpers.opt_ml import OptMl

_GROUPS = ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")
_TRAINER = """
    import sys
    import {name} as pl
    trainer = pl.Trainer(logger=False, enable_checkpointing=False)
    finders = [type(each).__name__ for each in sys.meta_path if type(each).__module__ == "lightning_sm_entry"]
    say([name for name in sys.modules if name.startswith("lightning_sm.")], finders)
"""


def test_each_group_of_lightning_and_torch_has_an_entry_point():
    files = importlib.metadata.distribution("lightning-sm").entry_points
    found = {each.group: each.load() for each in files}
    assert all(f"{name}.callbacks_factory" in found for name in _GROUPS)
    assert found["torch.backends"].__name__ == "torch_imported"


@pytest.mark.full
def test_outside_a_job_nothing_of_the_package_is_imported(tmp_path):
    name = installed_namespaces()[0].name
    variables = {"LIGHTNING_SM_AUTO": "1", "SAGEMAKER_BASE_DIR": str(tmp_path)}
    assert run_fresh(_TRAINER.format(name=name), **variables) == [[[], []]]


@pytest.mark.full
@pytest.mark.parametrize(("variables", "protects"), [({}, True), ({"LIGHTNING_SM_AUTO": "0"}, False)])
def test_in_a_job_the_package_is_imported_with_the_first_trainer(tmp_path, variables, protects):
    name = installed_namespaces()[0].name
    job = OptMl(tmp_path / "opt-ml").host("algo-1").environ(**variables)
    (modules, finders), *_ = run_fresh(_TRAINER.format(name=name), **job)
    assert ("lightning_sm._auto" in modules) is protects
    assert finders == []


def test_the_entry_points_import_nothing_but_what_each_program_has():
    code = """
    import sys
    import functools, types, typing
    before = set(sys.modules)
    import lightning_sm_entry
    lightning_sm_entry.torch_imported()
    lightning_sm_entry.lightning_callbacks()
    say(sorted(set(sys.modules) - before))
    """
    assert run_fresh(code, SAGEMAKER_BASE_DIR="/nowhere") == [[["lightning_sm_entry"]]]
