"""What progress lines read from a trainer: metrics for the bar, sizes of loops, waits for data; and Lightning's tips.

Nothing here starts a collective: metrics are read as they have been computed, because only one rank reads them.
"""

import logging
from typing import Any, Callable, Dict, List, Mapping, Sequence

from lightning_sm._lightning.compat import needs
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.namespaces import Namespace

__all__ = [
    "after_epoch_metrics",
    "around_fetches",
    "bar_metrics",
    "callback_metrics",
    "drop_tips",
    "progress_bar_base",
    "replicas_of",
    "train_loaders",
]


def progress_bar_base(namespace: Namespace) -> str:
    """The module and name of the base class of progress bars."""
    return "callbacks:ProgressBarBase" if needs("progress_bar_base", namespace) else "callbacks:ProgressBar"


def _connector_of(trainer: Any) -> Any:
    return getattr(trainer, "_logger_connector", None) or trainer.logger_connector


def bar_metrics(trainer: Any, within_epoch: bool) -> Mapping[str, Any]:
    """The metrics that are logged with ``prog_bar=True``.

    Args:
        trainer: The trainer.
        within_epoch: Whether a batch of the epoch is being trained. Then values of the latest step are read, for which
            nothing is reduced. At the end of an epoch ``Trainer.progress_bar_metrics`` may reduce over all ranks; what
            has been reduced is read instead.
    """
    connector = _connector_of(trainer)
    metrics: Mapping[str, Any] = trainer.progress_bar_metrics if within_epoch else connector._progress_bar_metrics
    return metrics


def callback_metrics(trainer: Any) -> Dict[str, Any]:
    """The metrics that callbacks see, without the reduction that ``Trainer.callback_metrics`` may do."""
    return dict(_connector_of(trainer)._callback_metrics)


def after_epoch_metrics(trainer: Any, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` after each training epoch, when its metrics have been computed on all ranks.

    ``on_train_epoch_end`` of callbacks comes before that.

    Returns:
        A function that undoes it.
    """
    return _listen(_connector_of(trainer), "update_train_epoch_metrics", function)


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
    if needs("around_fetches", namespace):
        # 1.6 keeps the fetcher in the loop.
        connector = getattr(trainer, "_data_connector", None)
        loop = getattr(trainer.fit_loop, "_data_fetcher", None) or getattr(connector, "train_data_fetcher", None)
        names = ("on_fetch_start", "on_fetch_end")
    if not all(hasattr(loop, name) for name in names):
        return lambda: None
    undo_both = (_listen(loop, names[0], before, first=True), _listen(loop, names[1], after))

    def undo() -> None:
        for each in undo_both:
            each()

    return undo


def _listen(owner: Any, name: str, function: Callable[[], None], *, first: bool = False) -> Callable[[], None]:
    """Call a function with each call of a method of one object: after it, or ``first``."""
    functions: List[Callable[[], None]] = vars(owner).setdefault(f"_lightning_sm_{name}", [])
    if name not in vars(owner):
        method = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if first:
                for each in functions:
                    each()
            result = method(*args, **kwargs)
            if not first:
                for each in functions:
                    each()
            return result

        setattr(owner, name, call)
    functions.append(function)

    def undo() -> None:
        if function in functions:
            functions.remove(function)

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
    if not needs("drop_tips", namespace):
        return
    # The logger of the namespace that was imported last serves both.
    for name in ("lightning.pytorch", "pytorch_lightning"):
        logger = logging.getLogger(f"{name}.utilities.rank_zero")
        if not any(isinstance(each, _NoTips) for each in logger.filters):
            logger.addFilter(_NoTips())
