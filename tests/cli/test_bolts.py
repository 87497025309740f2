"""``pl_bolts.datamodules.CIFAR10DataModule``, which users of Lightning 1.x have, is routed as any other data module."""

import pytest


def _bolts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore")
        try:
            from pl_bolts.datamodules import CIFAR10DataModule
        except Exception as error:  # it fails in its own ways beside newer packages
            pytest.skip(f"lightning-bolts, which ends at Lightning 1.x, cannot be imported ({type(error).__name__})")
    return CIFAR10DataModule


def test_data_dir_comes_from_the_channel_and_classes_reach_the_model(container):
    data_class = _bolts()
    import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self, num_classes: int = 2) -> None:
            super().__init__()
            self.num_classes = num_classes

    def add(parser):
        parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")

    container.opt_ml.hyperparameters()
    cli = container.cli(add=add, model_class=Model, datamodule_class=data_class)
    assert str(cli.datamodule.data_dir) == str(container.channel("training"))
    assert cli.model.num_classes == 10
