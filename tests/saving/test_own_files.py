import os

import torch

from lightning_sm._checkpoint.periodic import periodic_checkpoints
from lightning_sm._lightning import Namespace
from lightning_sm.callbacks import callback_class
from tests.helpers.tiny import loader, tiny_model

PL = Namespace("pytorch_lightning")


def fit(directory, epochs, path=None):
    own = periodic_checkpoints([], str(directory), 1e-6, PL)
    trainer = PL.module().Trainer(
        max_epochs=epochs, logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        devices=1, callbacks=[callback_class(PL, "SafeSaves")(), *own],
    )  # fmt: skip
    trainer.fit(tiny_model(PL.module()), loader(), loader(), ckpt_path=path)


def test_interruptions_do_not_fill_the_disk(tmp_path):
    fit(tmp_path, 1)
    (tmp_path / "resume-epoch=7-step=900.ckpt").write_text("broken, and newer than all")
    (tmp_path / "resume-mine.ckpt").write_text("not ours")
    for epochs in (2, 3, 4):
        newest = max((path for path in tmp_path.glob("resume-epoch=[0-6]*")), key=os.path.getmtime)
        fit(tmp_path, epochs, str(newest))
    assert [path.name for path in tmp_path.glob("last*.ckpt")] == ["last.ckpt"]
    assert int(torch.load(str(tmp_path / "last.ckpt"))["epoch"]) == (3 if PL.version >= (1, 6) else 4)  # the next one
    assert len(list(tmp_path.glob("resume-epoch=[0-6]*"))) <= 3  # two, and the one that the last run went on from
    assert (tmp_path / "resume-epoch=7-step=900.ckpt").exists()
    assert (tmp_path / "resume-mine.ckpt").exists()


def test_a_run_that_starts_afresh_leaves_the_older_one(tmp_path):
    for _ in range(2):
        fit(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.glob("last*.ckpt")) == ["last-v1.ckpt", "last.ckpt"]
