"""Prunes a part of the weights after each epoch."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelPruning

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


def main():
    pl.seed_everything(13)
    model = Model(width=32)
    parts = [(model.encoder[0], "weight"), (model.head[1], "weight")]
    pruning = ModelPruning("l1_unstructured", parameters_to_prune=parts, amount=0.25)
    trainer = pl.Trainer(**settings(max_epochs=4, callbacks=[Moments("fit"), pruning]))
    trainer.fit(model, *loaders())
    zeros = sum(int((module.weight == 0).sum()) for module, _ in parts)
    finish(zeros=zeros, fit=read(trainer, model))


if __name__ == "__main__":
    main()
