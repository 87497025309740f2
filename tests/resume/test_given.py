"""Saves of a series as ``ckpt_path`` in Lightning alone, as a laptop or a project without this package has them."""

from pathlib import Path
from unittest import mock

import pytest

from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import NAMESPACE, pl
from tests.helpers.series import saves_of
from tests.helpers.tiny import loader, tiny_model, weights


def fit(directory, validates, callbacks=(), ckpt_path=None):
    forget_fits()
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=3, callbacks=list(callbacks), logger=False, default_root_dir=str(directory),
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    model = tiny_model(pl)
    trainer.fit(model, loader(8), loader(4) if validates else None, ckpt_path=ckpt_path)
    return {"steps": trainer.global_step, "epoch": trainer.current_epoch}, weights(model)


@pytest.mark.parametrize("validates", [True, False])
def test_the_steps_that_are_left_are_trained(tmp_path, validates):
    resume = callback_class(NAMESPACE, "AutoResume")(str(tmp_path), save_every=0.01)
    with mock.patch("lightning_sm._resume.series.Series.remove_replaced"):
        counts, trained = fit(tmp_path, validates, [resume])
    saves = saves_of(tmp_path)
    assert {"epoch", "end"} <= {record["kind"] for record in saves}
    for record in saves:
        (path,) = Path(tmp_path).glob(f"*/fit-0/{record['name']}")
        counts_then, trained_then = fit(tmp_path, validates, ckpt_path=str(path))
        assert counts_then == counts, record
        # Within an epoch Lightning reads the epoch's data from its start.
        assert trained_then == trained or record["kind"] in ("batch", "validation"), record
