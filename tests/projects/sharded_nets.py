"""A small model to export from sharded strategies, with something of all that a state dict can hold."""

import torch
from pytorch_lightning import LightningModule

from tests.helpers.sharded import shard

__all__ = ["Parts", "Tied"]


class Counted(torch.nn.Linear):
    """A layer with a buffer of integers and one of numbers, and with extra state."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((outputs,), 0.5))
        self.register_buffer("unsaved", torch.ones(3), persistent=False)
        self.note = "new"

    def forward(self, values):
        self.calls += 1
        return super().forward(values) * self.scale

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]


class Parts(LightningModule):
    """Uneven sizes, a frozen layer, buffers and extra state. FSDP2 shards its layers and then itself."""

    def __init__(self, width: int = 7, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(7)
        linear = torch.nn.Linear
        self.layers = torch.nn.Sequential(linear(4, width), torch.nn.ReLU(), linear(width, width), Counted(width, 1))
        self.layers[2].requires_grad_(False)
        self.layers[3].note = "trained"

    def configure_model(self):
        shard(self, self.layers)

    def forward(self, inputs):
        return self.layers(inputs)

    def training_step(self, batch, batch_index):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, batch_index):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam([each for each in self.parameters() if each.requires_grad], lr=self.hparams["lr"])


class Tied(Parts):
    """Two layers that share a weight, sharded as one, and tensors only."""

    def __init__(self, width: int = 7, lr: float = 0.05):
        super().__init__(width, lr)
        self.layers[2].requires_grad_(True)
        self.layers[3] = torch.nn.Linear(width, 1)
        self.again = torch.nn.Linear(width, width)
        self.again.weight = self.layers[2].weight

    def configure_model(self):
        shard(self, [])

    def forward(self, inputs):
        hidden = self.layers[2](self.layers[1](self.layers[0](inputs)))
        return self.layers[3](self.again(hidden))
