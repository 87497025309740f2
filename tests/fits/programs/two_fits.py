"""Two fits, the first of which takes a while: the variable ``PAUSE`` holds the seconds of each of its batches."""

import os
import time

import pytorch_lightning as pl

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


class Slow(Model):
    def training_step(self, batch, batch_index):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().training_step(batch, batch_index)


def main():
    pl.seed_everything(15)
    found = []
    for number, model in enumerate((Slow(), Model())):
        trainer = pl.Trainer(**settings(max_epochs=3, callbacks=[Moments(f"fit{number}")]))
        trainer.fit(model, *loaders(number))
        found.append(read(trainer, model))
    finish(fits=found)


if __name__ == "__main__":
    main()
