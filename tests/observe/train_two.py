"""Two processes: a fit with progress lines, and a wait for data in the second one."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset

from lightning_sm import trainer_settings
from tests.helpers.tiny import loader, tiny_model


class Data(Dataset):
    waits_at: Any = None
    items = 0
    samples = loader(24).dataset

    def __len__(self):
        return 24

    def __getitem__(self, index):
        Data.items += 1
        if Data.items == self.waits_at:
            time.sleep(2.5)
        return self.samples[index]


class Model(type(tiny_model(pl))):
    def training_step(self, batch, batch_index):
        loss = self._loss(batch)
        self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_index):
        self.log("val_loss", self._loss(batch), prog_bar=True, sync_dist=True)

    def on_train_start(self):
        Data.waits_at = 7 if self.global_rank == 1 else None


def main():
    settings = trainer_settings(
        accelerator="cpu", max_epochs=1, strategy="ddp", logger=False, num_sanity_val_steps=0,
        sagemaker={"log_every": "300ms", "export": False},
    )  # fmt: skip
    trainer = pl.Trainer(**settings)
    data = DataLoader(Data(), batch_size=2)
    trainer.fit(Model(), data, data)
    result = {"rank": trainer.global_rank, "steps": trainer.global_step}
    Path(sys.argv[1], f"rank-{trainer.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
