"""``LogMetrics``: writes each logged scalar into the job's log, where SageMaker's metric definitions find it."""

from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Tuple

from lightning_sm._lightning.metric_hook import observe_logged_metrics
from lightning_sm._lightning.trainer import Trainer, is_fast_dev_run
from lightning_sm._logging import log
from lightning_sm._metrics.lines import MetricLines, is_finite, metric_lines

__all__ = ["LogMetricsMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

# The names of so many metrics stand in a warning.
_MAX_NAMES = 10
# Of so many names it is known that they were logged; a project may log under a new name each time.
_MAX_SEEN = 1000


class LogMetricsMixin(_Base):
    """Write each scalar that the trainer hands to its loggers into the log, on global rank zero.

    In a job :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add it unless
    ``sagemaker.log_metrics`` is false. It needs no logger and changes none. Scalars that are handed over together are
    one line, with what was handed over before that step (several, if it would be longer than 3500 bytes)::

        metrics at step 120, epoch 3: train/loss=0.25 "my metric"=1.5e-07 val_loss=nan

    :func:`~lightning_sm.metric_definitions` returns the regular expressions that find them. Written is what
    ``self.log`` and ``self.log_dict`` hand to loggers, when they do so (``log_every_n_steps``), and what callbacks such
    as ``LearningRateMonitor`` or the model hand to ``log_metrics`` of the first logger. Validation before training
    writes nothing. Strings, tensors of several elements, names of more than 255 characters and more than 1000 scalars
    at once are left out, which one warning says.

    Args:
        objective: The name of the metric that a tuning job optimizes, which is written first. If ``fit`` ends without
            a finite value of it, one warning says so. A job's is the hyperparameter ``_tuning_objective_metric`` of
            ``input/config/hyperparameters.json``, which SageMaker sets in tuning jobs only.

    Source: ``log_metrics`` in ``lightning/pytorch/trainer/connectors/logger_connector/logger_connector.py``.

    Example::

        >>> from lightning_sm.callbacks import LogMetrics
        >>> callback = LogMetrics(objective="val_loss")
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, objective: Optional[str] = None) -> None:
        super().__init__()
        self.objective = objective
        self._remove: Optional[Callable[[], None]] = None
        self._seen: Dict[str, bool] = {}  # whether a value of the objective was finite
        self._warned = False
        self._held: Dict[str, Any] = {}
        self._held_at = (0, 0)  # step and epoch

    def __getstate__(self) -> Any:
        """A copy is attached to no trainer."""
        return {**vars(self), "_remove": None}

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Begin to observe what is logged."""
        self._stop()
        if not trainer.is_global_zero:
            return
        try:
            self._remove = observe_logged_metrics(
                trainer,
                lambda metrics, step: self._write(metrics, step, trainer.current_epoch),
                before_step=lambda metrics, step: self._hold(metrics, step, trainer.current_epoch),
            )
        except Exception as error:  # of a logger of the user's
            log.warning("There will be no metric lines: %s: %s", type(error).__name__, error)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """End the observation."""
        self._stop()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Write what is held."""
        self._write_held()

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Write what is held, and warn if the objective of a tuning job was not logged."""
        self._write_held()
        if self._remove is None or self.objective is None or is_fast_dev_run(trainer):
            return
        if self._seen.get(self.objective):
            return
        if self.objective in self._seen:
            log.warning(
                "The objective %r of the tuning job was logged, but never as a finite number, and SageMaker takes no "
                "other. HINT: Look for the cause of the NaN.",
                self.objective,
            )
            return
        log.warning(
            "The objective %r of the tuning job was not logged. Logged were: %s. HINT: Log it with self.log in the "
            "model, or name a metric that is logged as the objective.",
            self.objective,
            _some(self._seen) or "no metrics",
        )

    def _stop(self) -> None:
        self._write_held()
        if self._remove is not None:
            self._remove()
        self._remove = None

    def _hold(self, metrics: Mapping[str, Any], step: int, epoch: int) -> None:
        """Keep what is logged before a step's metrics, such as a learning rate, for the line of that step."""
        self._write_held(unless=(metrics, step, epoch))
        self._held_at = (step, epoch)
        self._held.update(metrics)

    def _write_held(self, unless: Optional[Tuple[Mapping[str, Any], int, int]] = None) -> None:
        """Write what is held, unless these metrics can stand on one line with it."""
        fits = unless is not None and self._held_at == unless[1:] and not self._held.keys() & unless[0].keys()
        if self._held and not fits:
            held, self._held = self._held, {}
            self._write(held, *self._held_at)

    def _write(self, metrics: Mapping[str, Any], step: int, epoch: int) -> None:
        self._write_held(unless=(metrics, step, epoch))
        metrics, self._held = {**metrics, **self._held}, {}
        written = metric_lines(metrics, step, epoch, first=self.objective)
        for line in written.lines:
            log.info("%s", line)
        self._warn(written)
        if self.objective is not None:
            for name in metrics if len(self._seen) < _MAX_SEEN else ():
                self._seen.setdefault(name, False)
            if self.objective in metrics:
                self._seen[self.objective] = self._seen.get(self.objective, False) or is_finite(metrics[self.objective])

    def _warn(self, written: MetricLines) -> None:
        if written.left_out and not self._warned:
            self._warned = True
            reasons = "; ".join(f"{reason} ({_some(names)})" for reason, names in written.left_out.items())
            log.warning("Left out of the metric lines, here and from now on: %s.", reasons)


def _some(names: Any) -> str:
    shown = [name if len(name) <= 60 else f"{name[:60]}…" for name in list(names)[:_MAX_NAMES]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
