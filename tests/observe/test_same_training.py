"""Progress lines, metric lines and the report together: a training is the same with and without them."""

import copy
import pickle
import random

import numpy
import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
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
        own = [callback_class(NAMESPACE, "TrainingMonitor")("1us", report=str(directory))]
    arguments = {"max_epochs": SIZE.epochs, "devices": 1, **made.arguments, **more}
    callbacks = [*arguments.pop("callbacks", []), *callbacks, *own]
    arguments["enable_progress_bar"] = bool(own)
    trainer = pl.Trainer(
        accelerator="cpu",
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
    return (weights, trainer.global_step, trainer.current_epoch, repr(trainer.logger.lines), drawn), lines, trainer


def check(make, tmp_path, monkeypatch, *callbacks):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lightning_sm._observe.progress._STALL_INTERVALS", 1e12)
    found = []
    for directory in (None, tmp_path / "report"):
        pl.seed_everything(7)
        found.append(outcome(make(), directory, copy.deepcopy(callbacks)))
    (plain, _, _), (ours, lines, trainer) = found
    assert ours == plain
    assert not [line for line in lines if "No more" in line or "could not" in line or "Left out" in line]
    assert (tmp_path / "report" / "report.html").is_file()
    return lines, trainer


@pytest.mark.parametrize("name", FEW)
def test_a_setup_trains_the_same(name, tmp_path, monkeypatch):
    check(lambda: SETUPS[name](pl, SIZE), tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(SETUPS).difference(FEW)))
def test_each_setup_trains_the_same(name, tmp_path, monkeypatch):
    if name.startswith("stateful_loader"):
        pytest.importorskip("torchdata.stateful_dataloader")
    check(lambda: SETUPS[name](pl, SIZE), tmp_path, monkeypatch)


class Copies(pl.Callback):
    """Copies and pickles the callbacks within a training, as one that saves the whole experiment does."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *_):
        if batch_idx == 1:
            for callback in trainer.callbacks:
                if type(callback).__module__.startswith("lightning_sm"):
                    copied = copy.deepcopy(callback)
                    copied.teardown(trainer, pl_module, "none")  # a copy detaches nothing
                    pickle.dumps(callback.progress)


def test_copies_within_a_training(tmp_path, monkeypatch):
    lines, trainer = check(lambda: SETUPS["plain"](pl, SIZE), tmp_path, monkeypatch, Copies())
    steps = [line for line in lines if line.startswith("progress train:")]
    assert len(steps) == SIZE.epochs * SIZE.batches
    # Nothing is left on the loops that a copy of the trainer could not take along.
    loops = [trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.val_loop]
    kept = [type(value) for loop in loops for value in vars(loop).values()]
    assert not [kind for kind in kept if kind.__module__.startswith("lightning_sm")]


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
