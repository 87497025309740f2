import sys
import types

import pytest

from lightning_sm._lightning import namespaces
from lightning_sm._lightning.namespaces import (
    NAMESPACES,
    Namespace,
    choose_namespace,
)
from lightning_sm.errors import LightningSMError

_UNIFIED, _CLASSIC = NAMESPACES


class _Fake(Namespace):
    """A namespace that is installed and loaded as the test says."""

    installed = loaded = True
    is_installed = property(lambda self: self.installed)
    is_loaded = property(lambda self: self.loaded)


def _fake(name, *, installed=True, loaded=True):
    return type("Fake", (_Fake,), {"installed": installed, "loaded": loaded})(name)


@pytest.mark.parametrize(
    ("unified", "classic", "chosen"),
    [
        ({"loaded": True}, {"loaded": True}, "lightning.pytorch"),
        ({"loaded": False}, {"loaded": True}, "pytorch_lightning"),
        ({"loaded": True}, {"loaded": False}, "lightning.pytorch"),
        ({"loaded": False}, {"loaded": False}, "lightning.pytorch"),
        ({"loaded": False, "installed": False}, {"loaded": False}, "pytorch_lightning"),
    ],
)
def test_choice(monkeypatch, unified, classic, chosen):
    fakes = (_fake("lightning.pytorch", **unified), _fake("pytorch_lightning", **classic))
    monkeypatch.setattr(namespaces, "NAMESPACES", fakes)
    assert choose_namespace().name == chosen


def test_the_models_own_namespace_wins(monkeypatch):
    monkeypatch.setattr(namespaces, "NAMESPACES", (_fake("lightning.pytorch"), _fake("pytorch_lightning")))
    base = type("LightningModule", (), {"__module__": "pytorch_lightning.core.module"})
    assert choose_namespace(type("Model", (base,), {})).name == "pytorch_lightning"
    assert choose_namespace(type("Model", (), {})).name == "lightning.pytorch"


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        (types.ModuleType("pytorch_lightning"), "pytorch_lightning"),
        (types.ModuleType("pytorch_lightning.callbacks"), "pytorch_lightning"),
        (type("Trainer", (), {"__module__": "pytorch_lightning.trainer.trainer"}), "pytorch_lightning"),
        (types.ModuleType("lightning"), "lightning.pytorch"),
        (types.ModuleType("lightning_sm"), "lightning.pytorch"),
    ],
    ids=str,
)
def test_of_two_that_are_loaded_the_programs_own_wins(monkeypatch, known, chosen):
    # A library has imported the other one.
    monkeypatch.setattr(namespaces, "NAMESPACES", (_fake("lightning.pytorch"), _fake("pytorch_lightning")))
    monkeypatch.setattr(sys.modules["__main__"], "known_by_the_program", known, raising=False)
    assert choose_namespace().name == chosen


def test_no_lightning_at_all(monkeypatch):
    monkeypatch.setattr(namespaces, "NAMESPACES", (_fake("lightning.pytorch", installed=False),))
    with pytest.raises(LightningSMError, match=r"Neither .* is installed. HINT: Add pytorch-lightning"):
        choose_namespace()


@pytest.mark.parametrize(
    ("module", "owner"),
    [
        ("pytorch_lightning", True),
        ("pytorch_lightning.core.module", True),
        ("pytorch_lightning_bolts.models", False),
        ("lightning.pytorch.core.module", False),
    ],
)
def test_owns(module, owner):
    base = type("Base", (), {"__module__": module})
    assert _CLASSIC.owns(type("Model", (base,), {"__module__": "train"})) is owner
