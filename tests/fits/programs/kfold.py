"""Three folds and a final fit.

Argument: where the folds save: in ``directories`` of their own, by ``callbacks`` with a ``dirpath`` each, or all in
``one`` directory.
"""

import sys

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


def main(where):
    pl.seed_everything(1)
    folds = []
    for fold in range(3):
        folder = f"fold{fold}" if where == "directories" else None
        best = ModelCheckpoint(f"checkpoints/fold{fold}" if where == "callbacks" else None, monitor="val_loss")
        trainer = pl.Trainer(**settings(folder, max_epochs=2, callbacks=[Moments(f"fold{fold}"), best]))
        model = Model()
        trainer.fit(model, *loaders(fold))
        folds.append(read(trainer, model))
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments("final")]))
    model = Model()
    trainer.fit(model, loaders(3)[0])
    finish(folds=folds, final=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
