"""Searches before a fit, or at its beginning, and fits once more with what was found. Argument: the search."""

import sys

import pytorch_lightning as pl
from pytorch_lightning.callbacks import BatchSizeFinder, LearningRateFinder
from pytorch_lightning.tuner.tuning import Tuner

from tests.fits.programs.parts import Model, Moments, Numbers, finish, read, settings

BATCHES = {"init_val": 4, "max_trials": 2, "steps_per_trial": 2}


def main(search):
    pl.seed_everything(6)
    model, numbers = Model(), Numbers()
    callbacks = [Moments("searched")]
    if search == "LearningRateFinder":
        callbacks.append(LearningRateFinder(num_training_steps=15, early_stop_threshold=None))
    if search == "BatchSizeFinder":
        callbacks.append(BatchSizeFinder(**BATCHES))
    trainer = pl.Trainer(**settings(max_epochs=4, callbacks=callbacks))
    if search == "lr_find":
        Tuner(trainer).lr_find(model, datamodule=numbers, num_training=15, early_stop_threshold=None)
    if search == "scale_batch_size":
        Tuner(trainer).scale_batch_size(model, datamodule=numbers, **BATCHES)
    trainer.fit(model, datamodule=numbers)
    found = {"lr": model.lr, "batch_size": numbers.batch_size, "searched": read(trainer, model)}
    trainer = pl.Trainer(**settings(max_epochs=1, callbacks=[Moments("after")]))
    model = Model(lr=model.lr)
    trainer.fit(model, datamodule=numbers)
    finish(**found, after=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
