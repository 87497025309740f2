"""A Hydra program that trains on a laptop and, unchanged, in a SageMaker training job."""

import os
import sys

import hydra
import lightning.pytorch as pl  # or: import pytorch_lightning as pl
import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm


class Regression(pl.LightningModule):
    def __init__(self, hidden: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1))

    def training_step(self, batch, batch_index):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def test_step(self, batch, batch_index):
        self.log("test_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams["lr"])


def read_numbers(folder: str) -> TensorDataset:
    """Read lines of ``x y`` from ``numbers.txt``."""
    with open(os.path.join(folder, "numbers.txt"), encoding="utf-8") as file:
        numbers = torch.tensor([[float(number) for number in line.split()] for line in file])
    return TensorDataset(numbers[:, :1], numbers[:, 1:])


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    """Train, and test the best checkpoint."""
    pl.seed_everything(config.seed)
    numbers = read_numbers(lightning_sm.job().channel("training", default=config.data_dir))
    loader = DataLoader(numbers, batch_size=config.batch_size)
    trainer = pl.Trainer(
        **lightning_sm.trainer_settings(
            logger=[pl.loggers.CSVLogger(config.log_dir)],
            callbacks=[pl.callbacks.ModelCheckpoint(filename="best", monitor="val_loss")],
            **OmegaConf.to_container(config.trainer, resolve=True),  # type: ignore[arg-type]
        )
    )
    model = hydra.utils.instantiate(config.model)
    trainer.fit(model, loader, loader)
    trainer.test(model, loader, ckpt_path="best")


if __name__ == "__main__":
    # Hydra would print an error and exit, and the job would have no failure reason.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    sys.argv[1:] = lightning_sm.job().hydra_overrides(sys.argv[1:])
    main()
