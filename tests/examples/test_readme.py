"""The README's first script, as it stands there, over SageMaker's files and on a laptop."""

import importlib.util
import re

import pytest

from lightning_sm._export import load_file
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT, run_python

_PROJECT = """
import pathlib
import torch
from torch.utils.data import DataLoader, TensorDataset
import NAMESPACE as pl


class MyData(pl.LightningDataModule):
    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def train_dataloader(self):
        numbers = [float(line) for line in (pathlib.Path(self.folder) / "numbers.txt").read_text().split()]
        return DataLoader(TensorDataset(torch.tensor(numbers).view(-1, 1)), batch_size=2)


class MyModel(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_index):
        return self.layer(batch[0]).pow(2).mean()

    def on_train_end(self):
        print(f"lr {self.hparams.lr!r}, {self.trainer.current_epoch} of {self.trainer.max_epochs} epochs")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
"""


@pytest.fixture
def script(tmp_path):
    """Write the script beside a project, with data in ``./data``; returns a function that runs it."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n### A script\n")[2]
    found = re.match(r"\s*```python\n(.*?)```", section, re.DOTALL)
    assert found is not None
    text, namespace = found.group(1), "lightning.pytorch"
    if importlib.util.find_spec("lightning") is None:
        text, namespace = (
            text.replace("from lightning.pytorch import", "from pytorch_lightning import"),
            "pytorch_lightning",
        )
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "numbers.txt").write_text("1\n2\n")
    (folder / "train.py").write_text(text)
    (folder / "my_project.py").write_text(_PROJECT.replace("NAMESPACE", namespace))

    def run(*words, **variables):
        return run_python("train.py", *words, folder=folder, **variables)

    return run


@pytest.mark.full
def test_in_a_job(script, tmp_path):
    opt_ml = OptMl(tmp_path / "ml").host("algo-1").hyperparameters(lr=0.25, max_epochs=2)
    opt_ml.write("inputdataconfig.json", {"training": {"TrainingInputMode": "File"}})
    channel = opt_ml.base / "input" / "data" / "training"
    channel.mkdir(parents=True)
    (channel / "numbers.txt").write_text("1\n" * 12)
    done = script("--lr", "0.25", "--max_epochs", "2", **opt_ml.environ(SM_NUM_GPUS=0))
    assert "lr 0.25, 2 of 2 epochs" in done.stdout or "lr 0.25, 1 of 2 epochs" in done.stdout  # as Lightning 1.5 counts
    assert load_file(str(opt_ml.base / "model" / "model.pt"), weights_only=True)["layer.weight"].shape == (1, 1)
    (last,) = opt_ml.base.rglob("fit-0/step-12.ckpt")
    assert load_file(str(last), weights_only=False)["global_step"] in (12, 13)  # batches of the channel, not of ./data


@pytest.mark.full
def test_on_a_laptop(script):
    assert re.search("lr 0.01, (9|10) of 10 epochs", script().stdout)
