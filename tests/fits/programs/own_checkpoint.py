"""Saves a checkpoint of its own into the job's directory after a fit, of a model that it has changed."""

import os

import pytorch_lightning as pl
import torch

import lightning_sm
from tests.fits.programs.parts import Model, Moments, at, finish, loaders, read, settings


def main():
    pl.seed_everything(14)
    model = Model()
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments("fit")]))
    trainer.fit(model, *loaders())
    fit = read(trainer, model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    trainer.save_checkpoint(os.path.join(lightning_sm.job().checkpoint_dir, "zeros.ckpt"))
    at("saved")
    model = Model()
    trainer = pl.Trainer(**settings(max_epochs=3, callbacks=[Moments("second")]))
    trainer.fit(model, *loaders(1))
    finish(fit=fit, second=read(trainer, model))


if __name__ == "__main__":
    main()
