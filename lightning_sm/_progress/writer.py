"""``ProgressWriter``: decides when a run's progress is written to the log, and watches for a run that hangs."""

import functools
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Optional, TypeVar, cast

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import steps_taken
from lightning_sm._lightning.train_progress import (
    TrainPosition,
    after_epoch_metrics,
    around_evaluation_fetches,
    bar_metrics,
    callback_metrics,
    epoch_end_step,
    evaluation_batches,
    evaluation_loaders,
    gpu_memory,
    progress_bars,
    replicas_of,
    train_position,
)
from lightning_sm._logging import log
from lightning_sm._progress.batches import BatchSize
from lightning_sm._progress.lines import Event, Progress, Stage, estimate
from lightning_sm._progress.rates import Rates, StepRates
from lightning_sm._progress.watch import HangWatch, Waiting

__all__ = ["ProgressWriter"]

_Method = TypeVar("_Method", bound=Callable[..., None])
_HANG_INTERVALS = 5
_STAGES = {
    "validate": Stage.VALIDATION,
    "sanity_check": Stage.SANITY,
    "test": Stage.TEST,
    "predict": Stage.PREDICT,
}


def _harmless(method: _Method) -> _Method:
    """Let a method write no more lines, instead of ending the training, where it fails."""

    @functools.wraps(method)
    def call(self: "ProgressWriter", *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.give_up(error)

    return cast(_Method, call)


class _Evaluation:
    """A validation, test or prediction that runs."""

    def __init__(self, trainer: Any, name: str) -> None:
        self.stage = _STAGES[name]
        self.batches = evaluation_batches(trainer, name)
        self.sizes = [BatchSize.of([loader]) for loader in evaluation_loaders(trainer, name)]
        self.before: Dict[str, Any] = callback_metrics(trainer)
        self.started = time.monotonic()
        self.replicas = replicas_of(trainer)
        self.batch = 0
        self.samples: Optional[int] = 0

    def count(self, batch: Any, index: int) -> None:
        self.batch += 1
        while len(self.sizes) <= index:
            self.sizes.append(BatchSize())
        size = self.sizes[index].read(batch)
        self.samples = None if size is None or self.samples is None else self.samples + size * self.replicas

    @property
    def rates(self) -> Rates:
        return Rates(time.monotonic() - self.started, self.batch, self.samples)

    def metrics(self, trainer: Any) -> Dict[str, Any]:
        """What was logged since its start."""
        now = callback_metrics(trainer)
        return {name: value for name, value in now.items() if self.before.get(name) is not value}


class ProgressWriter:
    """Writes lines at most once in an interval, and one at the end of each stage, on global rank 0.

    No method raises: where one fails, a warning says so and no more lines are written.

    Args:
        namespace: Lightning's namespace.
        rates: The rates of ``fit``, which the callback records.
        every: The shortest time between two lines within a stage, in seconds.

    Attributes:
        is_enabled: Whether this process is to write lines.
        state: What was begun last.
    """

    def __init__(self, namespace: Namespace, rates: StepRates, every: float) -> None:
        self.namespace, self.rates, self.every = namespace, rates, every
        self.is_enabled = True
        self._is_replaced = self._has_failed = False
        self._undo: List[Callable[[], None]] = []
        self._watch: Optional[HangWatch] = None
        self._reset()

    def __getstate__(self) -> Any:
        """A copy is attached to no trainer, and has no thread."""
        return {**vars(self), "_undo": [], "_watch": None, "_evaluation": None}

    def _reset(self) -> None:
        self._undo, self._watch = [], None
        self._evaluation: Optional[_Evaluation] = None
        self._fit_started: Optional[float] = None
        self._epoch_started: Optional[float] = None
        self._start = TrainPosition(0)
        self._epoch_mark = self._line_mark = self.rates.mark()
        self._next_line: Optional[float] = None
        self.state = "before the first batch"

    @_harmless
    def set_up(self, trainer: Any, bar: Any) -> None:
        """Look for other progress bars, and attach to the trainer's loops.

        A bar of the project's own class wins. Lightning's, which show nothing readable in a log, are disabled.
        """
        self.end()
        lightnings, others = progress_bars(self.namespace, trainer.callbacks)
        self._is_replaced = any(other is not bar for other in others)
        if self._is_replaced:
            return
        for other in lightnings:
            other.disable()
        self._undo = [
            around_evaluation_fetches(trainer, self._fetch_started, self._fetch_ended),
            after_epoch_metrics(trainer, functools.partial(self._end_epoch, trainer)),
        ]
        self._watch = HangWatch(_HANG_INTERVALS * self.every, functools.partial(self._waiting, trainer))

    def _fetch_started(self) -> None:
        self.state = "waiting for data"

    def _fetch_ended(self) -> None:
        self.state = "before a batch"

    @_harmless
    def begin(self, state: str) -> None:
        """Begin to watch, before a stage."""
        self.state = state
        if self._next_line is None:
            self._next_line = time.monotonic() + self.every
        if self._watch is not None:
            self._watch.start()
            self._watch.beat()

    # --- training

    @_harmless
    def begin_fit(self, trainer: Any) -> None:
        """Begin to count. The rates have just been started."""
        self._fit_started = time.monotonic()
        self._start = train_position(trainer, int(trainer.global_step))
        self.begin_epoch()  # an epoch that is continued has no hook of its start
        self.begin("before the first batch")

    @_harmless
    def begin_epoch(self) -> None:
        """Begin to count the batches of an epoch."""
        self._epoch_started = time.monotonic()
        self._epoch_mark = self._line_mark = self.rates.mark()
        self.begin("before the first batch of the epoch")

    @_harmless
    def end_batch(self, trainer: Any) -> None:
        """Write a line if one is due, after the rates have counted a batch."""
        now = self.rates.latest
        self.state = "after a batch"
        if self._watch is not None:
            self._watch.beat(now)
        if self._next_line is None or now < self._next_line:
            return
        if self._writes(trainer):
            rates, step = self.rates.since(self._line_mark), steps_taken(self.namespace, trainer)
            metrics = _read(bar_metrics, trainer, within_epoch=True)
            self._write(self._training(trainer, step, rates, Event.RUNNING, metrics=metrics))
        self._next_line = now + self.every

    @_harmless
    def _end_epoch(self, trainer: Any) -> None:
        """Write a line when Lightning has computed the metrics of an epoch."""
        self.begin("after the epoch")
        started, self._epoch_started = self._epoch_started, None
        if started is not None and self._writes(trainer):
            rates, seconds = self.rates.since(self._epoch_mark), time.monotonic() - started
            metrics, step = _read(bar_metrics, trainer, within_epoch=False), epoch_end_step(self.namespace, trainer)
            self._write(self._training(trainer, step, rates, Event.END, seconds=seconds, metrics=metrics))

    def _training(self, trainer: Any, step: int, rates: Rates, event: Event, **values: Any) -> Progress:
        now = train_position(trainer, step, has_ended=event == Event.END)
        epoch_eta, fit_eta = estimate(now, self._start, self.rates.total, self.rates.validated_for)
        return Progress(
            Stage.TRAIN,
            event,
            epoch=now.epoch,
            epochs=now.epochs,
            batch=now.batch,
            batches=now.batches,
            step=now.step,
            rates=rates,
            gpu_memory=gpu_memory(trainer),
            epoch_eta=epoch_eta if event == Event.RUNNING else None,
            fit_eta=fit_eta,
            **values,
        )

    @_harmless
    def end_fit(self, trainer: Any, event: Event, reason: Optional[str] = None) -> None:
        """Write the totals of this process."""
        started, self._fit_started = self._fit_started, None
        if started is None or not self._writes(trainer):
            return
        total, seconds = self.rates.total, time.monotonic() - started
        step = int(trainer.global_step)
        self._write(
            Progress(Stage.FIT, event, None, None, total.batches, None, step, total, None, seconds, reason=reason)
        )

    # --- validation, test and prediction

    @_harmless
    def begin_evaluation(self, trainer: Any, name: str) -> None:
        """Begin to count.

        Args:
            trainer: The trainer.
            name: ``sanity_check``, ``validate``, ``test`` or ``predict``.
        """
        self._evaluation = _Evaluation(trainer, name)
        self.begin("before the first batch")

    @_harmless
    def end_evaluation_batch(self, trainer: Any, batch: Any, dataloader_idx: int) -> None:
        """Write a line if one is due."""
        evaluation, now = self._evaluation, time.monotonic()
        self.state = "after a batch"
        if self._watch is not None:
            self._watch.beat(now)
        if evaluation is None or self._next_line is None:
            return
        evaluation.count(batch, dataloader_idx)
        if now < self._next_line:
            return
        if self._writes(trainer):
            self._write(self._evaluating(trainer, evaluation, Event.RUNNING, gpu_memory=gpu_memory(trainer)))
        self._next_line = now + self.every

    @_harmless
    def end_evaluation(self, trainer: Any) -> None:
        """Write the totals."""
        self.begin("after the evaluation")
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None and self._writes(trainer):
            seconds, metrics = time.monotonic() - evaluation.started, evaluation.metrics(trainer)
            self._write(self._evaluating(trainer, evaluation, Event.END, seconds=seconds, metrics=metrics))
        if trainer.state.fn != "fit":
            self.stop_watching()

    def _evaluating(self, trainer: Any, evaluation: _Evaluation, event: Event, **values: Any) -> Progress:
        is_in_fit = evaluation.stage == Stage.VALIDATION and self._fit_started is not None
        return Progress(
            evaluation.stage,
            event,
            epoch=int(trainer.current_epoch) if is_in_fit else None,
            epochs=self._start.epochs if is_in_fit else None,
            batch=evaluation.batch,
            batches=evaluation.batches,
            rates=evaluation.rates,
            **values,
        )

    # --- ends

    @_harmless
    def stop_watching(self) -> None:
        """Stop to look for a hang: what follows has no batches."""
        if self._watch is not None:
            self._watch.stop()

    @_harmless
    def end(self) -> None:
        """Stop watching, and detach from the trainer."""
        self.stop_watching()
        for undo in self._undo:
            undo()
        self._reset()

    def give_up(self, error: Exception) -> None:
        """Write no more lines."""
        if not self._has_failed:
            self._has_failed = True
            with suppress(Exception):  # of a handler that cannot write
                log.warning("No more progress lines: one failed (%s: %s).", type(error).__name__, error)

    def _writes(self, trainer: Any) -> bool:
        return self.is_enabled and not self._is_replaced and not self._has_failed and bool(trainer.is_global_zero)

    def _write(self, line: Progress) -> None:
        log.info("%s", line)
        self._line_mark = self.rates.mark()
        self._next_line = time.monotonic() + self.every

    def _waiting(self, trainer: Any) -> Waiting:
        """What this process does, called by the thread that watches."""
        evaluation, rank = self._evaluation, int(trainer.global_rank)
        if evaluation is None:
            stage, batch = Stage.TRAIN, trainer.fit_loop.epoch_loop.batch_progress.current.completed
            position = f"epoch={trainer.current_epoch} batch={batch}"
        else:
            stage, position = evaluation.stage, f"batch={evaluation.batch}"
        state = "waiting for data" if self.rates.is_fetching else self.state
        is_spoken = self.is_enabled if rank == 0 else state == "waiting for data"
        return Waiting(stage.value, position, state, rank, int(trainer.world_size), is_spoken and not self._has_failed)


def _read(read: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Read metrics; those of a user may be anything, and are then left out of the line."""
    try:
        return read(*args, **kwargs)
    except Exception as error:
        return {"metrics": type(error).__name__}
