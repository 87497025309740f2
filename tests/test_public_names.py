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
)
_NEED_LIGHTNING = ("ModelExport", *_STRATEGIES, "SageMakerCLI")
_NAMES = [namespace.name for namespace in installed_namespaces()]
_WITHOUT_LIGHTNING = "import sys\nsys.modules.update(dict.fromkeys(['lightning', 'pytorch_lightning']))\n"
# None of the installed packages, as in an image without Lightning.
_BARE = [sys.executable, "-S", "-c"]


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


def test_without_lightning_hasattr_is_false_and_other_names_work():
    said = run_fresh(
        _WITHOUT_LIGHTNING
        + f"""
import lightning_sm
import lightning_sm.cli, lightning_sm.callbacks, lightning_sm.strategies
say(*(hasattr(lightning_sm, name) for name in {_NEED_LIGHTNING}))
say(hasattr(lightning_sm.cli, "SageMakerCLI"), hasattr(lightning_sm.callbacks, "AutoResume"))
say(hasattr(lightning_sm.strategies, "SMDDPStrategy"), getattr(lightning_sm, "SMDDPStrategy", "none"))
say(*(name for name in dir(lightning_sm) if name not in {_NEED_LIGHTNING} and not hasattr(lightning_sm, name)))
say(lightning_sm.TrainingJob.resolve({{}}).in_container, lightning_sm.Topology.resolve({{}}).launcher)
"""
    )
    assert said == [[False] * 7, [False] * 2, [False, "none"], [], [False, "none"]]


_ACCESSES = (
    ("import {0}; {0}.SMDDPStrategy", "AttributeError"),
    ("from {0} import SMDDPStrategy", "ImportError"),
    ("from {0} import *", "ImportError"),
)


@pytest.fixture(scope="module")
def errors_without_lightning():
    """The error of each access, by its statement: its name, its text and whether it is one of the package's."""
    statements = [
        access.format(module) for module in ("lightning_sm", "lightning_sm.strategies") for access, _ in _ACCESSES
    ]
    said = run_fresh(
        _WITHOUT_LIGHTNING
        + f"""
import lightning_sm.strategies
for statement in {statements}:
    try:
        exec(statement, {{}})
    except Exception as found:
        say(statement, type(found).__name__, str(found), isinstance(found, lightning_sm.errors.LightningSMError))
"""
    )
    return {statement: tuple(rest) for statement, *rest in said}


@pytest.mark.parametrize("module", ["lightning_sm", "lightning_sm.strategies"])
@pytest.mark.parametrize(("access", "error"), _ACCESSES)
def test_without_lightning_the_error_says_so(errors_without_lightning, module, access, error):
    if "*" in access and module == "lightning_sm.strategies":
        error = "AttributeError"
    name, text, is_ours = errors_without_lightning[access.format(module)]
    assert name == f"Lightning{error}"
    assert " of lightning_sm needs Lightning. Neither pytorch_lightning nor lightning.pytorch is installed." in text
    assert "HINT: Add pytorch-lightning to the requirements.txt beside your script. (https://" in text
    assert text.endswith(f"#{name.lower()})")
    assert is_ours


def test_in_an_interpreter_without_any_package():
    code = (
        "import lightning_sm as sm\n"
        "print(hasattr(sm, 'SMDDPStrategy'), sm.TrainingJob.resolve({}).in_container, len(dir(sm.errors)) > 10)"
    )
    done = subprocess.run(
        [*_BARE, code],
        cwd=Path(lightning_sm.__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "False False True"), done.stderr


def test_a_lightning_whose_import_fails(tmp_path):
    (tmp_path / "pytorch_lightning").mkdir()
    (tmp_path / "pytorch_lightning" / "__init__.py").write_text("import a_package_that_is_missing")
    said = run_fresh(
        f"""
        import sys
        sys.modules["lightning"] = None
        sys.path.insert(0, {str(tmp_path)!r})
        import lightning_sm
        say(hasattr(lightning_sm, "SMDDPStrategy"))
        try:
            from lightning_sm import SMDDPStrategy
        except ImportError as error:
            say(type(error).__name__, str(error))
        """
    )
    assert said[0] == [False]
    assert said[1][0] == "LightningImportError"
    assert "Importing Lightning failed: No module named 'a_package_that_is_missing'" in said[1][1]


@pytest.mark.parametrize(
    "loaded",
    [[], *(pytest.param(names, marks=pytest.mark.slow) for names in (*([name] for name in _NAMES), _NAMES))],
    ids=lambda names: "+".join(names),
)
def test_signatures_are_those_of_the_classes(loaded):
    said = run_fresh(
        f"""
        import importlib, inspect, sys
        import lightning_sm
        for name in {loaded}:
            importlib.import_module(name)
        before = "torch" in sys.modules
        found = {{name: str(inspect.signature(getattr(lightning_sm, name))) for name in {_NEED_LIGHTNING}}}
        say(found, "torch" in sys.modules, before)
        """
    )
    ((found, has_torch, had_torch),) = said
    installed_namespaces()[0].module()
    assert found == {name: str(inspect.signature(getattr(lightning_sm, name))) for name in _NEED_LIGHTNING}
    assert found["SMDDPStrategy"].startswith("(process_group_backend: ")
    assert "ignore_hyperparameters" in found["SageMakerCLI"]
    assert found["ModelExport"].startswith("(model_dir: ")
    # With both installed and none loaded, asking for a signature imports none.
    assert has_torch == (had_torch or len(_NAMES) == 1)
