from typing import Any, Dict, List, Optional, Union

import torch
from pytorch_lightning import LightningModule


class TinyModel(LightningModule):
    """A model with a parameter of each kind that a hyperparameter can have."""

    def __init__(
        self,
        lr: float = 0.1,
        size: int = 3,
        flag: bool = False,
        text: str = "text",
        maybe: Optional[str] = "maybe",
        either: Union[int, str] = 0,
        numbers: Optional[List[int]] = None,
        texts: Optional[List[str]] = None,
        mapping: Optional[Dict[str, Any]] = None,
        anything: Any = None,
        batch_size: int = 1,
    ):
        super().__init__()
        names = ("lr", "size", "flag", "text", "maybe", "either", "numbers", "texts", "mapping", "anything")
        values = (lr, size, flag, text, maybe, either, numbers, texts, mapping, anything)
        # Lightning's save_hyperparameters reads strings a second time, as numbers where they look like some.
        self.given = dict(zip(names, values), batch_size=batch_size)
        self.layer = torch.nn.Linear(4, 1)

    def _loss(self, batch):
        (samples,) = batch
        return self.layer(samples).pow(2).mean()

    def training_step(self, batch, batch_index):
        loss = self._loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_index):
        self.log("val_loss", self._loss(batch))

    def test_step(self, batch, batch_index):
        self.log("test_loss", self._loss(batch))

    def predict_step(self, batch, batch_index, dataloader_idx=0):
        (samples,) = batch
        return self.layer(samples)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.given["lr"])
