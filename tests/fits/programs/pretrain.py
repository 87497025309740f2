"""The first program of an entry point that runs two: trains, and leaves the model in the model directory."""

import pytorch_lightning as pl

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


def main():
    pl.seed_everything(9)
    model = Model()
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments("pretrain")]))
    trainer.fit(model, *loaders(0))
    finish(pretrain=read(trainer, model))


if __name__ == "__main__":
    main()
