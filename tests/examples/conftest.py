"""Fixtures for the tests of ``examples/``."""

import importlib
import sys

import pytest

from tests.helpers.processes import ROOT

EXAMPLES = ROOT / "examples"
MODULES = ("cifar_files", "data", "make_sample", "model")


@pytest.fixture(scope="session")
def cifar10_dir():
    return EXAMPLES / "cifar10"


@pytest.fixture(scope="module")
def example(request):
    """Import a module of the test file's example as ``python train.py`` does: by its name, from the script's folder."""
    folder = str(EXAMPLES / getattr(request.module, "EXAMPLE", "cifar10"))
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(folder)
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def data(example):
    return example("data")


@pytest.fixture(scope="module")
def model(example):
    return example("model")


@pytest.fixture(scope="module")
def cifar(example):
    """The example's reader of CIFAR-10."""
    return example("cifar_files")


@pytest.fixture
def own_cli(monkeypatch, tmp_path):
    """Return a function that makes Lightning's own CLI, without anything of ours, from words for an example."""
    pl = pytest.importorskip("pytorch_lightning")
    cli = pytest.importorskip("pytorch_lightning.cli")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def make(*words, **arguments):
        kinds = {"subclass_mode_model": True, "subclass_mode_data": True}
        args = [*words, "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
        return cli.LightningCLI(pl.LightningModule, pl.LightningDataModule, args=args, **kinds, **arguments)

    return make
