"""What ``dir``, ``hasattr`` and ``inspect.signature`` say, with no, one and both namespaces of Lightning."""

import importlib
import inspect

import pytest

import lightning_sm
from lightning_sm import strategies
from lightning_sm._lightning import installed_namespaces
from tests.helpers.fresh import run_fresh

_NEED_LIGHTNING = ("ModelExport", *dir(strategies), "SageMakerCLI")
_NAMES = [namespace.name for namespace in installed_namespaces()]


@pytest.mark.parametrize("module", ["lightning_sm", "lightning_sm.cli", "lightning_sm.strategies"])
def test_dir_shows_the_public_names_and_nothing_else(module):
    found = importlib.import_module(module)
    assert dir(found) == sorted(found.__all__)
    assert all(getattr(found, name) is not None for name in dir(found))


def test_without_lightning_the_error_says_so_and_other_names_work():
    said = run_fresh(
        f"""
        import sys
        sys.modules.update(dict.fromkeys(["lightning", "pytorch_lightning"]))
        import lightning_sm.cli, lightning_sm.callbacks, lightning_sm.strategies
        for module in ("lightning_sm", "lightning_sm.strategies"):
            accesses = "import {{0}}; {{0}}.SMDDPStrategy", "from {{0}} import SMDDPStrategy", "from {{0}} import *"
            for access in accesses:
                try:
                    exec(access.format(module), {{}})
                except ImportError as found:
                    say(type(found).__name__, str(found))
        say(*(getattr(lightning_sm, name) is None for name in dir(lightning_sm) if name not in {_NEED_LIGHTNING}))
        """
    )
    *errors, others = said
    assert len(errors) == 6
    for name, text in errors:
        assert name == "LightningImportError"
        assert " of lightning_sm needs Lightning. Neither pytorch_lightning nor lightning.pytorch is installed." in text
        assert "HINT: Add pytorch-lightning to the requirements.txt beside your script. (https://" in text
        assert text.endswith("#lightningimporterror)")
    assert not any(others)


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


def test_signatures_are_those_of_the_classes():
    """Before any Lightning is loaded, and with all that are installed."""
    said = run_fresh(
        f"""
        import importlib, inspect
        import lightning_sm
        for loaded in ([], {_NAMES}):
            for name in loaded:
                importlib.import_module(name)
            say({{name: str(inspect.signature(getattr(lightning_sm, name))) for name in {_NEED_LIGHTNING}}})
        """
    )
    (found,), (again,) = said
    assert again == found
    installed_namespaces()[0].module()
    assert found == {name: str(inspect.signature(getattr(lightning_sm, name))) for name in _NEED_LIGHTNING}
    assert found["SMDDPStrategy"].startswith("(process_group_backend: ")
    assert "ignore_hyperparameters" in found["SageMakerCLI"]
    assert found["ModelExport"].startswith("(model_dir: ")
