"""The second program of such an entry point: trains an equal model, with the first one's weights, on other data."""

import os

import pytorch_lightning as pl
import torch

import lightning_sm
from tests.fits.programs.parts import Model, Moments, at, finish, loaders, read, settings


def main():
    at("between")
    pl.seed_everything(10)
    model = Model()
    model.load_state_dict(torch.load(os.path.join(lightning_sm.job().model_dir, "model.pt"), weights_only=True))
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments("finetune")]))
    trainer.fit(model, *loaders(1))
    finish(finetune=read(trainer, model))


if __name__ == "__main__":
    main()
