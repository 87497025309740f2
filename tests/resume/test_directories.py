"""Directories of a project's checkpoints that are others at each start, and a job's directory that has moved."""

import shutil

import pytest

from lightning_sm._lightning.restart import resumes_within_epochs
from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import NAMESPACE, pl
from tests.helpers.setups import SETUPS, Size

pytestmark = pytest.mark.skipif(not resumes_within_epochs(NAMESPACE), reason="it continues within an epoch")

SIZE = Size(epochs=3, batches=4)


class Stop(pl.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.step:
            raise KeyError("interrupted")


def train(root, dirpath, stop_at=None):
    forget_fits()
    pl.seed_everything(3)
    made = SETUPS["validation_within_epochs"](pl, SIZE)
    checkpoint = pl.callbacks.ModelCheckpoint(dirpath, "{epoch}", monitor="val_loss", save_top_k=2)
    resume = callback_class(NAMESPACE, "AutoResume")(str(root), save_every=0.01)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=SIZE.epochs,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[checkpoint, resume, *([] if stop_at is None else [Stop(stop_at)])],
    )
    trainer.fit(made.model, made.train, made.val)
    return checkpoint


def best(checkpoint, root):
    found = {path.replace(str(root), ""): float(score) for path, score in checkpoint.best_k_models.items()}
    return found, checkpoint.best_model_path.replace(str(root), ""), float(checkpoint.best_model_score)


def test_a_directory_that_is_named_by_the_time_of_the_start(tmp_path):
    whole = best(train(tmp_path / "whole", str(tmp_path / "whole" / "run-1")), tmp_path / "whole")
    with pytest.raises(KeyError):
        train(tmp_path / "killed", str(tmp_path / "killed" / "run-1"), stop_at=9)
    resumed = train(tmp_path / "killed", str(tmp_path / "killed" / "run-2"))
    assert best(resumed, tmp_path / "killed") == whole
    assert not (tmp_path / "killed" / "run-2").exists()


def test_a_job_directory_that_has_moved(tmp_path):
    whole = best(train(tmp_path / "whole", str(tmp_path / "whole" / "run-1")), tmp_path / "whole")
    with pytest.raises(KeyError):
        train(tmp_path / "old", str(tmp_path / "old" / "run-1"), stop_at=9)
    shutil.move(tmp_path / "old", tmp_path / "new")
    resumed = train(tmp_path / "new", str(tmp_path / "new" / "run-1"))
    assert best(resumed, tmp_path / "new") == whole
    names = sorted(path.name for path in (tmp_path / "new" / "run-1").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "whole" / "run-1").iterdir())
