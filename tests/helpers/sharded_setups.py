"""Trainings with callbacks, metrics and schedules, which a restart must continue under a sharded strategy or refuse.

Each function of :data:`SHARDED_SETUPS` is given a Lightning namespace and a kind of strategy, and makes its model and
its callbacks anew.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterable, List

import torch
import torchmetrics
from torch import nn

from tests.helpers.callbacks import unfreezing, warming
from tests.helpers.sharded import own_part, shard

__all__ = ["SHARDED_SETUPS", "SetUp", "names_of"]

SHARDED_SETUPS: Dict[str, Callable[[Any, str], "SetUp"]] = {}


@dataclass
class SetUp:
    """One training.

    Args:
        model: The model; with FSDP2 it shards itself.
        callbacks: Those of the project.
        arguments: Further arguments of the ``Trainer``.
        strategy: Arguments of the strategy.
        refused: A part of the error with which it is refused.
        is_killed: Whether our start is killed; else it is only compared with that of Lightning alone.
        ends: Whether it is trained again after the kill.
        validates: Whether the model is validated.
    """

    model: Any
    callbacks: List[Any] = field(default_factory=list)
    arguments: Dict[str, Any] = field(default_factory=dict)
    strategy: Dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    is_killed: bool = True
    ends: bool = True
    validates: bool = False


def names_of(kind: str, names: Iterable[str]) -> List[str]:
    """Those of these set-ups that a kind of strategy trains.

    With a full state it is the same strategy, and differs in what it saves of the model, optimizer and callbacks.
    """
    if kind.endswith("_full"):
        return [name for name in names if name in ("scheduled_and_averaged", "finetuning")]
    return list(names)


def setup(function):
    """Add a function to the library under its name."""
    SHARDED_SETUPS[function.__name__] = function
    return function


def net(pl, optimizer=lambda module: torch.optim.Adam(module.parameters(), lr=0.01)):
    """A model of three layers with an optimizer of its trainable parameters."""

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(7)
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))

        def configure_model(self):
            shard(self, self.parts())

        def parts(self):
            return [layer for layer in self.modules() if isinstance(layer, nn.Linear)]

        def loss(self, batch):
            inputs, targets = batch
            # torch 2.4 has no such loss of bfloat16 on CPUs.
            return nn.functional.mse_loss(self.layers(inputs).float(), targets.float())

        def training_step(self, batch, batch_index):
            loss = self.loss(batch)
            self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self):
            return optimizer(self)

    return Net()


@setup
def stopped_early(pl, kind):
    """Metrics of an epoch, validation, a schedule by it, accumulated and clipped gradients, and an early end."""

    class Net(type(net(pl))):
        def __init__(self):
            super().__init__()
            self.train_error = torchmetrics.MeanSquaredError()
            self.val_error = torchmetrics.MeanAbsoluteError()

        def training_step(self, batch, batch_index):
            self.train_error(self.layers(batch[0]).detach(), batch[1])
            self.log("train_error", self.train_error, on_step=True, on_epoch=True)
            return super().training_step(batch, batch_index)

        def validation_step(self, batch, batch_index):
            self.val_error(self.layers(batch[0]), batch[1])
            self.log("val_error", self.val_error)
            self.log("val_loss", self.loss(batch), sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.9)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}

    # The mean of the second epoch stops it, which a resume within that epoch must compute from all of its batches.
    stop = pl.callbacks.EarlyStopping("train_loss_epoch", min_delta=2.0, patience=1, check_on_train_epoch_end=True)
    # FSDP refuses a norm and DeepSpeed a value.
    algorithm, largest = ("value", 0.05) if kind in ("fsdp", "fsdp_full") else ("norm", 0.5)
    clipping = {"gradient_clip_val": largest, "gradient_clip_algorithm": algorithm}
    return SetUp(Net(), [stop], {"max_epochs": 6, "accumulate_grad_batches": 2, **clipping}, validates=True)


@setup
def scheduled_and_averaged(pl, kind):
    """A schedule by steps, averages in a part of the model, and a callback with a state."""

    class Net(type(net(pl)) if kind == "deepspeed_3" else _averaged(pl)):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.05, momentum=0.9)
            # Lightning makes the loaders for it, before these strategies restore anything.
            steps = int(self.trainer.estimated_stepping_batches)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps + 16)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return SetUp(Net(), [warming(pl)])


def _averaged(pl):
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # torch 2.0

    class Averaged(type(net(pl))):
        def __init__(self):
            super().__init__()
            self.average = AveragedModel(self.layers, multi_avg_fn=get_ema_multi_avg_fn(0.9)).requires_grad_(False)

        def on_train_batch_end(self, *_):
            self.average.update_parameters(self.layers)

    return Averaged


@setup
def finetuning(pl, kind):
    def trainable(module):
        weights = [each for each in module.parameters() if each.requires_grad]
        optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    refused = ""
    if kind.startswith("fsdp2"):
        refused = "StrategyUnavailableError: Unfreezing cannot unfreeze layers with ModelParallelStrategy"
    if kind.startswith("deepspeed"):
        refused = "The Finetuning callback does not support running with the DeepSpeed strategy"
    return SetUp(net(pl, trainable), [unfreezing(pl, 0.02)], refused=refused)


@setup
def ema_weight_averaging(pl, kind):
    class Net(type(net(pl))):
        def validation_step(self, batch, batch_index):
            self.log("val_loss", self.loss(batch), sync_dist=True)

    average = pl.callbacks.EMAWeightAveraging(decay=0.9, update_starting_at_step=2)
    refused = "" if kind == "deepspeed_2" else "StrategyUnavailableError: EMAWeightAveraging averages whole weights"
    if kind.startswith("fsdp2"):
        refused = "AssertionError: FSDP does not support deepcopy"
    return SetUp(Net(), [average], {"precision": "bf16-true"}, refused=refused, validates=True)


@setup
def stochastic_weight_averaging(pl, kind):
    refused = "SWA does not currently support sharded models"
    if kind.startswith("fsdp2"):
        refused = "StrategyUnavailableError: StochasticWeightAveraging averages whole weights"
    return SetUp(net(pl), [pl.callbacks.StochasticWeightAveraging(0.02, swa_epoch_start=1)], refused=refused)


@setup
def average_of_own_shards(pl, kind):
    class Average(pl.Callback):
        """Averages what this rank holds of the weights, which no checkpoint of Lightning's keeps for each rank."""

        def __init__(self):
            self.average = None

        def on_train_batch_end(self, trainer, module, *_):
            now = [own_part(each).clone() for each in module.parameters()]
            before = self.average or now
            self.average = [0.9 * old + 0.1 * new for old, new in zip(before, now)]

        def state_dict(self):
            return {"average": self.average}

    return SetUp(_averaged(pl)() if kind == "deepspeed_3" else net(pl), [Average()], ends=False)


@setup
def groups_and_validation(pl, kind):
    """Groups of the optimizer beside a frozen layer, validation within epochs, a schedule by steps, and bf16."""

    class Validated(type(net(pl))):
        def configure_optimizers(self):
            first, others = [], []
            for name, value in self.named_parameters():
                if value.requires_grad:
                    (first if name.startswith("layers.2.") else others).append(value)
            groups = [{"params": first, "lr": 0.001, "weight_decay": 0.1}, {"params": others}]
            optimizer = torch.optim.AdamW(groups, lr=0.02)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def validation_step(self, batch, batch_index):
            loss = self.loss(batch)
            self.log("val_loss", loss, sync_dist=True)
            self.log("val_worst", loss, sync_dist=True, reduce_fx="max")
            self.log("val_count", torch.tensor(1.0), sync_dist=True, reduce_fx="sum")

    model = Validated()
    model.layers[0].requires_grad_(False)
    arguments = {"val_check_interval": 4, "accumulate_grad_batches": 2, "precision": "bf16-mixed"}
    return SetUp(model, arguments=arguments, is_killed=False, validates=True)


@setup
def tied_weights(pl, kind):
    class Tied(type(net(pl))):
        def parts(self):
            return [self.layers]

    model = Tied()
    *before, last = model.layers
    middle = nn.Linear(8, 8)
    middle.weight = before[2].weight
    model.layers = nn.Sequential(*before, middle, nn.Tanh(), last)
    # A parameter of two layers belongs to one unit.
    strategy = {"auto_wrap_policy": {nn.Sequential}} if kind == "fsdp" else {}
    return SetUp(model, arguments={"precision": "bf16-true"}, strategy=strategy, is_killed=False)
