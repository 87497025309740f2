"""What observing a training needs of Lightning beside hooks of callbacks: metrics, progress bars, waits for data.

Nothing here starts a collective: metrics are read as they have been computed, because only one rank reads them.
All of it is for Lightning 2.1 and newer.
"""

import logging
import math
import sys
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

from lightning_sm._lightning.namespaces import RANK_ZERO_MODULES, Namespace
from lightning_sm._lightning.replaced_method import ReplacedMethod, listen
from lightning_sm._lightning.trainer import callbacks_named
from lightning_sm._lightning.trainer_hooks import skip_hooks, skip_unused_hooks

__all__ = [
    "around_fetches",
    "bar_metrics",
    "callback_metrics",
    "drop_tips",
    "evaluated_loaders",
    "hand_metrics_to",
    "is_rank_zero",
    "plain_model_summary",
    "replace_progress_bar",
    "seconds_of_timers",
]


def bar_metrics(trainer: Any, within_epoch: bool) -> Mapping[str, Any]:
    """The metrics that are logged with ``prog_bar=True``.

    Args:
        trainer: The trainer.
        within_epoch: Whether a batch of the epoch is being trained. Then values of the latest step are read, for which
            nothing is reduced. At the end of an epoch ``Trainer.progress_bar_metrics`` may reduce over all ranks; what
            has been reduced is read instead.
    """
    metrics: Mapping[str, Any] = (
        trainer.progress_bar_metrics if within_epoch else trainer._logger_connector._progress_bar_metrics
    )
    return metrics


def callback_metrics(trainer: Any) -> Dict[str, Any]:
    """The metrics that callbacks see, without the reduction that ``Trainer.callback_metrics`` may do."""
    return dict(trainer._logger_connector._callback_metrics)


def evaluated_loaders(trainer: Any) -> Tuple[List[Any], float]:
    """The loaders of the validation, test or prediction that runs, and their batches; infinite if that is unknown."""
    loop = trainer._active_loop
    # A CombinedLoader of the project's may give one batch of each loader at once.
    totals: Dict[str, Any] = {"sequential": sum, "min_size": min}
    total = totals.get(loop._combined_loader._mode, max)(loop.max_batches)
    return list(loop._combined_loader.flattened), total


def seconds_of_timers(trainer: Any) -> float:
    """The time until the first of Lightning's timers (``max_time``) ends the training; infinite without one."""
    left = (timer.time_remaining("train") for timer in callbacks_named(trainer, "Timer"))
    return min((seconds for seconds in left if seconds is not None), default=math.inf)


def hand_metrics_to(trainer: Any, logger: Any) -> Callable[[], None]:
    """Let a logger get what Lightning hands to loggers, and change neither ``trainer.logger`` nor ``log_dir``.

    It becomes the last logger. A trainer without loggers has none for its program, also meanwhile: Lightning returns
    before it hands over metrics then (``_LoggerConnector.log_metrics``), so that the logger is there for the time of
    that method only.

    Args:
        trainer: The trainer, in ``setup``.
        logger: The logger. It raises nothing.

    Returns:
        A function that undoes it.
    """
    if trainer.loggers:
        trainer.loggers = [*trainer.loggers, logger]

        def undo() -> None:
            trainer.loggers = [each for each in trainer.loggers if each is not logger]

        return undo

    def log_metrics(original: Any, *args: Any, **kwargs: Any) -> None:
        loggers, trainer.loggers = trainer.loggers, [*trainer.loggers, logger]
        try:
            # Lightning does not look at a metric that is no number, or a step that is none, where there are no loggers.
            with suppress(ValueError, TypeError, OverflowError):
                original(*args, **kwargs)
        finally:
            trainer.loggers = loggers

    return ReplacedMethod(trainer._logger_connector, "log_metrics", log_metrics).undo


def around_fetches(trainer: Any, before: Callable[[], None], after: Callable[[], None]) -> List[Callable[[], None]]:
    """Call functions before and after Lightning asks a data loader for a batch, in any stage.

    Between hooks of callbacks much else happens. This would end with hooks around the fetch.

    Args:
        trainer: The trainer, in ``setup``.
        before: Called before.
        after: Called after, also if there are no more batches.

    Returns:
        Functions that undo it.
    """
    epochs = trainer.fit_loop.epoch_loop
    loops = (epochs, epochs.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop)
    undo = [listen(loop, "_on_before_fetch", before, first=True) for loop in loops]
    return [*undo, *(listen(loop, "_on_after_fetch", after) for loop in loops)]


def replace_progress_bar(namespace: Namespace, trainer: Any) -> bool:
    """Disable Lightning's own progress bars, which show nothing readable in a log.

    Returns:
        Whether lines are to be written instead: not without a bar (``enable_progress_bar=False``), and not beside one
        of the project's own class.
    """
    bar_class = namespace.module("callbacks").ProgressBar
    bars = [callback for callback in trainer.callbacks if isinstance(callback, bar_class)]
    if not bars or any(not type(bar).__module__.startswith(f"{namespace.name}.") for bar in bars):
        return False
    for bar in bars:
        bar.disable()
        bar.enable = bar.disable  # Lightning's searches for a learning rate or a batch size enable it at their end
        # A disabled bar does nothing in a step, but Lightning takes microseconds for each hook that it calls.
        skip_unused_hooks(namespace, bar)
        skip_hooks(namespace, bar, ("on_train_batch_end",))
    return True


def is_rank_zero() -> bool:
    """Whether Lightning's ``rank_zero_only`` calls functions in this process."""
    found = (getattr(sys.modules.get(name), "rank_zero_only", None) for name in RANK_ZERO_MODULES)
    return not any(getattr(rank_zero_only, "rank", 0) for rank_zero_only in found)


def _is_no_tip(record: logging.LogRecord) -> bool:
    return "litlogger" not in str(record.msg) and "litmodels" not in str(record.msg)


def drop_tips() -> None:
    """Keep Lightning's recommendations to install ``litlogger`` and ``litmodels`` out of the log."""
    # The logger of the namespace that was imported last serves both.
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(f"{name}.utilities.rank_zero").addFilter(_is_no_tip)


def plain_model_summary(namespace: Namespace, present: Sequence[Any]) -> List[Any]:
    """A ``ModelSummary`` in plain text for a log, where Lightning would add one that draws a box with ``rich``."""
    if not getattr(namespace.module("utilities.imports"), "_RICH_AVAILABLE", False):  # since 2.6
        return []
    summary = namespace.module("callbacks").ModelSummary
    return [] if any(isinstance(callback, summary) for callback in present) else [summary()]
