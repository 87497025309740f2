"""A command line of the project's own that trains, and then for longer."""

from pytorch_lightning.callbacks import ModelCheckpoint

from lightning_sm.cli import SageMakerCLI
from tests.fits.programs.parts import Model, Moments, Numbers, finish, read


def main():
    moments = Moments("first")
    defaults = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "logger": False,
        "enable_progress_bar": False,
        "callbacks": [moments, ModelCheckpoint(monitor="val_loss")],
    }
    cli = SageMakerCLI(Model, Numbers, run=False, seed_everything_default=16, trainer_defaults=defaults)
    cli.trainer.fit(cli.model, cli.datamodule)
    first = read(cli.trainer, cli.model, best_stays=False)
    moments.fit = "longer"
    cli.trainer.fit_loop.max_epochs = 4
    cli.trainer.fit(cli.model, cli.datamodule)
    finish(first=first, longer=read(cli.trainer, cli.model))


if __name__ == "__main__":
    main()
