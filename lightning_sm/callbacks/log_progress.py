"""``LogProgress``: progress as whole lines, for a log."""

from typing import TYPE_CHECKING, Any, Union

from lightning_sm._duration import read_duration
from lightning_sm._lightning import Namespace
from lightning_sm._progress import ProgressWriter, RecordsRates
from lightning_sm._progress.lines import Event
from lightning_sm.errors import OptionError

__all__ = ["LogProgressMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class LogProgressMixin(RecordsRates, _Base):
    """Write the progress of a run to the log: a line from time to time, and one at the end of each stage.

    A job's log is no terminal: Lightning's progress bars move the cursor, which leaves hundreds of fragments in a log.
    :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add this callback in a job instead,
    unless the project has a progress bar of its own class or ``enable_progress_bar=False``; a ``RichProgressBar`` or
    ``TQDMProgressBar`` is disabled. The lines are written with the logger ``lightning_sm``, on global rank 0.
    Their form is described in ``docs/logs.md``::

        progress train: epoch=0/2 batch=7/14 percent=50 step=7 samples/s=80 ... | loss=0.25
        progress validation end: epoch=0/2 batch=4/4 samples=64 ... | val_loss=0.31
        progress train end: epoch=0/2 batch=14/14 step=14 samples=224 ... | loss=0.22, val_loss=0.31
        progress fit end: batch=42 step=42 samples=672 samples/s=78 ... time=0:00:09

    Where nothing goes on for five times ``every``, a warning says where the run waits, again after twice that time and
    so on. Ranks other than 0 write it only while they wait for a batch of data themselves.

    Rates are those of this process, times the number of processes that train on different data, without communication.
    Metrics are those logged with ``prog_bar=True``; at the end of a validation or test, all that it logged. They are
    read only when a line is written. No file or environment variable is read.

    Args:
        every: The shortest time between two lines within a stage: seconds, or text such as ``30s`` or ``5m``.

    Attributes:
        rates: The :class:`~lightning_sm._progress.StepRates` of the latest ``fit``.

    Raises:
        OptionError: ``every`` is no duration.

    Source: ``callbacks/progress/progress_bar.py`` in ``lightning/pytorch``.

    Example::

        >>> from lightning_sm.callbacks import LogProgress
        >>> LogProgress(every="1m").every
        60.0
        >>> trainer = Trainer(callbacks=[LogProgress()])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self, every: Union[str, float] = "30s") -> None:
        super().__init__()
        try:
            self.every = read_duration(every)
        except ValueError as error:
            raise OptionError(f"sagemaker.log_every: {error}.", hint="Write 30s, 5m or 1h.") from error
        self._writer = ProgressWriter(self.namespace, self.rates, self.every)

    def __getstate__(self) -> Any:
        """A copy is attached to no trainer, which it would copy, too."""
        return {**super().__getstate__(), "_trainer": None}

    def disable(self) -> None:
        """Write no lines. Lightning calls it while a tuner runs, and on all ranks but 0."""
        self._writer.is_enabled = False

    def enable(self) -> None:
        """Write lines again."""
        self._writer.is_enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print."""
        print(*args, **kwargs)

    def setup(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """Look for other progress bars, which win."""
        super().setup(trainer, pl_module, stage)
        self._writer.set_up(trainer, self)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        super().on_train_start(trainer, pl_module)
        self._writer.begin_fit(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count the epoch's batches."""
        super().on_train_epoch_start(trainer, pl_module)
        self._writer.begin_epoch()

    def on_train_batch_start(self, *args: Any) -> None:
        """Note that a batch has been loaded."""
        super().on_train_batch_start(*args)
        self._writer.state = "in the training step"

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        """Write a line if one is due."""
        super().on_train_batch_end(trainer, *args)
        self._writer.end_batch(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching: what follows has no batches."""
        super().on_train_end(trainer, pl_module)
        self._writer.stop_watching()

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the totals."""
        super().on_fit_end(trainer, pl_module)
        self._writer.end_fit(trainer, Event.END)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        super().on_sanity_check_start(trainer, pl_module)
        self._writer.begin("before the first batch")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        super().on_validation_start(trainer, pl_module)
        self._writer.begin_evaluation(trainer, "sanity_check" if trainer.sanity_checking else "validate")

    def on_validation_batch_start(self, *args: Any) -> None:
        """Note that a batch has been loaded."""
        super().on_validation_batch_start(*args)
        self._writer.state = "in the validation step"

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write a line if one is due."""
        super().on_validation_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        self._writer.end_evaluation_batch(trainer, batch, dataloader_idx)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the totals."""
        super().on_validation_end(trainer, pl_module)
        self._writer.end_evaluation(trainer)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        super().on_test_start(trainer, pl_module)
        self._writer.begin_evaluation(trainer, "test")

    def on_test_batch_start(self, *args: Any) -> None:
        """Note that a batch has been loaded."""
        super().on_test_batch_start(*args)
        self._writer.state = "in the test step"

    def on_test_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write a line if one is due."""
        super().on_test_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        self._writer.end_evaluation_batch(trainer, batch, dataloader_idx)

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the totals."""
        super().on_test_end(trainer, pl_module)
        self._writer.end_evaluation(trainer)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        super().on_predict_start(trainer, pl_module)
        self._writer.begin_evaluation(trainer, "predict")

    def on_predict_batch_start(self, *args: Any) -> None:
        """Note that a batch has been loaded."""
        super().on_predict_batch_start(*args)
        self._writer.state = "in the prediction step"

    def on_predict_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Write a line if one is due."""
        super().on_predict_batch_end(trainer, pl_module, outputs, batch, batch_idx, dataloader_idx)
        self._writer.end_evaluation_batch(trainer, batch, dataloader_idx)

    def on_predict_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the totals."""
        super().on_predict_end(trainer, pl_module)
        self._writer.end_evaluation(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the totals up to the exception."""
        super().on_exception(trainer, pl_module, exception)
        self._writer.end_fit(trainer, Event.INTERRUPTED, type(exception).__name__)
        self._writer.end()

    def teardown(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """Detach from the trainer."""
        super().teardown(trainer, pl_module, stage)
        self._writer.end()
