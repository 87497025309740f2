"""Trains, and then longer.

Argument: ``same`` for one trainer, ``new`` for a second one that begins at the best checkpoint.
"""

import sys

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


def main(which):
    pl.seed_everything(3)
    model = Model()
    moments = Moments("first")
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[moments, ModelCheckpoint(monitor="val_loss")]))
    trainer.fit(model, *loaders())
    first = read(trainer, model, best_stays=False)
    if which == "same":
        moments.fit = "longer"
        trainer.fit_loop.max_epochs = 4
        trainer.fit(model, *loaders())
    else:
        path = trainer.checkpoint_callback.best_model_path
        callbacks = [Moments("longer"), ModelCheckpoint(monitor="val_loss")]
        trainer = pl.Trainer(**settings(max_epochs=4, callbacks=callbacks))
        trainer.fit(model, *loaders(), ckpt_path=path)
    finish(first=first, longer=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
