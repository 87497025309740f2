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
    from lightning_sm_entry import _CLASSES
    finders = [each.name for each in sys.meta_path if getattr(each, "name", None) in _CLASSES]
    say([name for name in sys.modules if name.startswith("lightning_sm.")], finders)
"""


def test_each_group_of_lightning_and_torch_has_an_entry_point():
    files = importlib.metadata.distribution("lightning-sm").entry_points
    found = {each.group: each.load() for each in files}
    assert all(f"{name}.callbacks_factory" in found for name in _GROUPS)
    assert found["torch.backends"].__name__ == "torch_imported"


@pytest.mark.full
@pytest.mark.parametrize(("variables", "protects"), [({}, True), ({"LIGHTNING_SM_AUTO": "0"}, False)])
def test_in_a_job_the_package_is_imported_with_the_first_trainer(tmp_path, variables, protects):
    name = installed_namespaces()[0].name
    job = OptMl(tmp_path / "opt-ml").host("algo-1").environ(**variables)
    (modules, finders), *_ = run_fresh(_TRAINER.format(name=name), **job)
    assert ("lightning_sm._auto" in modules) is protects
    assert finders == []


def test_outside_a_job_the_entry_points_wait_for_nothing_and_import_only_what_each_program_has():
    code = """
    import sys
    import functools, types, typing
    before, finders = set(sys.modules), list(sys.meta_path)
    import lightning_sm_entry
    lightning_sm_entry.torch_imported()
    lightning_sm_entry.lightning_callbacks()
    say(sorted(set(sys.modules) - before), sys.meta_path == finders)
    """
    assert run_fresh(code, SAGEMAKER_BASE_DIR="/nowhere", LIGHTNING_SM_AUTO="1") == [[["lightning_sm_entry"], True]]


_CHILDREN = """
    import os, subprocess, sys
    CHILD = "import os, lightning_sm_entry as entry; print(entry.is_helper({}))"
    def is_helper(how="", **changed):
        command = [sys.executable, "-c", CHILD.format(how)]
        done = subprocess.run(command, env={**os.environ, **changed}, capture_output=True)
        return done.stdout.decode().strip() == "True"
    # A script that starts the training.
    say(is_helper())
    import torch
    # A program with the line trains also behind a script that has imported torch.
    say(is_helper(), is_helper("guesses=False"))
    # torchrun's agent, also one for each process of mpirun, and Lightning, each of which starts ranks.
    say(is_helper(TORCHELASTIC_RUN_ID="x", RANK="0", LOCAL_RANK="0"), is_helper(LOCAL_RANK="1"))
    import lightning_sm_entry
    say(lightning_sm_entry.is_helper())
    # Lightning and DeepSpeed's strategy set them in the rank.
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")
    say(is_helper(), is_helper("guesses=False"), is_helper(LOCAL_RANK="1"), lightning_sm_entry.is_helper())
"""


@pytest.mark.parametrize(
    "variables",
    [{"SM_CURRENT_HOST": "algo-1"}, pytest.param({"OMPI_COMM_WORLD_RANK": "0"}, marks=pytest.mark.full)],
    ids=str,
)
def test_who_is_a_rank_and_who_is_started_by_one_for_something_else(variables):
    found = run_fresh(_CHILDREN, **variables)
    assert found == [[False], [True, False], [False, False], [False], [True, True, False, False]]
