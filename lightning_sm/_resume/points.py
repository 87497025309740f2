"""What all ranks of a fit agree to do at the next moment at which it can be saved."""

from functools import partial
from typing import Any, Callable, List, Optional, Tuple

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce
from lightning_sm._lightning.legacy import steps_taken
from lightning_sm._lightning.restart import SavePoint, gathers_gradients, point_after_batch, resumes_within_epochs
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._lightning.trainer_hooks import after_batches
from lightning_sm._resume.fits import is_search_within

__all__ = ["ask_at_epoch_start", "ask_at_save_points", "stop_asking"]


class _SavePoints:
    """Asks callbacks of a trainer at each :class:`SavePoint` of a fit whether they want to act, on all ranks at once.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer, in ``on_train_start``.
        owner: The callback that says when an epoch starts, and whose absence tells of a search within the fit.
    """

    def __init__(self, namespace: Namespace, trainer: Trainer, owner: Any) -> None:
        self._namespace, self._trainer, self._owner = namespace, trainer, owner
        #: What asks whether something is due at a point, and what acts then.
        self.requests: List[Tuple[Callable[[Optional[SavePoint]], bool], Callable[[Optional[SavePoint]], Any]]] = []
        self._all_reduce = ThrottledAllReduce()
        self._saves_within_epochs = resumes_within_epochs(namespace)
        self._steps, self._counts = steps_taken(namespace, trainer), False
        self.stop = after_batches(trainer, self._after_batch)

    def __reduce__(self) -> Any:
        # The copy of a trainer asks nobody before it trains.
        return type(None), ()

    def at_epoch_start(self, callback: Any) -> None:
        if callback is self._owner and self._trainer.current_epoch > 0:
            self._ask(SavePoint.EPOCH)

    def _after_batch(self) -> None:
        if is_search_within(self._trainer, self._owner):
            return
        steps = steps_taken(self._namespace, self._trainer)
        if steps == self._steps:
            # Of a model that steps optimizers of its own Lightning counts none: it can only be stopped.
            if not self._counts and not gathers_gradients(self._trainer):
                self._ask(None)
            return
        self._steps, self._counts = steps, True
        point = point_after_batch(self._trainer) if self._saves_within_epochs else None
        if point is not None or not self._saves_within_epochs:
            self._ask(point)

    def _ask(self, point: Optional[SavePoint]) -> None:
        flags = [partial(is_due, point) for is_due, _ in self.requests]
        # At rare points nobody waits for the next all-reduce.
        due = self._all_reduce.any_true(self._trainer, flags, now=point not in (None, SavePoint.BATCH))
        for (_, act), must_act in zip(list(self.requests), due):
            if must_act:
                act(point)


_ATTRIBUTE = "_lightning_sm_save_points"


def ask_at_save_points(
    namespace: Namespace,
    trainer: Any,
    callback: Any,
    is_due: Callable[[Optional[SavePoint]], bool],
    act: Callable[[Optional[SavePoint]], Any],
) -> None:
    """Call ``act`` on all ranks at a point at which ``is_due`` is true on any. Every rank must ask for the same ones.

    They are called in the order in which they were asked for. After the batches of a Lightning that resumes at the
    start of epochs only, or that has counted no step of this fit, both are called with ``None``: the fit can stop
    there, but not be saved.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        callback: The callback that asks, in ``on_train_start``.
        is_due: Whether this rank wants to act at a point.
        act: Acts.
    """
    points = vars(trainer).get(_ATTRIBUTE)
    if points is None:
        points = vars(trainer)[_ATTRIBUTE] = _SavePoints(namespace, trainer, callback)
    points.requests.append((is_due, act))


def ask_at_epoch_start(trainer: Any, callback: Any) -> None:
    """Ask at the start of an epoch, once, whichever callbacks call it."""
    points = vars(trainer).get(_ATTRIBUTE)
    if points is not None:
        points.at_epoch_start(callback)


def stop_asking(trainer: Any) -> None:
    """Ask nobody any more in this fit."""
    points = vars(trainer).pop(_ATTRIBUTE, None)
    if points is not None:
        points.stop()
