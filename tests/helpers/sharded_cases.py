"""Small trainings, each a case of what sharded strategies must compute as DDP does.

Each function of :data:`CASES` is given a Lightning namespace and builds its model and its loader of training data anew.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.helpers.sharded import shard

__all__ = ["CASES", "EPOCHS", "Case", "gathered_weights", "shard_by_layers"]

#: Epochs of each case. An epoch has eight batches for each of two ranks.
EPOCHS = 2

CASES: Dict[str, Callable[[Any], "Case"]] = {}
_DEEPSPEED = frozenset({"deepspeed_2", "deepspeed_3"})


@dataclass
class Case:
    """One training.

    Args:
        model: The model; with FSDP2 it shards itself.
        arguments: Further arguments of the ``Trainer``.
        without: Kinds of strategies with which Lightning, torch or DeepSpeed refuses it.
        tolerance: The largest difference to DDP of a loss or a weight.
        strategy: Arguments of a strategy by the kind of it.
        shuffle: Whether the training data is shuffled.
    """

    model: Any
    arguments: Dict[str, Any] = field(default_factory=dict)
    without: FrozenSet[str] = frozenset()
    tolerance: float = 1e-6
    strategy: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    shuffle: bool = False

    def loader(self):
        """The training data."""
        inputs = torch.randn(32, 4, generator=torch.Generator().manual_seed(5))
        return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=2, shuffle=self.shuffle)


def case(function):
    """Add a function to the library under its name."""
    CASES[function.__name__] = function
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
            return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

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


@case
def groups_and_frozen_layer(pl):
    def groups(module):
        first, others = [], []
        for name, value in module.named_parameters():
            if value.requires_grad:
                (first if name.startswith("layers.2.") else others).append(value)
        return torch.optim.AdamW([{"params": first, "lr": 0.001, "weight_decay": 0.1}, {"params": others}], lr=0.02)

    model = net(pl, groups)
    model.layers[0].requires_grad_(False)
    return Case(model, {"accumulate_grad_batches": 2}, shuffle=True)


@case
def clipped_by_norm(pl):
    # `FSDPPrecision.clip_grad_by_norm` raises: a norm over one rank's part would be another.
    return Case(net(pl), {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "norm"}, frozenset({"fsdp"}))


@case
def clipped_by_value(pl):
    # "DeepSpeed does not support clipping gradients by value."
    return Case(net(pl), {"gradient_clip_val": 0.005, "gradient_clip_algorithm": "value"}, _DEEPSPEED)


@case
def validation(pl):
    """Within epochs, with a schedule by steps."""

    class Validated(type(net(pl))):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

        def validation_step(self, batch, batch_index):
            loss = self.loss(batch)
            self.log("val_loss", loss, sync_dist=True)
            self.log("val_worst", loss, sync_dist=True, reduce_fx="max")
            self.log("val_count", torch.tensor(1.0), sync_dist=True, reduce_fx="sum")

    return Case(Validated(), {"val_check_interval": 4})


@case
def tied_weights(pl):
    class Tied(type(net(pl))):
        def parts(self):
            return [self.layers]

    model = Tied()
    *before, last = model.layers
    middle = nn.Linear(8, 8)
    middle.weight = before[2].weight
    model.layers = nn.Sequential(*before, middle, nn.Tanh(), last)
    # A parameter of two layers belongs to one unit.
    return Case(model, strategy={"fsdp": {"auto_wrap_policy": {nn.Sequential}}})


@case
def bf16_true(pl):
    # The gradients of two ranks are added in bfloat16, of which one unit in the last place is 1/128.
    return Case(net(pl), {"precision": "bf16-true"}, tolerance=0.02)


@case
def bf16_mixed(pl):
    # FSDP and DeepSpeed compute in bfloat16 what autocast under DDP computes in float32, such as the loss.
    return Case(net(pl), {"precision": "bf16-mixed"}, tolerance=0.05)


def shard_by_layers(model):
    """Let a model shard its linear layers and itself under FSDP2, which leaves it to the model."""

    class Sharded(type(model)):
        def configure_model(self):
            shard(self, [layer for layer in self.modules() if isinstance(layer, nn.Linear)])

    model.__class__ = Sharded


def gathered_weights(strategy, module):
    """Every weight of a module that a strategy has sharded, as exact numbers by names. Every rank must call it."""
    from torch.distributed import fsdp

    found = {}
    whole = type(strategy.model).__name__
    if whole == "FullyShardedDataParallel":
        # torch crashes when it gathers a full state dict on CPUs.
        with fsdp.FullyShardedDataParallel.summon_full_params(strategy.model, writeback=False):
            found = {name: value.detach().clone() for name, value in module.named_parameters()}
    elif getattr(strategy, "zero_stage_3", False):
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(module.parameters())):
            found = {name: value.detach().clone() for name, value in module.named_parameters()}
    else:
        for name, value in module.named_parameters():
            found[name] = (value.full_tensor() if hasattr(value, "full_tensor") else value).detach()
    return {name.replace("_fsdp_wrapped_module.", ""): value.flatten().tolist() for name, value in found.items()}
