"""Streams of the library: read by torch's loader with workers, then by its own, which keeps a position."""

import lightning.pytorch as pl
import torch
from around import end
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.writer import BinaryWriter
from torch.utils.data import DataLoader


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    writer = BinaryWriter("data", chunk_size=4)
    for index, sample in enumerate(torch.randn(20, 3, generator=torch.Generator().manual_seed(1))):
        writer[index] = sample
    writer.done()
    writer.merge()
    model, states = Net(), []
    for make, workers in ((DataLoader, 2), (StreamingDataLoader, 0)):
        data = StreamingDataset("data", shuffle=True, seed=3)
        trainer = pl.Trainer(max_epochs=8, accelerator="cpu", enable_progress_bar=False, logger=False)
        trainer.fit(model, make(data, batch_size=4, num_workers=workers))
        states.append({name: each.clone() for name, each in model.state_dict().items()})
    end(*states)
