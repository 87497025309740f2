"""Progress lines, metric lines and the report together: a training is the same with and without them."""

import copy
import pickle
import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import Logged
from tests.helpers.setups import BATCH_SIZE, SETUPS, Numbers, Setup, Size, net
from tests.helpers.setups_callbacks import CALLBACK_SETUPS
from tests.helpers.setups_data import DATA_SETUPS
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
pl = NAMESPACE.module()
SIZE = Size(epochs=2, batches=4)
LIBRARY = {**SETUPS, **DATA_SETUPS, **CALLBACK_SETUPS}
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
    check(lambda: LIBRARY[name](pl, SIZE), tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(LIBRARY).difference(FEW)))
def test_each_setup_trains_the_same(name, tmp_path, monkeypatch):
    if name.startswith("stateful_loader"):
        pytest.importorskip("torchdata.stateful_dataloader")
    check(lambda: LIBRARY[name](pl, SIZE), tmp_path, monkeypatch)


class Batch:
    def __init__(self, samples):
        self.parts = torch.utils.data.default_collate(samples)


class WithAnyAttribute(Batch):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: None


class Loader:
    """What a project may hand to ``fit``: anything that can be iterated."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)

    @property
    def batch_size(self):
        raise RuntimeError("it differs")


class UnpackingMixin:
    log: Any

    def loss(self, batch):
        return super().loss(batch.parts if isinstance(batch, Batch) else batch)

    def transfer_batch_to_device(self, batch, *_):
        return batch

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), batch_size=BATCH_SIZE)


@pytest.mark.parametrize("kind", [*Batch.__subclasses__(), Loader], ids=lambda kind: kind.__name__)
def test_batches_and_loaders_of_the_users_own(kind, tmp_path, monkeypatch):
    def made():
        model = type("Unpacking", (UnpackingMixin, net(pl)), {})()
        collate = None if kind is Loader else kind
        loaders = [DataLoader(Numbers(SIZE.samples), batch_size=BATCH_SIZE, collate_fn=collate) for _ in range(2)]
        return Setup(model, *(map(Loader, loaders) if kind is Loader else loaders))

    lines, _ = check(made, tmp_path, monkeypatch)
    ends = [line for line in lines if line.startswith("progress train end")]
    assert [line for line in ends if "batch=4/4" in line] == ends
    assert len(ends) == SIZE.epochs


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
