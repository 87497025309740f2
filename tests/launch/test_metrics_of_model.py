"""``--metric auto``: metric definitions of the model that the command's config names."""

import sys

import pytest

from lightning_sm.launch import LaunchError, settings_of
from lightning_sm.launch._request import definitions_of

NET = """
import pytorch_lightning as pl

class Net(pl.LightningModule):
    def training_step(self, batch, batch_idx):
        self.log("loss", 1.0)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 1.0)
"""


@pytest.fixture
def source(tmp_path):
    pytest.importorskip("pytorch_lightning")
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "config.yaml").write_text("model: {class_path: net.Net}\n")
    return tmp_path


def names(source, *metrics, **hyperparameters):
    settings = settings_of({"metrics": list(metrics), "source_dir": str(source)})
    return [each["Name"] for each in definitions_of(settings, hyperparameters)]


def test_names_need_no_project(tmp_path):
    assert names(tmp_path / "none", "a", "b") == ["a", "b"]
    assert names(tmp_path / "none") == []
    assert "net" not in sys.modules


@pytest.mark.processes
@pytest.mark.slow
def test_the_model_of_the_config(source):
    assert names(source, "extra", "val_loss", "auto", config="config.yaml", subcommand="fit") == [
        "extra",
        "val_loss",
        "loss",
    ]
    assert "net" not in sys.modules


@pytest.mark.processes
@pytest.mark.slow
def test_a_project_that_cannot_be_read(source, capfd):
    with pytest.raises(LaunchError, match="--metric auto: the metrics of the model cannot be read"):
        names(source, "auto", config="none.yaml")
    assert "none.yaml" in capfd.readouterr().err
