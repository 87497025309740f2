"""ResNet-18 for small pictures as a LightningModule."""

from typing import Any, Tuple

import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
from torchvision.models import resnet18

Batch = Tuple[Tensor, Tensor]


class LitResNet(LightningModule):
    """ResNet-18, trained by AdamW with a cosine schedule over the whole run.

    With a ``TensorBoardLogger`` it also logs its graph (``log_graph``), a confusion matrix after each validation, and
    its hyperparameters with the accuracy that they led to.

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
        self.val_confusion = MulticlassConfusionMatrix(num_classes)
        self.test_acc = MulticlassAccuracy(num_classes, average="micro")
        # Shows the logger's graph and Lightning's summary what goes through the layers.
        self.example_input_array = torch.zeros(1, 3, 32, 32)

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
        logits = self._evaluate(batch, "val", self.val_acc)
        self.val_confusion.update(logits, batch[1])

    def on_validation_epoch_end(self) -> None:
        """Draw how often each class was taken for each other one."""
        # All processes add up their counts; only global rank 0 has a file to draw into.
        matrix = self.val_confusion.compute()
        self.val_confusion.reset()
        if isinstance(self.logger, TensorBoardLogger) and self.global_rank == 0 and not self.trainer.sanity_checking:
            figure, _ = self.val_confusion.plot(matrix)
            self.logger.experiment.add_figure("confusion_matrix", figure, self.global_step)

    def on_train_end(self) -> None:
        """Log the hyperparameters with the accuracy that they led to, for TensorBoard's tab HPARAMS."""
        accuracy = self.trainer.callback_metrics.get("val_acc")
        if isinstance(self.logger, TensorBoardLogger) and accuracy is not None:
            self.logger.log_hyperparams(dict(self.hparams), {"hp/val_acc": accuracy.item()})

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

    def _evaluate(self, batch: Batch, name: str, accuracy: MulticlassAccuracy) -> Tensor:
        pictures, labels = batch
        logits = self(pictures)
        accuracy(logits, labels)
        self.log(f"{name}_loss", functional.cross_entropy(logits, labels), sync_dist=True)
        # A torchmetrics object adds up its counts over all processes by itself: no sync_dist.
        self.log(f"{name}_acc", accuracy, prog_bar=True)
        return logits
