"""Observes the metrics that a trainer hands to its loggers, also where it has none.

Lightning calls ``log_metrics`` of its logger connector with each dict of metrics, which returns early without loggers:
``trainer/connectors/logger_connector/logger_connector.py`` in every version. Callbacks such as ``LearningRateMonitor``
and users call ``log_metrics`` of the loggers themselves, with the same dict for each logger.
"""

import math
from typing import Any, Callable, List, Mapping, Optional, Tuple

from lightning_sm._lightning.legacy import connector_of_loggers, first_logger, logged_step
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._logging import log

__all__ = ["Observer", "observe_logged_metrics"]

Observer = Callable[[Mapping[str, Any], int], None]


def observe_logged_metrics(
    trainer: Trainer, observer: Observer, before_step: Optional[Observer] = None
) -> Callable[[], None]:
    """Call ``observer(metrics, step)`` with each dict of metrics that a trainer hands to its loggers.

    Each is observed once, however many loggers there are, with none of them, too, and before the loggers get it. Also
    observed is what is handed to ``log_metrics`` of the first logger, as by ``LearningRateMonitor``,
    ``DeviceStatsMonitor`` or ``self.logger.log_metrics(...)`` in a model. Not observed are the placeholders that
    ``log_hyperparams`` logs, the trial steps of Lightning's tuner, and validation before training.

    Call it in each process whose metrics are to be observed, in ``setup`` of a callback, and the returned function in
    ``teardown``.

    Args:
        trainer: The trainer.
        observer: Takes the metrics by name and the step that loggers get. Tensors with one element are numbers; each
            other value is as it was handed over, without the ``epoch`` that Lightning adds. An exception that it
            raises is logged once as a warning.
        before_step: Takes, instead of ``observer``, what is handed to the first logger while a batch is trained at
            whose end Lightning hands over the metrics of the same step.

    Returns:
        A function that ends the observation; it may be called again.
    """
    connector = connector_of_loggers(trainer)
    hook = vars(connector).get("log_metrics")
    if not isinstance(hook, _Hook):
        hook = _Hook(trainer, connector)
    observers = (observer, before_step or observer)
    hook.observers.append(observers)

    def remove() -> None:
        if observers in hook.observers:
            hook.observers.remove(observers)
        if not hook.observers:
            hook.uninstall()

    return remove


class _Hook(ReplacedMethod):
    """The connector's ``log_metrics`` while observers are there."""

    def __init__(self, trainer: Trainer, connector: Any) -> None:
        self.trainer = trainer
        self.observers: List[Tuple[Observer, Observer]] = []
        self.failed: List[Any] = []
        self.callbacks = list(callbacks_of(trainer))
        self.is_within = False
        super().__init__(connector, "log_metrics", self._log_metrics)
        logger = first_logger(trainer)
        self.on_logger = [
            ReplacedMethod(logger, name, function)
            for name, function in (("log_metrics", self._log_directly), ("log_hyperparams", self._unobserved))
            if hasattr(logger, "__dict__") and callable(getattr(logger, name, None))
        ]

    def uninstall(self) -> None:
        for replaced in (self, *self.on_logger):
            replaced.undo()

    def _log_metrics(self, original: Any, metrics: Any, step: Optional[int] = None) -> Any:
        self._try(metrics, step)
        return self._unobserved(original, metrics, step)

    def _log_directly(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_within and not self.trainer.sanity_checking:
            given = dict(zip(("metrics", "step"), args), **kwargs)
            is_followed = self.trainer.training and getattr(self.owner, "should_update_logs", False)
            self._try(given.get("metrics"), given.get("step"), before_step=is_followed)
        return self._unobserved(original, *args, **kwargs)

    def _unobserved(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a method of Lightning that hands the same or no real metrics to ``log_metrics`` of a logger."""
        was_within, self.is_within = self.is_within, True
        try:
            return original(*args, **kwargs)
        finally:
            self.is_within = was_within

    def _try(self, metrics: Any, step: Any, *, before_step: bool = False) -> None:
        try:
            self._observe(metrics, step, before_step)
        except Exception as error:  # of a mapping of the user's
            if self not in self.failed:
                self.failed.append(self)
                log.warning("Logged metrics could not be read: %s: %s", type(error).__name__, error)

    def _observe(self, metrics: Any, step: Any, before_step: bool) -> None:
        if not isinstance(metrics, Mapping) or not metrics or self._is_trial():
            return
        numbers = {str(name): _number(value) for name, value in metrics.items()}
        step = numbers.pop("step", None) if step is None else _number(step)
        step = int(step) if _is_step(step) else logged_step(self.trainer)
        for observers in list(self.observers):
            observer = observers[before_step]
            try:
                observer(numbers, step)
            except Exception as error:
                if observer not in self.failed:
                    self.failed.append(observer)
                    log.warning("Logged metrics could not be recorded: %s: %s", type(error).__name__, error)

    def _is_trial(self) -> bool:
        """Whether Lightning's tuner has taken all callbacks away, to try a learning rate or a batch size."""
        present = {id(callback) for callback in callbacks_of(self.trainer)}
        return bool(self.callbacks) and not any(id(callback) in present for callback in self.callbacks)


def _is_step(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _number(value: Any) -> Any:
    try:
        length = value.numel() if hasattr(value, "numel") else getattr(value, "size", None)
        return value.item() if length == 1 else value
    except Exception:  # of a user's class
        return value
