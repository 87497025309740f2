"""CIFAR-10 as a data module, with a bundled sample for machines without the data."""

from pathlib import Path
from typing import Callable, Optional, Tuple

import numpy as np
import torch
from cifar_files import ARCHIVE, FOLDER, TEST_FILES, TRAIN_FILES, CIFARFilesError, find, read
from pytorch_lightning import LightningDataModule
from pytorch_lightning.utilities import rank_zero_info
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import CIFAR10

SAMPLE = Path(__file__).resolve().parent / "sample" / ARCHIVE

# Of CIFAR-10's training pictures, per channel.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)


class Pictures(Dataset):
    """Pictures and labels in memory."""

    def __init__(self, pictures: "np.ndarray", labels: "np.ndarray", transform: Callable) -> None:
        self.pictures = torch.from_numpy(pictures)
        self.labels = torch.from_numpy(labels)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.pictures[index]), self.labels[index]


class CIFAR10DataModule(LightningDataModule):
    """Reads CIFAR-10's own files, or the bundled sample where no ``data_dir`` is given.

    Args:
        data_dir: Holds the folder ``cifar-10-batches-py`` or the file ``cifar-10-python.tar.gz``. May be read-only.
        batch_size: Pictures per step and process.
        num_workers: Processes that load data, per training process.
        val_split: Share of the training pictures that is kept for validation.
        download: Download CIFAR-10 into ``data_dir`` where it is not there yet.
        seed: Decides which pictures are kept for validation.
    """

    def __init__(
        self,
        data_dir: Optional[str] = None,
        batch_size: int = 128,
        num_workers: int = 0,
        val_split: float = 0.2,
        download: bool = False,
        seed: int = 42,
    ) -> None:
        super().__init__()
        if not 0 < val_split < 1:
            raise ValueError(f"val_split is {val_split}. HINT: It is a share, greater than 0 and less than 1.")
        if download and data_dir is None:
            raise ValueError("download is on, and data_dir is not set. HINT: Set data_dir to where CIFAR-10 should go.")
        self.save_hyperparameters()
        self.data_dir = data_dir
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.val_split = val_split
        self.download = download
        self.seed = seed

    def prepare_data(self) -> None:
        """Download where that was asked for; say so where the sample is used."""
        if self.data_dir is None:
            rank_zero_info(
                "data_dir is not set: training on the bundled sample (2,000 Fashion-MNIST pictures in CIFAR-10's "
                "file format), not on CIFAR-10."
            )
        elif self.download and find(Path(self.data_dir)) is None:
            try:
                CIFAR10(self.data_dir, download=True)
            # torchvision raises OSError for the network and the disk, RuntimeError for a wrong checksum.
            except (OSError, RuntimeError) as error:
                raise CIFARFilesError(
                    f"CIFAR-10 could not be downloaded into {self.data_dir}: {error}. HINT: Without internet, put "
                    f"{ARCHIVE} into data_dir; without data_dir and download, the bundled sample is used."
                ) from error

    def setup(self, stage: Optional[str] = None) -> None:
        """Read what ``stage`` needs: training files for fit and validate, the test file for test and predict."""
        source = SAMPLE if self.data_dir is None else self._find(Path(self.data_dir))
        plain = [transforms.ConvertImageDtype(torch.float32), transforms.Normalize(MEAN, STD)]
        if stage in (None, "fit", "validate"):
            pictures, labels = read(source, TRAIN_FILES)
            train, val = self._split(len(labels))
            augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
            self.train_set = Pictures(pictures[train], labels[train], transforms.Compose(augment + plain))
            self.val_set = Pictures(pictures[val], labels[val], transforms.Compose(plain))
        if stage in (None, "test", "predict"):
            self.test_set = Pictures(*read(source, TEST_FILES), transforms.Compose(plain))

    def train_dataloader(self) -> DataLoader:
        """Shuffled training pictures, with random crops and flips."""
        return self._loader(self.train_set, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Return the pictures kept for validation."""
        return self._loader(self.val_set)

    def test_dataloader(self) -> DataLoader:
        """Return the pictures of the test file."""
        return self._loader(self.test_set)

    def predict_dataloader(self) -> DataLoader:
        """Return the pictures of the test file."""
        return self._loader(self.test_set)

    def _loader(self, pictures: Pictures, shuffle: bool = False) -> DataLoader:
        return DataLoader(
            pictures,
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    def _split(self, count: int) -> Tuple["np.ndarray", "np.ndarray"]:
        held = max(1, int(count * self.val_split))
        order = np.random.RandomState(self.seed).permutation(count)
        if held >= count:
            raise CIFARFilesError(
                f"{count} training pictures cannot be split with val_split={self.val_split}. HINT: Use more pictures."
            )
        return order[held:], order[:held]

    def _find(self, data_dir: Path) -> Path:
        try:
            source = find(data_dir)
            found = sorted(path.name for path in data_dir.iterdir()) if source is None else []
        except OSError as error:
            raise CIFARFilesError(
                f"data_dir is {data_dir}, which cannot be listed: {error}. HINT: Set data_dir to a folder that holds "
                f"{FOLDER} or {ARCHIVE}."
            ) from error
        if source is None:
            listed = ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
            raise CIFARFilesError(
                f"data_dir is {data_dir} and holds neither {FOLDER} nor {ARCHIVE}, but {listed or 'nothing'}. "
                "HINT: Put one of them there, set download to true, or leave data_dir out to train on the sample."
            )
        return source
