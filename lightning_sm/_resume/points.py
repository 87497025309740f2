"""``SavePoints``: what all ranks of a fit agree to do at the next moment at which it can be saved."""

from functools import partial
from typing import Any, Callable, List, NamedTuple, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce
from lightning_sm._lightning.legacy import steps_taken
from lightning_sm._lightning.restart import SavePoint, point_after_batch, resumes_within_epochs
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._lightning.trainer_hooks import after_batch_hooks

__all__ = ["SavePoints", "save_points_of"]


class _Request(NamedTuple):
    is_due: Callable[[Optional[SavePoint]], bool]
    act: Callable[[Optional[SavePoint]], Any]


class SavePoints:
    """Asks callbacks of a trainer at each :class:`SavePoint` whether they want to act, on all ranks at the same ones.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
    """

    def __init__(self, namespace: Namespace, trainer: Trainer) -> None:
        self._namespace, self._trainer = namespace, trainer
        self._requests: List[_Request] = []
        self._owner: Any = None
        self._all_reduce = ThrottledAllReduce()
        self._steps = 0
        self._saves_within_epochs = False
        self._undo: Callable[[], None] = lambda: None

    def add(self, is_due: Callable[[Optional[SavePoint]], bool], act: Callable[[Optional[SavePoint]], Any]) -> None:
        """Call ``act`` on all ranks at a point at which ``is_due`` is true on any. Every rank must add the same ones.

        The requests are asked in the order in which they were added. After the batches of a Lightning that resumes at
        the start of epochs only, both are called with ``None``: the fit can stop there, but not be saved.
        """
        self._requests.append(_Request(is_due, act))

    def start(self, owner: Any) -> None:
        """Begin to ask, in ``on_train_start``; the first callback that calls it is the owner."""
        if self._owner is not None:
            return
        self._owner = owner
        self._saves_within_epochs = resumes_within_epochs(self._namespace)
        self._steps = steps_taken(self._namespace, self._trainer)
        self._undo = after_batch_hooks(self._trainer, self._after_batch)

    def stop(self) -> None:
        """End asking, and forget the requests."""
        self._undo()
        self._undo = lambda: None
        self._requests.clear()
        self._owner = None
        self._all_reduce = ThrottledAllReduce()

    def at_epoch_start(self, owner: Any) -> None:
        """Ask at the start of an epoch; only the owner's call counts."""
        if owner is self._owner and self._trainer.current_epoch > 0:
            self._ask(SavePoint.EPOCH)

    def _after_batch(self) -> None:
        # A search for a learning rate within the fit runs the loop with other callbacks.
        if self._owner not in callbacks_of(self._trainer):
            return
        steps = steps_taken(self._namespace, self._trainer)
        if steps == self._steps:
            return
        self._steps = steps
        if not self._saves_within_epochs:
            self._ask(None)
            return
        point = point_after_batch(self._trainer)
        if point is not None:
            self._ask(point)

    def _ask(self, point: Optional[SavePoint]) -> None:
        flags = [partial(request.is_due, point) for request in self._requests]
        # At rare points nobody waits for the next all-reduce.
        due = self._all_reduce.any_true(self._trainer, flags, now=point not in (None, SavePoint.BATCH))
        for request, is_due in zip(list(self._requests), due):
            if is_due:
                request.act(point)


_ATTRIBUTE = "_lightning_sm_save_points"


def save_points_of(namespace: Namespace, trainer: Any) -> SavePoints:
    """Return the :class:`SavePoints` of a trainer."""
    found: SavePoints = vars(trainer).setdefault(_ATTRIBUTE, SavePoints(namespace, trainer))
    return found
