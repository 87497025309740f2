"""ResNet-18 for small pictures as a LightningModule."""

from typing import Any, Tuple

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models import resnet18

Batch = Tuple[Tensor, Tensor]


class LitResNet(LightningModule):
    """ResNet-18, trained by AdamW with a cosine schedule over the whole run.

    Args:
        num_classes: Number of classes.
        cifar_stem: Start with a 3x3 convolution and no pooling, as is usual for CIFAR-10. Off, the model starts as
            for ImageNet, which sees less of a 32x32 picture and takes a fraction of the time.
        lr: Learning rate at the start.
        weight_decay: Weight decay.
    """

    def __init__(
        self, num_classes: int = 10, cifar_stem: bool = True, lr: float = 1e-3, weight_decay: float = 1e-2
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.weight_decay = weight_decay
        self.net = resnet18(weights=None, num_classes=num_classes)
        if cifar_stem:
            self.net.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
            self.net.maxpool = nn.Identity()
        self.val_acc = MulticlassAccuracy(num_classes, average="micro")
        self.test_acc = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the logits."""
        return self.net(pictures)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        pictures, labels = batch
        loss = functional.cross_entropy(self(pictures), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``val_loss`` and ``val_acc``."""
        self._evaluate(batch, "val", self.val_acc)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log ``test_loss`` and ``test_acc``."""
        self._evaluate(batch, "test", self.test_acc)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Return the most likely class of each picture."""
        pictures, _ = batch
        return self(pictures).argmax(dim=1)

    def configure_optimizers(self) -> Any:
        """Return AdamW with a learning rate that falls to zero at the last step."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _evaluate(self, batch: Batch, name: str, accuracy: MulticlassAccuracy) -> None:
        pictures, labels = batch
        logits = self(pictures)
        accuracy(logits, labels)
        self.log(f"{name}_loss", functional.cross_entropy(logits, labels), sync_dist=True)
        # A torchmetrics object adds up its counts over all processes by itself: no sync_dist.
        self.log(f"{name}_acc", accuracy, prog_bar=True)
