"""Runs out of memory, and trains a new model with smaller batches then."""

import pytorch_lightning as pl
import torch

from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


class Large(Model):
    """Needs more memory than there is after a few steps."""

    def training_step(self, batch, batch_index):
        if self.batch_size > 8 and self.trainer.global_step == 6:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return super().training_step(batch, batch_index)


def main():
    pl.seed_everything(12)
    for batch_size in (10, 5):
        model = Large(batch_size=batch_size)
        trainer = pl.Trainer(**settings(max_epochs=3, callbacks=[Moments(f"batches of {batch_size}")]))
        try:
            trainer.fit(model, *loaders(batch_size=batch_size))
        except torch.cuda.OutOfMemoryError:
            continue
        found = read(trainer, model)
    # Where a checkpoint lies is another place on a laptop.
    finish(fit={name: value for name, value in found.items() if not name.startswith("best")})


if __name__ == "__main__":
    main()
