"""A short fit, and one that begins at a checkpoint. Argument: its path."""

import sys

import pytorch_lightning as pl

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


def main(path):
    pl.seed_everything(8)
    model = Model()
    trainer = pl.Trainer(**settings(max_epochs=1, callbacks=[Moments("first")]))
    trainer.fit(model, *loaders())
    first = read(trainer, model)
    model = Model()
    trainer = pl.Trainer(**settings(max_epochs=5, callbacks=[Moments("given")]))
    trainer.fit(model, *loaders(), ckpt_path=path)
    finish(first=first, given=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
