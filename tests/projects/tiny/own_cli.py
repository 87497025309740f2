"""A project with a CLI of its own, as LightningCLI's documentation shows it."""

from pytorch_lightning.callbacks import ModelCheckpoint
from tiny_data import TinyData
from tiny_model import TinyModel

from lightning_sm import SageMakerCLI


class OwnCLI(SageMakerCLI):
    def add_arguments_to_parser(self, parser):
        parser.link_arguments("data.batch_size", "model.batch_size")
        parser.add_argument("--greeting", default="hello")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults({"checkpoint.monitor": "val_loss", "checkpoint.filename": "own"})


def make(**arguments):
    return OwnCLI(TinyModel, TinyData, **arguments)


if __name__ == "__main__":
    make()
