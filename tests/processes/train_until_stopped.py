"""Trains for minutes unless something stops it, and tells where it is: for the tests of stopping.

It needs nothing but ``lightning_sm``, so that it can stand in a rehearsal's source directory.
"""

import argparse
import importlib
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--namespace", default="pytorch_lightning")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--max_runtime")
    parser.add_argument("--forks", action="store_true")
    options = parser.parse_args()
    train(importlib.import_module(options.namespace), options.workers, options.max_runtime, options.forks)
    say("end")


def say(*words):
    sys.stdout.write(" ".join(map(str, ("at", *words))) + "\n")
    sys.stdout.flush()


def train(pl, workers, max_runtime, forks):
    import lightning_sm

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch, batch_index):
            time.sleep(0.02)
            return self.layer(batch[0]).pow(2).mean()

        def on_train_batch_start(self, batch, batch_index, *_):
            say("step", self.trainer.global_step)

        def validation_step(self, batch, batch_index):
            say("validation")

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def loader(batches):
        return DataLoader(TensorDataset(torch.ones(2 * batches, 4)), batch_size=2, num_workers=workers)

    trainer = pl.Trainer(
        **lightning_sm.trainer_settings(
            accelerator="cpu",
            max_epochs=1000,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            sagemaker={"max_runtime": max_runtime},
            **({"strategy": "ddp_fork", "devices": 2} if forks else {}),
        )
    )
    world = trainer.world_size
    trainer.fit(Model(), loader(1000 * world), loader(2 * world))


if __name__ == "__main__":
    main()
