"""Trains a linear regression whose weights are known, and lets every rank say what it was and what it got."""

import json
import time
from typing import Any, Dict

import lightning
import torch
from regression import COUNT, ROWS
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm
from lightning_sm.cli import SageMakerCLI


class Regression(lightning.LightningModule):
    """Two weights and a bias, from zero.

    Args:
        lr: The learning rate.
        seconds: How long each step waits, in seconds.
        fails: Whether the last rank fails on purpose at the end.
    """

    def __init__(self, lr: float, seconds: float = 0.0, fails: bool = False) -> None:
        super().__init__()
        self.lr, self.seconds, self.fails = lr, seconds, fails
        self.layer = torch.nn.Linear(2, 1)
        torch.nn.init.zeros_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)

    def _loss(self, batch: Any) -> torch.Tensor:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.layer(inputs), targets)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return self._loss(batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def train_dataloader(self) -> Any:
        rows = torch.tensor(ROWS)
        data = TensorDataset(rows[:, :2], rows[:, 2:])
        return DataLoader(data, batch_size=COUNT // self.trainer.world_size)

    val_dataloader = train_dataloader


class Report(lightning.Callback):
    """Prints what this rank was and what it got, at the end or where the job is stopped."""

    def on_fit_end(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        said = _said(trainer, pl_module)
        # The toolkit makes a line of each argument of print.
        print(f"acceptance: {json.dumps(said)}\n", end="", flush=True)
        if pl_module.fails and said["rank"] == said["world_size"] - 1:
            raise RuntimeError("acceptance: the last rank fails on purpose")

    def on_exception(self, trainer: lightning.Trainer, pl_module: Any, exception: BaseException) -> None:
        # Thus a job that is stopped ends.
        if isinstance(exception, SystemExit):
            self.on_fit_end(trainer, pl_module)


def _said(trainer: lightning.Trainer, module: Regression) -> Dict[str, Any]:
    has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
    return {
        "rank": torch.distributed.get_rank() if has_group else 0,
        "world_size": torch.distributed.get_world_size() if has_group else 1,
        "local_rank": trainer.local_rank,
        # mpirun gives the variables of its own host to all ranks.
        "host": lightning_sm.job().current_host,
        "gpus": torch.cuda.device_count(),
        "backend": torch.distributed.get_backend() if has_group else None,
        "step": trainer.global_step,
        "weights": [value for parameter in module.layer.parameters() for value in parameter.flatten().tolist()],
        "versions": {"torch": torch.__version__, "lightning": lightning.__version__},
    }


if __name__ == "__main__":
    SageMakerCLI(Regression, trainer_defaults={"callbacks": [Report()]})
