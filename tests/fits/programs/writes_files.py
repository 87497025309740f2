"""Writes files of its own into the model directory when a fit ends."""

import json
import os

import pytorch_lightning as pl
import torch

import lightning_sm
from tests.fits.programs.parts import Model, Moments, finish, loaders, read, settings


class Writes(Model):
    def on_train_end(self):
        torch.save(self.encoder.state_dict(), os.path.join(lightning_sm.job().model_dir, "encoder.pt"))


class Calibration(pl.Callback):
    def on_fit_end(self, trainer, module):
        found = {"val_loss": float(trainer.callback_metrics["val_loss"]), "step": trainer.global_step}
        with open(os.path.join(lightning_sm.job().model_dir, "calibration.json"), "w") as file:
            json.dump(found, file)


def main():
    pl.seed_everything(5)
    model = Writes()
    trainer = pl.Trainer(**settings(max_epochs=2, callbacks=[Moments("fit"), Calibration()]))
    trainer.fit(model, *loaders())
    finish(fit=read(trainer, model))


if __name__ == "__main__":
    main()
