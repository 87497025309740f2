"""Cross-validation that runs on a laptop and, unchanged, in a SageMaker training job.

SageMaker starts the program of an interrupted job again, from its first line. Fits that had ended return at once, with
their weights and metrics, and the interrupted one goes on. So a program may decide by results, as this one does.
"""

import lightning.pytorch as pl  # or: import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import lightning_sm

FOLDS = 3
WIDTHS = (4, 16)


class Regression(pl.LightningModule):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.layers = torch.nn.Sequential(torch.nn.Linear(1, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def training_step(self, batch, batch_index):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, batch_index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


def make_samples(count: int = 240) -> TensorDataset:
    """Points of a sine with noise; a project reads those of a channel, ``lightning_sm.job().channel("training")``."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(count, 1, generator=generator) * 6 - 3
    return TensorDataset(inputs, inputs.sin() + 0.1 * torch.randn(count, 1, generator=generator))


def fit(model: Regression, training: Dataset, validation: Dataset) -> float:
    """Train a model, and return its last validation loss."""
    options = {"save_every": lightning_sm.job().hyperparameters.get("save_every", "10m")}
    trainer = pl.Trainer(**lightning_sm.trainer_settings(sagemaker=options, max_epochs=5, logger=False))
    trainer.fit(model, DataLoader(training, batch_size=8, shuffle=True), DataLoader(validation, batch_size=80))
    return float(trainer.callback_metrics["val_loss"])


def main() -> None:
    """Choose the width by cross-validation, and train the model of that width on all samples."""
    pl.seed_everything(1)
    samples = make_samples()
    order = torch.randperm(len(samples)).tolist()
    losses = {}
    for width in WIDTHS:
        scores = []
        for fold in range(FOLDS):
            held_out = order[fold::FOLDS]
            rest = [index for index in order if index not in held_out]
            scores.append(fit(Regression(width), Subset(samples, rest), Subset(samples, held_out)))
        losses[width] = sum(scores) / FOLDS
        print(f"width {width}: mean validation loss {losses[width]:.6f}")
    chosen = min(losses, key=losses.__getitem__)
    print(f"chosen width {chosen}: training loss {fit(Regression(chosen), samples, samples):.6f}")


if __name__ == "__main__":
    main()
