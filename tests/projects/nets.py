"""Small models to export, each with something that exporters stumble over."""

import torch
from pytorch_lightning import LightningModule
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["Dictionaries", "Headless", "Net", "Tied", "loader"]


def loader():
    return DataLoader(TensorDataset(torch.randn(8, 4, generator=torch.Generator().manual_seed(0))), batch_size=4)


class Headless(LightningModule):
    """A model without ``forward``, whose steps call its parts."""

    def __init__(self, width: int = 5, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        layers = torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout()
        self.encoder = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(width, 2)
        self.losses = []

    def training_step(self, batch, batch_index):
        return self.encoder(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Net(Headless):
    """A model with a mode, statistics, and a loss that is kept with its graph."""

    def forward(self, samples):
        return self.head(self.encoder(samples))

    def training_step(self, batch, batch_index):
        loss = self(batch[0]).pow(2).mean()
        self.losses.append(loss)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_index):
        self.log("val_loss", self(batch[0]).pow(2).mean())


class Dictionaries(Net):
    """A model whose batches are dictionaries."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return {"samples": batch[0]}

    def training_step(self, batch, batch_index):
        return self(batch["samples"]).pow(2).mean()

    def validation_step(self, batch, batch_index):
        self.log("val_loss", self(batch["samples"]).pow(2).mean())


class Tied(Net):
    """A model with one tensor under two names, and one that keeps its tensors in a list besides."""

    def __init__(self, width: int = 4, lr: float = 0.1):
        super().__init__(width, lr)
        self.decoder = torch.nn.Linear(4, 4)
        self.decoder.weight = self.encoder[0].weight
        self.recurrent = torch.nn.GRU(4, 4, batch_first=True)

    def forward(self, samples):
        hidden = self.decoder(self.encoder(samples))
        return self.head(self.recurrent(hidden.unsqueeze(1))[0].squeeze(1))
