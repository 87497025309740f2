import torch
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset


class TinyData(LightningDataModule):
    def __init__(self, data_dir: str, val_dir: str = "val", batch_size: int = 4):
        super().__init__()
        self.data_dir = data_dir
        self.val_dir = val_dir
        self.batch_size = batch_size

    def train_dataloader(self):
        samples = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(samples), batch_size=self.batch_size)

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader
