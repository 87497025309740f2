"""A model and a trainer for AWS's model parallel library, and the same with plain Lightning in one process."""

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["INITIAL_SCALE", "SMPModel", "data", "fit_plain", "flat", "mixed_precision", "trainer"]


INITIAL_SCALE = 256.0


class SMPModel(pl.LightningModule):
    """One child holds all parameters; its steps log and return what a project's do."""

    def __init__(self, late=False):
        super().__init__()
        self.save_hyperparameters()
        self.net = None if late else self._network()
        self.register_buffer("seen", torch.zeros(()))
        self.hooks = []

    @staticmethod
    def _network():
        torch.manual_seed(7)
        return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def configure_model(self):
        if self.net is None:
            self.net = self._network()

    def _loss(self, batch):
        return torch.nn.functional.mse_loss(self.net(batch["x"]), batch["y"])

    def training_step(self, batch, batch_idx):
        loss = self._loss(batch)
        self.log("train_loss", loss, False, None, True, True, sync_dist=True)  # on_step, on_epoch
        return {"loss": loss, "mean": batch["x"].mean()}

    def on_after_backward(self):
        self.seen += 1

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.hooks.append(float(outputs["loss"]))

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val_loss": self._loss(batch), "val_mean": batch["y"].mean()}, sync_dist=True, prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.log("train_loss", self._loss(batch), sync_dist=True)  # otherwise than in the training

    def predict_step(self, batch, batch_idx):
        return self.net(batch["x"])

    def configure_optimizers(self):
        # Adam would make almost the same of clipped gradients.
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), "interval": "step"},
        }


class _Named(torch.utils.data.Dataset):
    def __init__(self, samples):
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(samples, 4, generator=generator)
        self.pairs = TensorDataset(inputs, torch.stack([inputs.sum(1), inputs.prod(1)], 1))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return dict(zip("xy", self.pairs[index]))


def data(batch_size, samples=48, **options):
    return DataLoader(_Named(samples), batch_size=batch_size, drop_last=True, **options)


def trainer(**arguments):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(accelerator="cpu", **{**quiet, "max_epochs": 2, **arguments})


def fit_plain(batch_size, mixed=False, **arguments):
    """What Lightning makes of it in one process, with the batches of all data-parallel ranks in one."""
    model, alone = SMPModel(), trainer(devices=1, **arguments, **mixed_precision(mixed))
    # Lightning shuffles the data of a distributed training.
    sampler = torch.utils.data.DistributedSampler(data(1).dataset, num_replicas=1, rank=0)
    alone.fit(model, data(batch_size, sampler=sampler), data(batch_size))
    metrics = {name: float(value) for name, value in alone.callback_metrics.items()}
    tested = alone.test(model, data(batch_size), verbose=False)[0]["train_loss"]
    return {"weights": flat(model.state_dict()), "metrics": metrics, "tested": tested, "hooks": model.hooks}


def mixed_precision(mixed):
    """On a CPU, Lightning makes bf16 of the argument ``precision="16-mixed"``."""
    if not mixed:
        return {}
    scaler = torch.amp.GradScaler("cpu", init_scale=INITIAL_SCALE)
    return {"plugins": [pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)]}


def flat(state_dict):
    """Every number of a state dict, by names."""
    return {name: value.detach().flatten().tolist() for name, value in state_dict.items()}
