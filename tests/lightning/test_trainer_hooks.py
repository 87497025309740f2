import copy
import types

import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.legacy import skips_missing_hooks
from lightning_sm._lightning.trainer_hooks import around_restore, skip_unused_hooks
from tests.helpers.skips import installed_version
from tests.helpers.tiny import loader, tiny_model


class _Connector:
    """Records what is called, as Lightning's does without a checkpoint."""

    _loaded_checkpoint = types.MappingProxyType({"state_dict": {}})

    def __init__(self):
        self.calls = []

    def _note(self, name, *details):
        self.calls.append((name, *details))

    def resume_start(self, checkpoint_path=None):
        self._note("resume_start", checkpoint_path)

    def restore_model(self):
        self._note("restore_model")

    def restore_training_state(self):
        self._note("restore_training_state")

    def resume_end(self):
        self._note("resume_end")


def fit(connector, *, name="_checkpoint_connector", chosen=("a.ckpt", False)):
    """What a fit of Lightning's calls, and what we are asked on the way."""
    asked = []

    def choose(given):
        asked.append(given)
        return chosen

    around_restore(
        types.SimpleNamespace(**{name: connector}),
        choose=choose,
        loaded=lambda checkpoint: connector.calls.append(("loaded", *checkpoint)),
        explain=lambda error: RuntimeError(f"explained {error}"),
        restored=lambda: connector.calls.append(("restored",)),
    )
    connector.resume_start(None)
    connector.restore_model()
    connector.restore_training_state()
    connector.resume_end()
    return asked


_LOADED = ("loaded", "state_dict")
_AFTER = [("restore_model",), ("restore_training_state",), ("resume_end",), ("restored",)]


@pytest.mark.parametrize("name", ["_checkpoint_connector", "checkpoint_connector"])
def test_another_path_takes_the_place_of_none(name):
    connector = _Connector()
    assert fit(connector, name=name) == [None]
    assert connector.calls == [("resume_start", "a.ckpt"), _LOADED, *_AFTER]


@pytest.mark.skipif(installed_version("torch") < (1, 13), reason="torch.load cannot restrict what a file may hold")
def test_an_older_lightning_restores_no_file_that_names_code(tmp_path):
    connector, path = _Connector(), str(tmp_path / "a.ckpt")
    torch.save({"value": types.SimpleNamespace()}, path)
    with pytest.raises(RuntimeError, match=r"explained .*[Ww]eights.only"):
        fit(connector, chosen=(path, True))
    assert connector.calls == []
    torch.save({"value": torch.zeros(1)}, path)
    fit(connector, chosen=(path, True))
    assert connector.calls == [("resume_start", path), _LOADED, *_AFTER]


def _tells(callback_class):
    """A callback that overrides two hooks of a step, one of them with a call of the base class."""

    class Tells(callback_class):
        def __init__(self):
            self.calls = []

        def on_train_batch_start(self, *args):
            super().on_train_batch_start(*args)
            self.calls.append("start")

        def on_before_zero_grad(self, *args):
            self.calls.append("zero_grad")

    return Tells()


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_hooks_without_a_body_are_skipped_and_no_others(namespace, monkeypatch):
    pl, base = namespace.module(), namespace.module("callbacks").Callback
    reached = []
    monkeypatch.setattr(base, "on_after_backward", lambda self, *args: reached.append(self))
    quiet, tells, patched, untouched = base(), _tells(base), base(), base()
    patched.on_before_backward = lambda *args: reached.append(patched)
    for callback in (quiet, tells, patched):
        skip_unused_hooks(namespace, callback)
    skips = skips_missing_hooks(namespace)
    assert (quiet.on_train_batch_end is None) is skips
    assert callable(copy.deepcopy(quiet).on_train_batch_end) is not skips
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_train_batches=3,
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        callbacks=[quiet, tells, patched, untouched],
    )
    trainer.fit(tiny_model(pl), loader())
    assert sorted(tells.calls) == ["start"] * 3 + ["zero_grad"] * 3
    assert reached.count(untouched) == 3
    assert reached.count(patched) == 3 if skips else 6
    assert (quiet in reached) is not skips
