"""The fits of a program: their numbers, what ends them, and which of them are only searches."""

import itertools
import json
import multiprocessing
from typing import Any, Dict, Iterator, Mapping

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._resume.storage import real_path

__all__ = [
    "counts_fits",
    "forget_fits",
    "is_search",
    "is_search_within",
    "next_fit",
    "stopping_criteria",
]

# The numbers of the next fits of this process, by checkpoint directory.
_numbers: Dict[str, Iterator[int]] = {}

# The arguments of EarlyStopping that affect when it stops.
_EARLY_STOPPING = ("monitor", "mode", "min_delta", "patience", "stopping_threshold", "divergence_threshold")


def counts_fits() -> bool:
    """Whether this process can know the number of a fit in its program.

    One that ``multiprocessing`` has started cannot: ``ddp_spawn`` makes new processes for each fit, and a program may
    train each of its folds in one. Each would take its fit for the program's first.
    """
    return multiprocessing.parent_process() is None


def next_fit(directory: str) -> int:
    """Count a fit of this process with a checkpoint directory, from 0."""
    return next(_numbers.setdefault(real_path(directory), itertools.count()))


def forget_fits() -> None:
    """Count from 0 again, as a new process does."""
    _numbers.clear()


def is_search(trainer: Trainer) -> bool:
    """Whether this fit only searches for a learning rate or a batch size: ``Tuner`` calls ``fit`` for that.

    Source: ``Tuner.lr_find`` and ``Tuner.scale_batch_size`` in ``lightning/pytorch/tuner/tuning.py``.
    """
    return any(getattr(callback, "_early_exit", False) for callback in callbacks_of(trainer))


def is_search_within(trainer: Trainer, callback: Any) -> bool:
    """Whether a search for a learning rate or a batch size runs within the fit of a callback.

    Lightning takes the callbacks away for it, but leaves the loop and loggers.

    Source: ``__lr_finder_reset_params`` in ``lightning/pytorch/tuner/lr_finder.py``.
    """
    return callback not in callbacks_of(trainer)


def stopping_criteria(namespace: Namespace, trainer: Trainer) -> Mapping[str, Any]:
    """Return what ends a fit, as JSON returns it: its limits, the arguments of ``Timer`` and ``EarlyStopping``."""
    criteria = {name: getattr(trainer, name) for name in ("min_epochs", "max_epochs", "min_steps", "max_steps")}
    callbacks = namespace.module("callbacks")
    for kind, names in ((callbacks.Timer, ("_duration",)), (callbacks.EarlyStopping, _EARLY_STOPPING)):
        for callback in callbacks_of(trainer):
            if isinstance(callback, kind):
                values = {name.lstrip("_"): getattr(callback, name, None) for name in names}
                criteria.setdefault(kind.__name__, []).append(values)
    found: Mapping[str, Any] = json.loads(json.dumps(criteria, default=str))
    return found
