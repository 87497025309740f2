"""A training job of a few seconds that writes down each of its steps.

It shuffles and drops out at random, so that only a run which goes on exactly where the last one stopped ends with the
same weights. Arguments: the file for the steps, the file for the weights, the options of ``sagemaker`` as JSON.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from tests.helpers.tiny import weights

pl = installed_namespaces()[0].module()

EPOCHS, BATCHES, BATCH_SIZE, PAUSE = 10, 20, 4, 0.012


class Net(pl.LightningModule):
    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        layers = [torch.nn.Linear(6, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)]
        self.layers = torch.nn.Sequential(*layers)

    def training_step(self, batch, batch_index):
        time.sleep(PAUSE)
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), targets)

    def on_train_batch_end(self, *_):
        if self.trainer.is_global_zero:
            self._say({"step": self.trainer.global_step, "time": time.time()})

    def on_train_start(self):
        self._say({"rank": self.trainer.global_rank, "pid": os.getpid(), "time": time.time()})

    def _say(self, what):
        # One write each: lines of several ranks stay whole, and what is written survives the process.
        descriptor = os.open(self.steps, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (json.dumps(what) + "\n").encode())
        os.close(descriptor)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


def data():
    generator = torch.Generator().manual_seed(11)
    # Enough for all ranks: each has BATCHES batches in an epoch.
    count = BATCHES * BATCH_SIZE * int(os.environ.get("WORLD_SIZE", "1"))
    inputs = torch.randn(count, 6, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=BATCH_SIZE, shuffle=True)


def main(steps, result, options):
    pl.seed_everything(3)
    trainer = pl.Trainer(
        **lightning_sm.trainer_settings(
            sagemaker=json.loads(options),
            max_epochs=EPOCHS,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
    )
    model = Net(steps)
    trainer.fit(model, data())
    if trainer.is_global_zero:
        Path(result).write_text(json.dumps({"weights": weights(model), "steps": trainer.global_step}))


if __name__ == "__main__":
    main(*sys.argv[1:])
