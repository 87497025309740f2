"""The programs that are killed and stopped: ``python -m tests.fits.programs NAME ARGUMENTS``."""

import json
import os
import sys

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import BatchSizeFinder, LearningRateFinder, ModelCheckpoint
from pytorch_lightning.tuner.tuning import Tuner

import lightning_sm
from lightning_sm.cli import SageMakerCLI
from tests.fits.parts import Model, Moments, Numbers, at, finish, fit, loaders, read, trainer
from tests.helpers.accelerator import ACCELERATOR

PROGRAMS = {}


def program(function):
    """Add a function to the programs under its name."""
    PROGRAMS[function.__name__] = function
    return function


def best(folder=None, **more):
    return ModelCheckpoint(folder, monitor="val_loss", **more)


@program
def kfold(where):
    """Three folds and a final fit.

    The folds save in ``directories`` of their own, by ``callbacks`` with a ``dirpath`` each, or all in ``one``.
    """
    folds = []
    for fold in range(3):
        name = f"fold{fold}"
        saver = best(f"checkpoints/{name}" if where == "callbacks" else None)
        folder = name if where == "directories" else None
        folds.append(read(fit(name, Model(), loaders(fold), saver, folder=folder)))
    finish(folds=folds, final=read(fit("final", Model(), loaders(3)[:1])))


@program
def two_stages(where):
    """Pretrains, then trains another model with its encoder, in a ``directory`` of its own or in ``one``."""
    pretrained = fit("pretrain", Model(), loaders())
    first = read(pretrained)
    model = Model()
    model.encoder = pretrained.lightning_module.encoder
    model.head = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    folder = "finetune" if where == "directory" else None
    finish(pretrain=first, finetune=read(fit("finetune", model, loaders(1), best(save_last=True), folder=folder)))


def train_longer(moments, trainer, model, *data):
    """Train with one trainer, and then longer."""
    trainer.fit(model, *data)
    first = read(trainer, best_stays=False)
    moments.fit = "longer"
    trainer.fit_loop.max_epochs = 4
    trainer.fit(model, *data)
    finish(first=first, longer=read(trainer))


@program
def raised_limit(which):
    """Trains, and then longer: with the ``same`` trainer, or a ``new`` one that begins at the best checkpoint."""
    if which == "same":
        moments = Moments("first")
        train_longer(moments, trainer(2, moments, best()), Model(), *loaders())
        return
    first = fit("first", Model(), loaders(), best())
    found, path = read(first, best_stays=False), first.checkpoint_callback.best_model_path
    longer = fit("longer", first.lightning_module, loaders(), best(), max_epochs=4, ckpt_path=path)
    finish(first=found, longer=read(longer))


@program
def command_line():
    """The same by a command line of the project's own."""
    moments = Moments("first")
    more = {"logger": {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}, "enable_progress_bar": False}
    defaults = {"accelerator": ACCELERATOR, "max_epochs": 2, "callbacks": [moments, best()], **more}
    sys.argv[1:] = []
    cli = SageMakerCLI(Model, Numbers, run=False, seed_everything_default=16, trainer_defaults=defaults)
    train_longer(moments, cli.trainer, cli.model, cli.datamodule)


@program
def experiment(fold="0", lr="0.02"):
    """One of several. The variable ``WIDTH`` is the model's."""
    model = Model(int(os.environ.get("WIDTH", "8")), lr=float(lr))
    finish(fit=read(fit(f"fold{fold}", model, loaders(int(fold)))))


@program
def finetune():
    """The second program of an entry point: trains an equal model, with the first one's weights, on other data."""
    at("between")
    model = Model()
    model.load_state_dict(torch.load(os.path.join(lightning_sm.job().model_dir, "model.pt"), weights_only=True))
    finish(finetune=read(fit("finetune", model, loaders(1))))


@program
def searches(search):
    """Searches before a fit, or at its beginning, and fits once more with what was found."""
    batches = {"init_val": 4, "max_trials": 2, "steps_per_trial": 2}
    model, numbers, callbacks = Model(), Numbers(), [Moments("searched")]
    if search == "LearningRateFinder":
        callbacks.append(LearningRateFinder(num_training_steps=15, early_stop_threshold=None))
    if search == "BatchSizeFinder":
        callbacks.append(BatchSizeFinder(**batches))
    searched = trainer(4, *callbacks)
    if search == "lr_find":
        Tuner(searched).lr_find(model, datamodule=numbers, num_training=15, early_stop_threshold=None)
    if search == "scale_batch_size":
        Tuner(searched).scale_batch_size(model, datamodule=numbers, **batches)
    searched.fit(model, datamodule=numbers)
    found = {"lr": model.lr, "batch_size": numbers.batch_size, "searched": read(searched)}
    finish(**found, after=read(fit("after", Model(lr=model.lr), [numbers], max_epochs=1)))


class WritesFiles(Model):
    """Writes files of its own into the model directory when a fit ends."""

    def on_train_end(self):
        torch.save(self.encoder.state_dict(), os.path.join(lightning_sm.job().model_dir, "encoder.pt"))

    def on_fit_end(self):
        found = {"val_loss": float(self.trainer.callback_metrics["val_loss"]), "step": self.trainer.global_step}
        with open(os.path.join(lightning_sm.job().model_dir, "calibration.json"), "w") as file:
            json.dump(found, file)


@program
def writes_files():
    finish(fit=read(fit("fit", WritesFiles(), loaders())))


class Large(Model):
    """Needs more memory than there is after a few steps."""

    def training_step(self, batch, batch_index):
        if self.batch_size > 8 and self.trainer.global_step == 6:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return super().training_step(batch, batch_index)


@program
def caught_error():
    """Runs out of memory, and trains a new model with smaller batches then."""
    for batch_size in (10, 5):
        data = loaders(batch_size=batch_size)
        try:
            found = read(fit(f"batches of {batch_size}", Large(batch_size=batch_size), data, max_epochs=3))
        except torch.cuda.OutOfMemoryError:
            continue
    # Where a checkpoint lies is another place on a laptop.
    finish(fit={name: value for name, value in found.items() if not name.startswith("best")})


@program
def own_checkpoint():
    """Saves a checkpoint of its own into the job's directory after a fit, of a model that it has changed."""
    first = fit("fit", Model(), loaders())
    found = read(first)
    with torch.no_grad():
        for parameter in first.lightning_module.parameters():
            parameter.zero_()
    first.save_checkpoint(os.path.join(lightning_sm.job().checkpoint_dir, "zeros.ckpt"))
    at("saved")
    finish(fit=found, second=read(fit("second", Model(), loaders(1), max_epochs=3)))


@program
def from_checkpoint(path):
    """A short fit, and one that begins at a checkpoint."""
    first = read(fit("first", Model(), loaders(), max_epochs=1))
    finish(first=first, given=read(fit("given", Model(), loaders(), max_epochs=5, ckpt_path=path)))


@program
def plain(path, steps):
    """A training of plain Lightning, which keeps one checkpoint."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    alone = pl.Trainer(accelerator=ACCELERATOR, max_steps=int(steps), enable_checkpointing=False, **quiet)
    alone.fit(Model(), *loaders(1))
    alone.save_checkpoint(path)
    finish()


if __name__ == "__main__":
    pl.seed_everything(7)
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
