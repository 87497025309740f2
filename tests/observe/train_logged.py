"""Trains a small model in a container, whose TensorBoardLogger the command line sends to S3, and logs its steps.

Argument: a file that gets a line for each step, so that a test knows how far it is. Then come words for the CLI.
"""

import os
import sys
import time
from pathlib import Path

import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset

from lightning_sm import SageMakerCLI

SECONDS = float(os.environ.get("STEP_SECONDS", "0"))


class Net(LightningModule):
    def __init__(self, features: int = 4):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(features, 1)

    def training_step(self, batch, batch_index):
        (samples,) = batch
        loss = self.layer(samples).pow(2).mean()
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, *args):
        with open(os.environ["STEPS"], "a") as file:
            file.write(f"{self.global_step}\n")
        time.sleep(SECONDS)
        if os.path.exists(os.environ.get("FINISH", "")):
            self.trainer.should_stop = True

    def train_dataloader(self):
        samples = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(samples), batch_size=2)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


if __name__ == "__main__":
    sys.argv[0] = "train.py"
    cli = SageMakerCLI(Net, seed_everything_default=1, run=True)
    if "RESULT" in os.environ:
        Path(f"{os.environ['RESULT']}-{cli.trainer.global_rank}").write_text(repr(cli.model.layer.weight.tolist()))
