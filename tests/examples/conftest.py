"""Fixtures for the tests of ``examples/``."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Callable, Iterator

import pytest

CIFAR10 = Path(__file__).parents[2] / "examples" / "cifar10"
MODULES = ("cifar_files", "data", "make_sample", "model")


@pytest.fixture(scope="session")
def cifar10_dir() -> Path:
    return CIFAR10


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], ModuleType]]:
    """Import a module of the example the way ``python train.py`` does: by its bare name, from the script's folder."""
    sys.path.insert(0, str(CIFAR10))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(CIFAR10))
        for name in MODULES:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def cifar(example: Callable[[str], ModuleType]) -> ModuleType:
    """The example's reader of CIFAR-10."""
    return example("cifar_files")
