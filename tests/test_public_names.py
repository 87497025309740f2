"""What ``dir``, ``hasattr`` and ``inspect.signature`` say, with no, one and both namespaces of Lightning."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import lightning_sm
from lightning_sm import errors
from lightning_sm._lightning import installed_namespaces
from tests.helpers.fresh import run_fresh

_STRATEGIES = (
    "SMDDPDeepSpeedStrategy",
    "SMDDPFSDPStrategy",
    "SMDDPModelParallelStrategy",
    "SMDDPPlugin",
    "SMDDPStrategy",
    "SMPFSDPStrategy",
    "SMPStrategy",
    "TorchrunXLAStrategy",
)
_NEED_LIGHTNING = ("ModelExport", *_STRATEGIES, "SageMakerCLI")
_NAMES = [namespace.name for namespace in installed_namespaces()]


@pytest.mark.parametrize(
    "module", ["lightning_sm", "lightning_sm.cli", "lightning_sm.strategies", "lightning_sm.errors"]
)
def test_dir_shows_the_public_names_and_nothing_else(module):
    found = importlib.import_module(module)
    assert dir(found) == sorted(found.__all__)
    assert all(getattr(found, name) is not None for name in dir(found))


def test_every_error_is_listed():
    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert defined == set(errors.__all__)


def test_strategies_hold_strategies_only():
    assert dir(importlib.import_module("lightning_sm.strategies")) == list(_STRATEGIES)


@pytest.mark.parametrize("module", ["lightning_sm", "lightning_sm.strategies"])
@pytest.mark.parametrize(
    "access", ["import {0}; {0}.SMDDPStrategy", "from {0} import SMDDPStrategy", "from {0} import *"]
)
def test_without_lightning_the_error_says_so_and_other_names_work(module, access):
    said = run_fresh(
        f"""
import sys
sys.modules.update(dict.fromkeys(["lightning", "pytorch_lightning"]))
import lightning_sm.cli, lightning_sm.callbacks, lightning_sm.strategies
try:
    exec({access.format(module)!r}, {{}})
except ImportError as found:
    say(type(found).__name__, str(found))
say(*(getattr(lightning_sm, name) is None for name in dir(lightning_sm) if name not in {_NEED_LIGHTNING}))
"""
    )
    (name, text), others = said
    assert name == "LightningImportError"
    assert " of lightning_sm needs Lightning. Neither pytorch_lightning nor lightning.pytorch is installed." in text
    assert "HINT: Add pytorch-lightning to the requirements.txt beside your script. (https://" in text
    assert text.endswith("#lightningimporterror)")
    assert not any(others)


def test_in_an_interpreter_without_any_package():
    code = "import lightning_sm as sm\nprint(sm.TrainingJob.resolve({}).in_container, len(dir(sm.errors)) > 10)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=Path(lightning_sm.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "False True"), done.stderr


def test_a_lightning_whose_import_fails(tmp_path):
    (tmp_path / "pytorch_lightning").mkdir()
    (tmp_path / "pytorch_lightning" / "__init__.py").write_text("import a_package_that_is_missing")
    said = run_fresh(
        f"""
        import sys
        sys.modules["lightning"] = None
        sys.path.insert(0, {str(tmp_path)!r})
        try:
            from lightning_sm import SMDDPStrategy
        except ImportError as error:
            say(type(error).__name__, str(error))
        """
    )
    assert said[0][0] == "LightningImportError"
    assert "Importing Lightning failed: No module named 'a_package_that_is_missing'" in said[0][1]


@pytest.mark.parametrize(
    "loaded",
    [[], *(pytest.param(names, marks=pytest.mark.full) for names in [_NAMES])],
    ids=lambda names: "+".join(names),
)
def test_signatures_are_those_of_the_classes(loaded):
    said = run_fresh(
        f"""
        import importlib, inspect, sys
        import lightning_sm
        for name in {loaded}:
            importlib.import_module(name)
        say({{name: str(inspect.signature(getattr(lightning_sm, name))) for name in {_NEED_LIGHTNING}}})
        """
    )
    ((found,),) = said
    installed_namespaces()[0].module()
    assert found == {name: str(inspect.signature(getattr(lightning_sm, name))) for name in _NEED_LIGHTNING}
    assert found["SMDDPStrategy"].startswith("(process_group_backend: ")
    assert "ignore_hyperparameters" in found["SageMakerCLI"]
    assert found["ModelExport"].startswith("(model_dir: ")
