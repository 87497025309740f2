"""``MetricsLogger``: the last logger of a trainer, which sees what Lightning, callbacks and models hand to loggers."""

from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional

from lightning_sm._lightning import Namespace, namespaced_class

__all__ = ["MetricsLoggerMixin", "metrics_logger"]

if TYPE_CHECKING:
    from pytorch_lightning.loggers.logger import DummyLogger as _Base
else:
    _Base = object


def metrics_logger(
    namespace: Namespace, trainer: Any, observe: Callable[[Mapping[str, Any], Optional[int]], None]
) -> Any:
    """Make the logger of a trainer.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        observe: Takes the metrics of each hand-over and their step. It raises nothing.
    """
    mixin = "lightning_sm._observe.metrics_logger:MetricsLoggerMixin"
    cls: Any = namespaced_class(namespace, "MetricsLogger", mixin, "loggers.logger:DummyLogger")
    return cls(trainer, observe)


def _of_first(name: str) -> Any:
    return property(lambda self: getattr(self._first, name, None))


class MetricsLoggerMixin(_Base):
    """Hands what it gets to a function. A copy of it, such as in a copy of the trainer, does nothing.

    For programs that go through all loggers of a trainer it looks like the first one, whose methods do nothing here.
    """

    # Progress bars join the names and versions of all loggers that differ.
    name, version, root_dir, log_dir, save_dir = map(_of_first, ("name", "version", "root_dir", "log_dir", "save_dir"))

    def __init__(self, trainer: Any, observe: Callable[[Mapping[str, Any], Optional[int]], None]) -> None:
        super().__init__()
        self._trainer = trainer
        self._observe: Optional[Callable[[Mapping[str, Any], Optional[int]], None]] = observe

    def __getstate__(self) -> Any:
        return {**vars(self), "_trainer": None, "_observe": None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._first, name)
        return (lambda *args, **kwargs: None) if callable(found) else found

    @property
    def _first(self) -> Any:
        first = getattr(self._trainer, "logger", None)
        return None if first is self else first

    def log_metrics(self, metrics: Any, step: Optional[int] = None) -> None:
        """Hand metrics over."""
        if self._observe is not None:
            self._observe(metrics, step)
