"""One experiment of several. Arguments: the fold, and the learning rate. The variable ``WIDTH`` is the model's."""

import os
import sys

import pytorch_lightning as pl

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


def main(fold="0", lr="0.02"):
    pl.seed_everything(11)
    model = Model(int(os.environ.get("WIDTH", "8")), lr=float(lr))
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments(f"fold{fold}")]))
    trainer.fit(model, *loaders(int(fold)))
    finish(fit=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
