"""Tries three widths with early stopping, chooses by what the fits logged, and trains the best one for longer."""

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings

WIDTHS = (4, 8, 16)


def fit(name, model, max_epochs, patience):
    callbacks = [
        Moments(name),
        ModelCheckpoint(f"checkpoints/{name}", monitor="val_loss"),
        EarlyStopping("val_loss", patience=patience, min_delta=1.0),
    ]
    trainer = pl.Trainer(**settings(max_epochs=max_epochs, callbacks=callbacks))
    trainer.fit(model, *loaders())
    print("BEST", trainer.checkpoint_callback.best_model_path, flush=True)
    return trainer


def main():
    pl.seed_everything(4)
    tried, scores = [], []
    for width in WIDTHS:
        model = Model(width)
        trainer = fit(f"width{width}", model, 20, 0)
        scores.append(float(trainer.callback_metrics["val_loss"]))
        tried.append(read(trainer, model))
    width = WIDTHS[min(range(len(WIDTHS)), key=scores.__getitem__)]
    model = Model(width, lr=0.02 + 0.01 * float(torch.rand(())))
    trainer = fit("chosen", model, 3, 5)
    finish(width=width, tried=tried, chosen=read(trainer, model))


if __name__ == "__main__":
    main()
