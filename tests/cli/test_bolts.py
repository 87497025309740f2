"""``pl_bolts.datamodules.CIFAR10DataModule``, which users of Lightning 1.x have, is routed as any other data module."""

import pytest

from lightning_sm._lightning import Namespace
from lightning_sm.cli import sagemaker_cli_class
from tests.projects.container import Container


def _bolts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore")
        try:
            from pl_bolts.datamodules import CIFAR10DataModule
        except Exception as error:  # it fails in its own ways beside newer packages
            pytest.skip(f"lightning-bolts, which ends at Lightning 1.x, cannot be imported ({type(error).__name__})")
    return CIFAR10DataModule


def test_data_dir_comes_from_the_channel_and_classes_reach_the_model(opt_ml, monkeypatch):
    data_class = _bolts()
    import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self, num_classes: int = 2) -> None:
            super().__init__()
            self.num_classes = num_classes

    class CLI(sagemaker_cli_class(Namespace("pytorch_lightning"))):
        def add_arguments_to_parser(self, parser):
            parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")

    container = Container(opt_ml, monkeypatch)
    container.opt_ml.hyperparameters()
    cli = container.cli(cls=CLI, model_class=Model, datamodule_class=data_class)
    assert str(cli.datamodule.data_dir) == str(container.channel("training"))
    assert cli.model.num_classes == 10
