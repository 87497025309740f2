"""Transforms with generators of their own, which seed themselves anew whenever they are asked for their length."""

import numpy
import pytorch_lightning as pl
import torch
from around import end
from monai.data import CacheDataset, DataLoader
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureChannelFirstd, RandCropByPosNegLabeld, RandFlipd, RandGaussianNoised
from monai.utils import set_determinism

KEYS = ["image", "label"]


class Segmentation(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = UNet(2, 1, 2, (4, 8), (2,), dropout=0.1)
        self.loss, self.dice, self.best = DiceLoss(to_onehot_y=True, softmax=True), DiceMetric(), 0.0

    def training_step(self, batch, batch_index):
        return self.loss(self.net(batch["image"]), batch["label"])

    def validation_step(self, batch, batch_index):
        self.dice(self.net(batch["image"]).argmax(1, keepdim=True), batch["label"])

    def on_validation_epoch_end(self):
        self.best = max(self.dice.aggregate().item(), self.best)
        self.dice.reset()
        self.log("best", self.best)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


set_determinism(5)
rng = numpy.random.RandomState(0)
images = [{key: (rng.rand(24, 24) > 0.6).astype("float32") for key in KEYS} for _ in range(8)]
first = EnsureChannelFirstd(KEYS, channel_dim="no_channel")
crop = RandCropByPosNegLabeld(KEYS, "label", (16, 16), num_samples=2)
transform = Compose([first, RandFlipd(KEYS, 0.5), RandGaussianNoised("image", 0.5), crop])
train = DataLoader(CacheDataset(images, transform, progress=False), batch_size=2, shuffle=True)
val = DataLoader(CacheDataset(images[:3], Compose([first]), progress=False), batch_size=1)
model = Segmentation()
pl.Trainer(max_epochs=6, accelerator="cpu", logger=False, enable_progress_bar=False).fit(model, train, val)
end(model.state_dict(), {"best": torch.tensor(model.best)})
