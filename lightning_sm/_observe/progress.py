"""``Progress``: counts the batches of a training, writes its progress as lines, and watches for one that stalls.

The form is fixed, so that lines can be searched for and parsed::

    progress STAGE: NAME=VALUE NAME=VALUE ... | METRIC=VALUE, METRIC=VALUE, ...
    progress STAGE end: ...
"""

import math
import re
import time
from contextlib import suppress
from itertools import islice
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from lightning_sm._lightning.observing import around_fetches, bar_metrics, callback_metrics
from lightning_sm._logging import log
from lightning_sm._observe.harmless import harmless
from lightning_sm._observe.rates import BatchSize, Counter, Mark, Rates
from lightning_sm._observe.stalls import StallDetector, Waiting

__all__ = ["Progress"]

_LINES = "progress lines"
# So many intervals between lines without a batch are a stall.
_STALL_INTERVALS = 5
_MAX_METRICS = 20
_MAX_NAME = 80
# By the stage: the trainer's data loaders, their numbers of batches, and what a step is called.
_EVALUATIONS = {
    "sanity check": ("val_dataloaders", "num_sanity_val_batches", "validation"),
    "validation": ("val_dataloaders", "num_val_batches", "validation"),
    "test": ("test_dataloaders", "num_test_batches", "test"),
    "predict": ("predict_dataloaders", "num_predict_batches", "prediction"),
}
_Fields = Dict[str, Optional[str]]


class _Stage:
    """Something that goes through batches: the training, or one validation, test or prediction."""

    def __init__(self, trainer: Any, name: str = "train", step: str = "training") -> None:
        self.name, self.step = name, step
        self.counter = Counter()
        self.started = time.monotonic()
        self.batch = 0
        self.batches: Optional[int] = None
        self.sizes: List[BatchSize] = []
        self.replicas: Optional[int] = None
        self.metrics_before: Mapping[str, Any] = {}
        with suppress(Exception):  # of a strategy of the user's; the number of samples is then unknown
            self.replicas = _replicas_of(trainer)

    def count(self, batch: Any, number: int, loader: int = 0) -> None:
        self.batch = number
        while len(self.sizes) <= loader:
            self.sizes.append(BatchSize())
        size = self.sizes[loader].read(batch)
        self.counter.count(None if size is None or self.replicas is None else size * self.replicas)


class Progress:
    """Counts batches, and writes lines at most once in an interval and at the end of each stage, on global rank 0.

    No method raises: where one fails, a warning says so and no more lines are written. Its methods are called by the
    hooks of a callback.

    Args:
        every: The shortest time between two lines within a stage, in seconds; ``None`` for no lines.

    Attributes:
        training: The counts of the latest ``fit`` in this process.
    """

    def __init__(self, every: Optional[float]) -> None:
        self.every = every
        self.failed: Set[str] = set()
        self.training = Counter()
        self._reset()

    def __getstate__(self) -> Any:
        """A copy is attached to no trainer, and has no thread."""
        return {**vars(self), "_undo": None, "_detector": None}

    def _reset(self) -> None:
        self._undo: Optional[Callable[[], None]] = None
        self._detector: Optional[StallDetector] = None
        self._fit: Optional[_Stage] = None
        self._evaluation: Optional[_Stage] = None
        self._writes = False
        self._ended: Optional[_Fields] = None
        self._epoch = self._start_step = 0
        self._epoch_started = 0.0
        self._epoch_mark = self._line_mark = Mark()
        self._next_line = math.inf
        self._state = "before the first batch"

    @harmless(_LINES)
    def set_up(self, trainer: Any, writes: bool) -> None:
        """Attach to the trainer's loops.

        Args:
            trainer: The trainer, in ``setup``.
            writes: Whether lines are wanted.
        """
        self.end()
        self._undo = around_fetches(trainer, self._fetch_started, self._fetch_ended)
        if writes and self.every is not None:
            self._writes = bool(trainer.is_global_zero)
            self._detector = StallDetector(_STALL_INTERVALS * self.every, lambda: self._waiting(trainer))

    def _fetch_started(self) -> None:
        self._state = "waiting for data"
        stage = self._evaluation or self._fit
        if stage is not None:
            stage.counter.fetch_started()

    def _fetch_ended(self) -> None:
        stage = self._evaluation or self._fit
        if stage is not None:
            stage.counter.fetch_ended()
            self._state = f"in the {stage.step} step"

    @property
    def is_before_step(self) -> bool:
        """Whether the next that happens in ``fit`` is a training step, or one goes on."""
        return self._fit is not None and self._evaluation is None and self._state != "after a batch"

    @harmless(_LINES)
    def begin(self, state: str = "before the first batch") -> None:
        """Begin to watch, before something that has batches."""
        self._state = state
        if self._detector is not None:
            self._detector.start()
        if self._writes and self._next_line == math.inf:
            self._set_next_line()

    def _set_next_line(self) -> None:
        if self.every is not None:
            self._next_line = time.monotonic() + self.every

    # --- training

    @harmless(_LINES)
    def begin_fit(self, trainer: Any) -> None:
        """Begin to count."""
        self._fit = _Stage(trainer)
        self.training = self._fit.counter
        self._start_step = int(trainer.global_step)
        self.begin_epoch(trainer)  # an epoch that is continued has no hook of its start
        self._fit.batch = trainer.fit_loop.batch_idx + 1

    @harmless(_LINES)
    def begin_epoch(self, trainer: Any) -> None:
        """Begin to count the batches of an epoch, after the line of the one before."""
        self.write_epoch(trainer)
        if self._fit is not None:
            self._epoch, self._epoch_started, self._fit.batch = int(trainer.current_epoch), time.monotonic(), 0
            self._fit.batches = _batch_count(trainer.num_training_batches)
            self._fit.sizes = [BatchSize(_listed(trainer.train_dataloader))]  # it may differ from epoch to epoch
            self._epoch_mark = self._line_mark = self.training.mark()
        self.begin("before the first batch of the epoch")

    @harmless(_LINES)
    def end_batch(self, trainer: Any, batch: Any, batch_idx: int) -> None:
        """Count a batch, and write a line if one is due."""
        if self._fit is None:
            return
        self._fit.count(batch, batch_idx + 1)
        self._state = "after a batch"
        if self._detector is not None:
            self._detector.beat()
        if self.training.latest >= self._next_line:
            epoch_eta, fit_eta = self._estimates(trainer, self._fit)
            fields = {
                **self._training_fields(trainer, self._fit),
                "percent": _percent(self._fit),
                "step": f"{trainer.global_step}",
                **_rate_fields(self.training.since(self._line_mark)),
                "gpu_memory": _gpu_memory(trainer),
                "eta_epoch": _seconds(epoch_eta),
                "eta_fit": _seconds(fit_eta),
            }
            self._write("train", fields, bar_metrics(trainer, within_epoch=True))

    def _training_fields(self, trainer: Any, fit: _Stage) -> _Fields:
        return {"epoch": self._epoch_of(trainer), "batch": _of(fit.batch, fit.batches)}

    def _epoch_of(self, trainer: Any) -> str:
        epochs = trainer.max_epochs
        return _of(self._epoch, None if epochs is None or epochs < 0 else max(int(epochs) - 1, self._epoch))

    @harmless(_LINES)
    def end_epoch(self, trainer: Any) -> None:
        """Note an epoch that has ended. Its line is written when Lightning has computed its metrics on all ranks."""
        self.begin("after the epoch")
        if self._writes and self._fit is not None:
            rates = self.training.since(self._epoch_mark)
            self._ended = {
                **self._training_fields(trainer, self._fit),
                "step": f"{trainer.global_step}",
                **_rate_fields(rates, is_end=True),
                "gpu_memory": _gpu_memory(trainer),
                "time": _seconds(time.monotonic() - self._epoch_started),
                "eta_fit": _seconds(self._estimates(trainer, self._fit)[1]),
            }

    @harmless(_LINES)
    def write_epoch(self, trainer: Any) -> None:
        """Write the line of an epoch that has ended, if it has not been written."""
        ended, self._ended = self._ended, None
        if ended is not None:
            self._write("train end", ended, bar_metrics(trainer, within_epoch=False))

    @harmless(_LINES)
    def end_training(self, trainer: Any) -> None:
        """Stop to watch: what follows has no batches."""
        self.write_epoch(trainer)
        self._stop_watching()

    @harmless(_LINES)
    def end_fit(self, trainer: Any, error: Optional[BaseException] = None) -> None:
        """Write the totals of this process, also up to an error."""
        self.write_epoch(trainer)
        fit, self._fit = self._fit, None
        if fit is not None and self._writes:
            total = self.training.total
            fields = {
                "batch": f"{total.batches}",
                "step": f"{trainer.global_step}",
                **_rate_fields(total, is_end=True),
                "time": _seconds(time.monotonic() - fit.started),
                "reason": None if error is None else type(error).__name__,
            }
            self._write("fit end" if error is None else "fit interrupted", fields)

    def _estimates(self, trainer: Any, fit: _Stage) -> Tuple[Optional[float], Optional[float]]:
        """The seconds to the end of the epoch, and of ``fit``. Validation is taken to go on with each batch."""
        total, batches, timer = self.training.total, fit.batches, _seconds_left(trainer)
        if total.step_time is None:
            return None, timer
        left_in_epoch = None if batches is None else max(batches - fit.batch, 0)
        left: List[float] = []
        if batches is not None and left_in_epoch is not None and (trainer.max_epochs or -1) >= 0:
            left.append(max(trainer.max_epochs - self._epoch - 1, 0) * batches + left_in_epoch)
        steps_of_batch = (trainer.global_step - self._start_step) / total.batches
        if trainer.max_steps >= 0 and steps_of_batch > 0:
            left.append(max(trainer.max_steps - trainer.global_step, 0) / steps_of_batch)
        seconds = [number * (total.step_time + self.training.paused_for / total.batches) for number in left]
        fit_eta = min(seconds + ([] if timer is None else [timer]), default=None)
        epoch_eta = None if left_in_epoch is None else min([left_in_epoch, *left]) * total.step_time
        return epoch_eta if epoch_eta is None or fit_eta is None else min(epoch_eta, fit_eta), fit_eta

    # --- validation, test and prediction

    @harmless(_LINES)
    def begin_evaluation(self, trainer: Any) -> None:
        """Begin to count those batches, and not their time as training."""
        kinds = ("sanity check", trainer.sanity_checking), ("test", trainer.testing), ("predict", trainer.predicting)
        name = next((kind for kind, runs in kinds if runs), "validation")
        loaders, batches, step = _EVALUATIONS[name]
        self.training.pause()
        stage = self._evaluation = _Stage(trainer, name, step)
        stage.batches = _batch_count(getattr(trainer, batches, None))
        stage.sizes = [BatchSize([loader]) for loader in _listed(getattr(trainer, loaders, None))]
        stage.metrics_before = callback_metrics(trainer)
        self.begin()

    @harmless(_LINES)
    def end_evaluation_batch(self, trainer: Any, batch: Any, loader: int) -> None:
        """Count a batch, and write a line if one is due."""
        stage = self._evaluation
        self._state = "after a batch"
        if self._detector is not None:
            self._detector.beat()
        if stage is not None:
            stage.count(batch, stage.batch + 1, loader)
            if stage.counter.latest >= self._next_line:
                rates, memory = _rate_fields(stage.counter.total), {"gpu_memory": _gpu_memory(trainer)}
                fields = {**self._evaluation_fields(trainer, stage), "percent": _percent(stage), **rates, **memory}
                self._write(stage.name, fields)

    @harmless(_LINES)
    def end_evaluation(self, trainer: Any) -> None:
        """Write the totals, with all that it logged."""
        stage, self._evaluation = self._evaluation, None
        self.training.resume()
        self.begin("after the evaluation")
        if stage is not None and self._writes:
            logged = callback_metrics(trainer)
            metrics = {name: value for name, value in logged.items() if stage.metrics_before.get(name) is not value}
            rates = _rate_fields(stage.counter.total, is_end=True)
            time_taken = {"time": _seconds(time.monotonic() - stage.started)}
            self._write(
                f"{stage.name} end", {**self._evaluation_fields(trainer, stage), **rates, **time_taken}, metrics
            )
        if trainer.state.fn != "fit":
            self._stop_watching()

    def _evaluation_fields(self, trainer: Any, stage: _Stage) -> _Fields:
        is_in_fit = stage.name == "validation" and self._fit is not None
        epoch = self._epoch_of(trainer) if is_in_fit else None
        return {"epoch": epoch, "batch": _of(stage.batch, stage.batches)}

    # --- ends

    def _stop_watching(self) -> None:
        if self._detector is not None:
            self._detector.stop()

    def end(self) -> None:
        """Stop watching, and detach from the trainer."""
        self._stop_watching()
        if self._undo is not None:
            self._undo()
        self._reset()

    def _write(self, head: str, fields: _Fields, metrics: Mapping[str, Any] = {}) -> None:
        text = " ".join(f"{name}={word}" for name, word in fields.items() if word is not None)
        log.info("progress %s: %s%s", head, text, f" | {_metrics(metrics)}" if metrics else "")
        self._line_mark = self.training.mark()
        self._set_next_line()

    def _waiting(self, trainer: Any) -> Waiting:
        """What this process does, called by the thread that watches."""
        stage, rank = self._evaluation or self._fit, int(trainer.global_rank)
        batch = 0 if stage is None else stage.batch
        epoch = f"epoch={self._epoch} " if self._evaluation is None else ""
        position = f"{epoch}batch={batch} rank={rank} of {trainer.world_size}"
        is_spoken = _LINES not in self.failed and (rank == 0 or self._state == "waiting for data")
        return Waiting("train" if stage is None else stage.name, position, self._state, is_spoken)


def _percent(stage: _Stage) -> Optional[str]:
    return f"{min(100 * stage.batch // stage.batches, 100)}" if stage.batches else None


def _listed(loaders: Any) -> List[Any]:
    if isinstance(loaders, Mapping):
        return list(loaders.values())
    return [] if loaders is None else list(loaders) if isinstance(loaders, (list, tuple)) else [loaders]


def _batch_count(number: Any) -> Optional[int]:
    """The sum of what Lightning says of one loader or a list of them; ``None`` if it is unknown or infinite."""
    numbers = list(number) if isinstance(number, (list, tuple)) else [number]
    known = [int(each) for each in numbers if isinstance(each, (int, float)) and math.isfinite(each)]
    return sum(known) if numbers and len(known) == len(numbers) else None


def _replicas_of(trainer: Any) -> int:
    """The number of processes that train on different data: all, unless the model itself is split among some."""
    arguments = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
    return int(arguments.get("num_replicas") or trainer.world_size)


def _seconds_left(trainer: Any) -> Optional[float]:
    """The time until the first of Lightning's timers (``max_time``) ends the training; ``None`` without one."""
    left = []
    for callback in trainer.callbacks:
        if any(kind.__name__ == "Timer" for kind in type(callback).__mro__):
            with suppress(Exception):  # of another class of that name
                left.append(float(callback.time_remaining("train")))
    return min(left, default=None)


def _gpu_memory(trainer: Any) -> Optional[str]:
    """What torch has reserved on this process's GPU, and what that has. Neither number waits for the GPU."""
    import torch

    device = getattr(trainer.strategy, "root_device", None)
    if getattr(device, "type", None) != "cuda" or not torch.cuda.is_initialized():
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return f"{torch.cuda.memory_reserved(device) / 2**30:.1f}/{total / 2**30:.1f}GiB"


def _rate_fields(rates: Rates, is_end: bool = False) -> _Fields:
    fields: _Fields = {"samples": f"{rates.samples}" if is_end and rates.samples is not None else None}
    if rates.samples_per_second is not None:
        fields["samples/s"] = _number(rates.samples_per_second)
    elif rates.batches_per_second is not None:
        fields["batches/s"] = _number(rates.batches_per_second)
    fields["step_time"] = None if rates.step_time is None else f"{_number(rates.step_time * 1000)}ms"
    fields["data_wait"] = None if rates.data_wait is None else f"{round(rates.data_wait * 100)}%"
    return fields


def _of(number: int, total: Optional[int]) -> str:
    return str(number) if total is None else f"{number}/{total}"


def _number(value: float) -> str:
    """At least three digits, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.6f}"


def _seconds(seconds: Optional[float]) -> Optional[str]:
    """Hours, minutes and seconds.

    Example::

        >>> _seconds(3725.4), _seconds(90000), _seconds(None)
        ('1:02:05', '25:00:00', None)
    """
    if seconds is None or not math.isfinite(seconds):
        return None
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _metrics(metrics: Mapping[str, Any]) -> str:
    """Metrics as text of bounded length.

    Example::

        >>> _metrics({"loss": 0.123456789, "n\\n": 3})
        'loss=0.12346, n =3'
    """
    fields = [f"{_one_line(name)}={_value(value)}" for name, value in islice(metrics.items(), _MAX_METRICS)]
    more = len(metrics) - len(fields)
    return ", ".join([*fields, f"and {more} more"] if more else fields)


def _value(value: Any) -> str:
    try:
        number = value.item() if hasattr(value, "item") else value
        return f"{number:.5g}" if isinstance(number, float) else _one_line(str(number))
    except Exception as error:  # of a metric of the user's, such as one of several values
        return type(error).__name__


def _one_line(text: str) -> str:
    text = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text)
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 3]}..."
