"""Pretrains in the default directory, then finetunes another model, with its encoder.

Argument: where the second fit saves, a ``directory`` of its own or the default one, too (``one``).
"""

import sys

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


class Finetuned(Model):
    """The encoder with another head."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.head = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def main(where):
    pl.seed_everything(2)
    pretrained = Model()
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments("pretrain")]))
    trainer.fit(pretrained, *loaders(0))
    first = read(trainer, pretrained)
    best = ModelCheckpoint(monitor="val_loss", save_last=True)
    folder = "finetune" if where == "directory" else None
    trainer = pl.Trainer(**settings(folder, max_epochs=2, callbacks=[Moments("finetune"), best]))
    model = Finetuned(pretrained.encoder)
    trainer.fit(model, *loaders(1))
    finish(pretrain=first, finetune=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
