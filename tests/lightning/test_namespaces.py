import sys
import types

import pytest

from lightning_sm._lightning.namespaces import Namespace, choose_namespace
from lightning_sm.errors import LightningSMError

UNIFIED, CLASSIC = "lightning.pytorch", "pytorch_lightning"


@pytest.fixture
def there(monkeypatch):
    """Return a function that says which namespaces are loaded, and which are installed; at first both."""

    def say(loaded, installed=(UNIFIED, CLASSIC)):
        monkeypatch.setattr(Namespace, "is_loaded", property(lambda self: self.name in loaded))
        monkeypatch.setattr(Namespace, "is_installed", property(lambda self: self.name in installed))

    say([UNIFIED, CLASSIC])
    return say


@pytest.mark.parametrize(
    ("loaded", "installed", "chosen"),
    [
        ([UNIFIED, CLASSIC], [UNIFIED, CLASSIC], UNIFIED),
        ([CLASSIC], [UNIFIED, CLASSIC], CLASSIC),
        ([UNIFIED], [UNIFIED, CLASSIC], UNIFIED),
        ([], [UNIFIED, CLASSIC], UNIFIED),
        ([], [CLASSIC], CLASSIC),
    ],
)
def test_choice(there, loaded, installed, chosen):
    there(loaded, installed)
    assert choose_namespace().name == chosen


@pytest.mark.parametrize(
    ("module", "chosen"),
    [
        ("pytorch_lightning", CLASSIC),
        ("pytorch_lightning.core.module", CLASSIC),
        ("pytorch_lightning_bolts.models", UNIFIED),
        ("lightning.pytorch.core.module", UNIFIED),
        ("train", UNIFIED),
    ],
)
def test_the_models_own_namespace_wins(there, module, chosen):
    base = type("LightningModule", (), {"__module__": module})
    assert choose_namespace(type("Model", (base,), {})).name == chosen


@pytest.mark.parametrize(
    ("known", "chosen"),
    [
        ([types.ModuleType("pytorch_lightning")], CLASSIC),
        ([types.ModuleType("pytorch_lightning.callbacks")], CLASSIC),
        ([type("Trainer", (), {"__module__": "pytorch_lightning.trainer.trainer"})], CLASSIC),
        ([types.ModuleType("lightning")], UNIFIED),
        ([types.ModuleType("lightning_sm")], UNIFIED),
        ([types.ModuleType("pytorch_lightning"), types.ModuleType("lightning.pytorch")], UNIFIED),
    ],
    ids=str,
)
def test_of_two_that_are_loaded_the_programs_own_wins_and_of_both_the_preferred_one(there, monkeypatch, known, chosen):
    """A library has imported the other one."""
    for index, each in enumerate(known):
        monkeypatch.setattr(sys.modules["__main__"], f"known_by_the_program_{index}", each, raising=False)
    assert choose_namespace().name == chosen


def test_no_lightning_at_all(there):
    there([], [])
    with pytest.raises(LightningSMError, match=r"Neither .* is installed. HINT: Add pytorch-lightning"):
        choose_namespace()
