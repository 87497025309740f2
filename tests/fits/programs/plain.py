"""A training of plain Lightning, which keeps one checkpoint. Arguments: its path, and the steps."""

import sys

import pytorch_lightning as pl

from tests.fits.programs.parts import Model, finish, loaders, read


def main(path, steps):
    pl.seed_everything(7)
    model = Model()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=int(steps),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, *loaders(1))
    trainer.save_checkpoint(path)
    finish(fit=read(trainer, model))


if __name__ == "__main__":
    main(*sys.argv[1:])
