"""What progress lines read from a trainer: metrics for the bar, sizes of loops, waits for data; and Lightning's tips.

Nothing here starts a collective: metrics are read as they have been computed, because only one rank reads them.
"""

import functools
import inspect
import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._lightning.legacy import connector_of_loggers, strategy_of
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.replaced_method import listen

__all__ = [
    "TrainPosition",
    "after_epoch_metrics",
    "around_evaluation_fetches",
    "around_fetches",
    "bar_metrics",
    "batch_count",
    "callback_metrics",
    "drop_disabled_bar",
    "drop_tips",
    "epoch_end_step",
    "evaluation_batches",
    "evaluation_loaders",
    "gpu_memory",
    "plain_model_summary",
    "progress_bar_base",
    "progress_bar_class",
    "progress_bars",
    "replicas_of",
    "train_loaders",
    "train_position",
]


def progress_bar_base(namespace: Namespace) -> str:
    """The module and name of the base class of progress bars."""
    has_bar = hasattr(namespace.module("callbacks"), "ProgressBar")  # since 2.0
    return "callbacks:ProgressBar" if has_bar else "callbacks:ProgressBarBase"


def progress_bar_class(namespace: Namespace) -> Any:
    """The base class of progress bars."""
    path, _, name = progress_bar_base(namespace).partition(":")
    return getattr(namespace.module(path), name)


def bar_metrics(trainer: Any, within_epoch: bool) -> Mapping[str, Any]:
    """The metrics that are logged with ``prog_bar=True``.

    Args:
        trainer: The trainer.
        within_epoch: Whether a batch of the epoch is being trained. Then values of the latest step are read, for which
            nothing is reduced. At the end of an epoch ``Trainer.progress_bar_metrics`` may reduce over all ranks; what
            has been reduced is read instead.
    """
    connector = connector_of_loggers(trainer)
    metrics: Mapping[str, Any] = trainer.progress_bar_metrics if within_epoch else connector._progress_bar_metrics
    return metrics


def callback_metrics(trainer: Any) -> Dict[str, Any]:
    """The metrics that callbacks see, without the reduction that ``Trainer.callback_metrics`` may do."""
    return dict(connector_of_loggers(trainer)._callback_metrics)


def after_epoch_metrics(trainer: Any, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` after each training epoch, when its metrics have been computed on all ranks.

    ``on_train_epoch_end`` of callbacks comes before that.

    Returns:
        A function that undoes it.
    """
    return listen(connector_of_loggers(trainer), "update_train_epoch_metrics", function)


def around_fetches(
    namespace: Namespace, trainer: Any, before: Callable[[], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Call functions before and after Lightning asks the training data loader for a batch.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer, in ``on_train_start``.
        before: Called before.
        after: Called after, in newer versions also if there are no more batches.

    Returns:
        A function that undoes it.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    names = ("_on_before_fetch", "_on_after_fetch")
    if not all(hasattr(loop, name) for name in names):
        return lambda: None
    undo_both = (listen(loop, names[0], before, first=True), listen(loop, names[1], after))

    def undo() -> None:
        for each in undo_both:
            each()

    return undo


def replicas_of(trainer: Any) -> int:
    """The number of processes that train on different data: all, unless the model itself is split among some."""
    arguments = getattr(strategy_of(trainer), "distributed_sampler_kwargs", None)
    number = arguments.get("num_replicas") if isinstance(arguments, dict) else None
    return int(number) if number else int(trainer.world_size)


def train_loaders(trainer: Any) -> Sequence[Any]:
    """The data loaders whose batches are trained together; one in most cases."""
    found = getattr(trainer.fit_loop, "_combined_loader", None)
    if found is None:
        found = trainer.train_dataloader
    loaders = getattr(found, "loaders", None)  # of 1.x
    if hasattr(found, "flattened"):
        return list(found.flattened)
    loaders = found if loaders is None else loaders
    if isinstance(loaders, Mapping):
        return list(loaders.values())
    return list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]


_TIPS = ("litlogger", "litmodels")


class _NoTips(logging.Filter):
    """Drops the lines in which Lightning recommends its own cloud services."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.msg if isinstance(record.msg, str) else ""
        return not ("Tip:" in text and any(name in text for name in _TIPS))


def drop_tips(namespace: Namespace) -> None:
    """Keep Lightning's recommendations to install ``litlogger`` and ``litmodels`` out of the log."""
    # The logger of the namespace that was imported last serves both.
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logger = logging.getLogger(f"{name}.utilities.rank_zero")
        if not any(isinstance(each, _NoTips) for each in logger.filters):
            logger.addFilter(_NoTips())


@dataclass(frozen=True)
class TrainPosition:
    """Where a training is and how far it goes.

    Args:
        epoch: The epoch, counted from 0.
        epochs: The number of epochs; ``None`` without a limit.
        batch: The batches of the epoch that have been trained, also by an earlier process.
        batches: The batches of an epoch; ``None`` if unknown.
        step: The optimizer steps that have been taken.
        steps: The largest number of them; ``None`` without a limit.
        seconds_left: Until ``max_time`` is over; ``None`` without a limit.
    """

    epoch: int
    epochs: Optional[int] = None
    batch: int = 0
    batches: Optional[int] = None
    step: int = 0
    steps: Optional[int] = None
    seconds_left: Optional[float] = None


def train_position(trainer: Any, step: int, *, has_ended: bool = False) -> TrainPosition:
    """Return where the training is, in ``on_train_batch_end`` or at the end of an epoch.

    Args:
        trainer: The trainer, in ``fit``.
        step: The optimizer steps, which Lightning 1.5 counts later.
        has_ended: Whether the epoch has: a batch that ``on_train_batch_start`` has skipped then does not count.
    """
    batches = trainer.fit_loop.epoch_loop.batch_progress.current
    epochs, steps = trainer.max_epochs, trainer.max_steps
    return TrainPosition(
        epoch=int(trainer.current_epoch),
        epochs=int(epochs) if epochs is not None and epochs >= 0 else None,
        batch=int(batches.completed if has_ended else batches.ready),
        batches=batch_count(trainer.num_training_batches),
        step=step,
        steps=int(steps) if steps is not None and steps >= 0 else None,
        seconds_left=_seconds_left(trainer),
    )


def _seconds_left(trainer: Any) -> Optional[float]:
    """The time until the first of Lightning's timers ends the training; ``None`` without one."""
    left = []
    for callback in trainer.callbacks:
        if any(kind.__name__ == "Timer" for kind in type(callback).__mro__):
            with suppress(Exception):  # of another class of that name
                left.append(float(callback.time_remaining("train")))
    return min(left, default=None)


def epoch_end_step(namespace: Namespace, trainer: Any) -> int:
    """The optimizer steps, in a function of :func:`after_epoch_metrics`; 1.5 counts one less just then."""
    return int(trainer.global_step)


def batch_count(number: Any) -> Optional[int]:
    """The sum of what Lightning says of one loader or a list of them; ``None`` if it is unknown or infinite."""
    numbers = list(number) if isinstance(number, (list, tuple)) else [number]
    known = [int(each) for each in numbers if isinstance(each, (int, float)) and math.isfinite(each)]
    return sum(known) if numbers and len(known) == len(numbers) else None


# By the stage of the trainer: the name of the data loaders, and of their numbers of batches.
_EVALUATION = {
    "sanity_check": ("val_dataloaders", "num_sanity_val_batches"),
    "validate": ("val_dataloaders", "num_val_batches"),
    "test": ("test_dataloaders", "num_test_batches"),
    "predict": ("predict_dataloaders", "num_predict_batches"),
}


def evaluation_loaders(trainer: Any, stage: str) -> Sequence[Any]:
    """The data loaders of a validation, test or prediction, in their order."""
    found = getattr(trainer, _EVALUATION[stage][0], None)
    if found is None:
        return []
    if isinstance(found, Mapping):
        return list(found.values())
    return list(found) if isinstance(found, (list, tuple)) else [found]


def evaluation_batches(trainer: Any, stage: str) -> Optional[int]:
    """The number of batches of a validation, test or prediction; ``None`` if unknown."""
    return batch_count(getattr(trainer, _EVALUATION[stage][1], None))


def around_evaluation_fetches(
    trainer: Any, before: Callable[[], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Call functions before and after a data loader is asked for a batch in a validation, test or prediction.

    Lightning before 1.7 does not tell.

    Args:
        trainer: The trainer, in ``setup``.
        before: Called before.
        after: Called after.

    Returns:
        A function that undoes it.
    """
    fit_loop = getattr(trainer, "fit_loop", None)
    loops = [getattr(getattr(fit_loop, "epoch_loop", None), "val_loop", None)]
    loops += [getattr(trainer, f"{name}_loop", None) for name in ("validate", "test", "predict")]
    # Before 2.0 the loop below it fetches.
    fetching = [each for loop in loops for each in (loop, getattr(loop, "epoch_loop", None))]
    undo = []
    for loop in fetching:
        if hasattr(loop, "_on_before_fetch") and hasattr(loop, "_on_after_fetch"):
            undo.append(listen(loop, "_on_before_fetch", before, first=True))
            undo.append(listen(loop, "_on_after_fetch", after))

    def undo_all() -> None:
        for each in undo:
            each()

    return undo_all


def drop_disabled_bar(namespace: Namespace, bar: type) -> None:
    """Leave bars of a class out of a trainer that is made with ``enable_progress_bar=False``, instead of an error.

    ``Trainer(enable_progress_bar=False, **trainer_settings())`` says so only when the callbacks have been made.

    Source: ``_CallbackConnector.on_trainer_init`` in ``lightning/pytorch/trainer/connectors/callback_connector.py``.
    """
    module = namespace.module("trainer.connectors.callback_connector")
    connector = getattr(module, "_CallbackConnector", None) or module.CallbackConnector
    original = connector.on_trainer_init
    if getattr(original, "drops_disabled_bar", False):
        return

    @functools.wraps(original)
    def on_trainer_init(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        callbacks = given.arguments.get("callbacks")
        if isinstance(callbacks, (list, tuple)) and not given.arguments.get("enable_progress_bar", True):
            given.arguments["callbacks"] = [callback for callback in callbacks if not isinstance(callback, bar)]
        return original(*given.args, **given.kwargs)

    on_trainer_init.drops_disabled_bar = True  # type: ignore[attr-defined]
    connector.on_trainer_init = on_trainer_init


def progress_bars(namespace: Namespace, callbacks: Sequence[Any]) -> Tuple[List[Any], List[Any]]:
    """The progress bars among callbacks: those of Lightning's classes, and those of other classes."""
    base = progress_bar_class(namespace)
    bars = [callback for callback in callbacks if isinstance(callback, base)]
    lightnings = [bar for bar in bars if type(bar).__module__.startswith(f"{namespace.name}.")]
    return lightnings, [bar for bar in bars if bar not in lightnings]


def gpu_memory(trainer: Any) -> Optional[Tuple[int, int]]:
    """The bytes that torch has reserved on this process's GPU, and those that it has; ``None`` without CUDA.

    Neither number waits for the GPU.
    """
    import torch

    device = getattr(strategy_of(trainer), "root_device", None)
    if getattr(device, "type", None) != "cuda" or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.memory_reserved(device)), int(torch.cuda.get_device_properties(device).total_memory)


def plain_model_summary(namespace: Namespace, present: Sequence[Any]) -> List[Any]:
    """A ``ModelSummary`` in plain text for a log, where Lightning would add one that draws a box with ``rich``."""
    if not namespace.module("utilities.imports")._RICH_AVAILABLE:
        return []
    summary = namespace.module("callbacks").ModelSummary
    return [] if any(isinstance(callback, summary) for callback in present) else [summary()]
