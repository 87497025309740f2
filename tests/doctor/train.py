"""Trains with ``sagemaker.doctor: true``."""

import pytorch_lightning as pl

import lightning_sm

try:
    from tests.helpers.tiny import loader, tiny_model
except ImportError:  # in a rehearsal's source directory
    from tiny import loader, tiny_model

if __name__ == "__main__":
    arguments = lightning_sm.trainer_settings(
        sagemaker={"doctor": True}, accelerator="cpu", max_steps=2, enable_progress_bar=False
    )
    pl.Trainer(**arguments).fit(tiny_model(pl), loader())
