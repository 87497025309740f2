"""Programs with several fits. Each is a function that is given a ``tools.faults.train.Run``, which plays its fits."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from tests.helpers.setups import BATCH_SIZE, Numbers, Setup, net

__all__ = ["PARTS", "PROGRAMS"]

#: What is trained, by name.
PROGRAMS = {}

#: The programs that an entry point runs one after the other, by its name. All have one fit.
PARTS = {"processes": ("pretrain", "finetune")}

_FOLDS = 3
# Batches of an epoch, for each rank.
_BATCHES = 6


def program(function):
    """Add a function to the library under its name."""
    PROGRAMS[function.__name__] = function
    return function


def _model(pl, width=8, rate=0.01):
    model = net(pl, lambda module: torch.optim.SGD(module.parameters(), lr=rate, momentum=0.9))()
    model.layers = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.3), nn.Linear(width, 1))
    return model


def _split(run, model, fold):
    """A model with two thirds of the samples to train and the others to validate."""
    data = Numbers(_BATCHES * _FOLDS // (_FOLDS - 1) * run.ranks * BATCH_SIZE)
    train = DataLoader(Subset(data, [n for n in range(len(data)) if n % _FOLDS != fold]), BATCH_SIZE, shuffle=True)
    return Setup(model, train, DataLoader(Subset(data, range(fold, len(data), _FOLDS)), BATCH_SIZE))


def _best(run, *below):
    return run.pl.callbacks.ModelCheckpoint(run.checkpoints(*below), "best", monitor="val_loss")


@program
def folds(run):
    """Folds with checkpoints of their own, and a last fit that their scores decide, in the job's directory."""
    scores = []
    for fold in range(_FOLDS):
        trainer = run.trainer(max_epochs=2, callbacks=[_best(run, f"fold{fold}")])
        run.fit(trainer, _split(run, _model(run.pl), fold))
        scores.append(float(trainer.callback_metrics["val_loss"]))
    best = min(range(_FOLDS), key=scores.__getitem__)
    run.fit(run.trainer(max_epochs=2), _split(run, _model(run.pl, width=8 + 4 * best), best))


@program
def stages(run):
    """A model, and then a larger one that takes over its first layer."""
    run.fit(run.trainer(max_epochs=3), _split(run, _model(run.pl), 0))
    larger = _model(run.pl, width=12, rate=0.005)
    with torch.no_grad():
        larger.layers[0].weight[:8] = run.weights["layers.0.weight"].reshape(8, 4)
    run.fit(run.trainer(max_epochs=3, callbacks=[_best(run, "finetune")]), _split(run, larger, 1))


@program
def raised(run):
    """One trainer, whose limit is raised."""
    made, trainer = _split(run, _model(run.pl), 0), run.trainer(max_epochs=3)
    run.fit(trainer, made)
    trainer.fit_loop.max_epochs = 5
    run.fit(trainer, made)


@program
def choice(run):
    """Two learning rates, and a last model whose size their scores and a random number decide."""
    tried = []
    for rate in (0.002, 0.02):
        trainer = run.trainer(max_epochs=2)
        run.fit(trainer, _split(run, _model(run.pl, rate=rate), 0))
        tried.append((float(trainer.callback_metrics["val_loss"]), rate))
    _, rate = min(tried)
    width = 8 if float(torch.rand(())) < 0.5 else 12
    run.fit(run.trainer(max_epochs=3), _split(run, _model(run.pl, width if rate > 0.01 else 2 * width, rate), 1))


@program
def processes(run):
    """The entry point ``tools.faults.entry`` runs ``pretrain`` and ``finetune``, each in a process of its own."""
    {"pretrain": _pretrain, "finetune": _finetune}[run.part](run)


def _pretrain(run):
    trainer = run.trainer(max_epochs=3)
    run.fit(trainer, _split(run, _model(run.pl), 0))
    # Where the job keeps its checkpoints, and newer than all of them.
    trainer.save_checkpoint(run.checkpoints("pretrained.ckpt"))


def _finetune(run):
    model = _model(run.pl, rate=0.003)
    state = torch.load(os.path.join(run.checkpoints(), "pretrained.ckpt"), weights_only=False)["state_dict"]
    model.layers.load_state_dict({name[len("layers.") :]: state[name] for name in state if name.startswith("layers.")})
    run.fit(run.trainer(max_epochs=3), _split(run, model, 1))
