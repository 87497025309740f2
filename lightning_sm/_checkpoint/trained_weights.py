"""Whether the model holds the weights that training gave it, which a validation may replace for its time.

``WeightAveraging`` and hand-written callbacks for moving averages validate with averaged weights. A checkpoint or model
that is written there holds those in the place of the trained ones.
"""

import math
from functools import partial
from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._checkpoint.finished import tensor_sums
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import all_true
from lightning_sm._logging import log

__all__ = ["TrainedWeights"]

_STARTS = ("on_validation_model_eval", "on_validation_start", "on_validation_epoch_start")
# In the order in which Lightning calls them.
_ENDS = ("on_validation_epoch_end", "on_validation_end", "on_validation_model_train")


class TrainedWeights:
    """The sums of the trained weights, noted before a validation begins, and of those that it validates.

    Args:
        namespace: Lightning's namespace.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._trained: Optional[List[Any]] = None
        self._validated: Optional[List[Any]] = None

    def note(self, pl_module: Any) -> None:
        """Remember the weights before a validation. Nothing waits for a GPU here."""
        self._trained, self._validated = _sums(pl_module), None

    def note_validated(self, pl_module: Any) -> None:
        """Remember the weights at the first batch of the validation."""
        if self._validated is None:
            self._validated = _sums(pl_module)

    def forget(self) -> None:
        """Take whatever the model holds for trained from now on."""
        self._trained = self._validated = None

    def are_in(self, pl_module: Any) -> bool:
        """Whether the model holds its trained weights, and not those that the validation put there.

        Weights that were put back may differ in their last bits, as those of schedule-free optimizers do.
        """
        if self._trained is None or self._validated is None:
            return True
        trained, validated = _numbers(self._trained), _numbers(self._validated)
        if trained == validated:
            return True
        now = _numbers(_sums(pl_module))
        return len(now) == len(trained) and _distance(now, trained) <= 0.01 * _distance(validated, trained)

    def put_back(self, trainer: Any, pl_module: Any) -> bool:
        """End the validation for callbacks that began it, until the model holds its trained weights again.

        Only callbacks and models that act at the start of a validation are told of its end, one after another, so that
        nothing else sees metrics of a part of the data. Every rank must call it.

        Returns:
            Whether the weights are back on every rank. If not, the validation cannot go on either.
        """
        if all_true(trainer, self.are_in(pl_module)):
            return True
        for name, hook in list(_end_hooks(self.namespace, trainer, pl_module)):
            try:
                hook()
            except Exception as error:
                log.warning("%s failed within a validation that ends early (%s)", name, error)
            if all_true(trainer, self.are_in(pl_module)):
                return True
        return False


def _end_hooks(namespace: Namespace, trainer: Any, pl_module: Any) -> Iterator[Tuple[str, Callable[[], Any]]]:
    module = namespace.module()
    owners: List[Tuple[Any, Any, Tuple[Any, ...]]] = [
        *((callback, module.Callback, (trainer, pl_module)) for callback in trainer.callbacks),
        (pl_module, module.LightningModule, ()),
    ]
    for name in _ENDS:
        for owner, base, arguments in owners:
            if any(_overrides(owner, base, start) for start in _STARTS) and _overrides(owner, base, name):
                yield f"{type(owner).__name__}.{name}", partial(getattr(owner, name), *arguments)


def _overrides(owner: Any, base: type, name: str) -> bool:
    if not hasattr(owner, name):
        return False
    return name in vars(owner) or getattr(type(owner), name, None) is not getattr(base, name, None)


def _sums(pl_module: Any) -> List[Any]:
    return tensor_sums(parameter for parameter in pl_module.parameters() if parameter.is_floating_point())


def _numbers(sums: Sequence[Any]) -> List[float]:
    numbers = [float(value) for value in sums]
    return [value if math.isfinite(value) else 0.0 for value in numbers]


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    # Of modules that were exchanged for others, the numbers of parameters may differ.
    if len(one) != len(other):
        return math.inf
    return max((abs(a - b) for a, b in zip(one, other)), default=0.0)
