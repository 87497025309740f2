"""Progress lines, metric lines, the report and saves together: a training is the same with and without them."""

import random

import numpy
import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from lightning_sm._resume.fits import forget_fits
from lightning_sm.callbacks import callback_class
from tests.helpers.accelerator import ranks
from tests.helpers.interrupted import Logged
from tests.helpers.setups import SETUPS, Size
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
pl = NAMESPACE.module()
SIZE = Size(epochs=2, batches=4)
# One for each way in which a callback could take part: steps, loops, loaders, random numbers, logged values, weights.
FEW = ("manual_optimization", "augmenting_workers", "several_val_loaders", "stochastic_weight_averaging")


def outcome(made, directory=None, callbacks=(), **more):
    """Train, and return all that a callback could have changed, and the lines that were logged."""
    own = []
    if directory is not None:
        forget_fits()  # as in a new process
        own = [
            callback_class(NAMESPACE, "TrainingMonitor")("1us", report=str(directory)),
            callback_class(NAMESPACE, "AutoResume")(str(directory / "saves"), save_every=0.01),
            callback_class(NAMESPACE, "FinetuningState")(),
        ]
    arguments = {"max_epochs": SIZE.epochs, **ranks(), **made.arguments, **more}
    callbacks = [*arguments.pop("callbacks", []), *callbacks, *own]
    arguments["enable_progress_bar"] = bool(own)
    trainer = pl.Trainer(
        logger=Logged(),
        log_every_n_steps=1,
        num_sanity_val_steps=1 if made.val is not None else 0,
        enable_model_summary=False,
        callbacks=callbacks,
        **arguments,
    )
    with log_lines() as lines:
        trainer.fit(made.model, made.train, made.val)
    weights = {name: value.tolist() for name, value in made.model.state_dict().items()}
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
    return (weights, trainer.global_step, trainer.current_epoch, repr(trainer.logger.lines), drawn), lines


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.full) for name in sorted(SETUPS)]
)
def test_a_setup_trains_the_same(name, tmp_path, monkeypatch):
    if name.startswith("stateful_loader"):
        pytest.importorskip("torchdata.stateful_dataloader")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightning_sm._observe.progress._STALL_INTERVALS", 1e12)
    found = []
    for directory in (None, tmp_path / "report"):
        pl.seed_everything(7)
        found.append(outcome(SETUPS[name](pl, SIZE), directory))
    (plain, _), (ours, lines) = found
    assert ours == plain
    assert not [line for line in lines if "No more" in line or "could not" in line or "Left out" in line]
    assert (tmp_path / "report" / "report.html").is_file()


class Unprintable(RuntimeError):
    def __str__(self):
        raise ValueError("no text")


class Fails(pl.Callback):
    def on_train_batch_end(self, *_):
        raise Unprintable


def test_the_exception_of_a_training_stays_what_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_sm.callbacks.training_monitor.describe_failure", lambda *_: 1 / 0)
    with pytest.raises(Unprintable):
        outcome(SETUPS["plain"](pl, SIZE), tmp_path, [Fails()], default_root_dir=str(tmp_path))
