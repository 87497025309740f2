import copy

import pytest

from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.legacy import skips_missing_hooks
from lightning_sm._lightning.trainer_hooks import skip_unused_hooks
from tests.helpers.tiny import loader, tiny_model


@pytest.mark.parametrize("namespace", installed_namespaces(), ids=lambda namespace: namespace.name)
def test_hooks_without_a_body_are_skipped_and_no_others(namespace, monkeypatch):
    pl, base = namespace.module(), namespace.module("callbacks").Callback
    reached, calls = [], []

    class Tells(base):
        def on_train_batch_start(self, *args):
            super().on_train_batch_start(*args)
            calls.append("start")

        def on_before_zero_grad(self, *args):
            calls.append("zero_grad")

    monkeypatch.setattr(base, "on_after_backward", lambda self, *args: reached.append(self))
    quiet, tells, patched, untouched = base(), Tells(), base(), base()
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
    assert sorted(calls) == ["start"] * 3 + ["zero_grad"] * 3
    assert reached.count(untouched) == 3
    assert reached.count(patched) == 3 if skips else 6
    assert (quiet in reached) is not skips
