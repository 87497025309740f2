"""``Progress``: counts the batches of a training, writes its progress as lines, and watches for one that stalls.

The form is fixed, so that lines can be searched for and parsed::

    progress STAGE: NAME=VALUE NAME=VALUE ... | METRIC=VALUE, METRIC=VALUE, ...
    progress STAGE end: ...
"""

import math
import re
import time
from itertools import islice
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

from lightning_sm._lightning.observing import (
    around_fetches,
    bar_metrics,
    callback_metrics,
    evaluated_loaders,
    seconds_of_timers,
)
from lightning_sm._lightning.replaced_method import UndoList
from lightning_sm._lightning.restart import loaders_of
from lightning_sm._logging import log
from lightning_sm._observe.harmless import harmless
from lightning_sm._observe.metrics import plain_number
from lightning_sm._observe.rates import BatchSize, Counter, Rates
from lightning_sm._observe.stalls import StallDetector, Waiting

__all__ = ["Progress"]

_LINES = "progress lines"
# So many intervals between lines without a batch are a stall.
_STALL_INTERVALS = 5
_MAX_METRICS = 20
_MAX_NAME = 80
# What lines call Lightning's stages and their steps.
_EVALUATIONS = {
    "sanity_check": ("sanity check", "validation"),
    "validate": ("validation", "validation"),
    "test": ("test", "test"),
    "predict": ("predict", "prediction"),
}
_Fields = Dict[str, Optional[str]]


class _Stage:
    """Something that goes through batches: the training, or one validation, test or prediction."""

    def __init__(self, trainer: Any, name: str = "train", step: str = "training") -> None:
        self.name, self.step = name, step
        self.counter = Counter()
        self.batch, self.batches = 0, math.inf
        self.sizes: List[BatchSize] = []
        # The processes that read different data: all, unless the model itself is split among some.
        arguments = getattr(trainer.strategy, "distributed_sampler_kwargs", None) or {}
        self.replicas = int(arguments.get("num_replicas") or trainer.world_size)
        self.metrics_before: Mapping[str, Any] = {}

    def count(self, batch: Any, number: int, loader: int = 0) -> None:
        self.batch = number
        size = self.sizes[loader].read(batch)
        self.counter.count(None if size is None else size * self.replicas)

    @property
    def seconds(self) -> Optional[str]:
        return _seconds(time.monotonic() - self.counter.started)

    @property
    def percent(self) -> Optional[str]:
        return None if math.isinf(self.batches) else f"{100 * self.batch // self.batches:.0f}"


class Progress:
    """Counts batches, and writes lines at most once in an interval and at the end of each stage, on global rank 0.

    No method raises: where one fails, a warning says so and no more lines are written. Its methods are called by the
    hooks of a callback.

    Args:
        every: The shortest time between two lines within a stage, in seconds.

    Attributes:
        training: The counts of the latest ``fit`` in this process.
    """

    def __init__(self, every: float) -> None:
        self.every = every
        self.failed: Set[str] = set()
        self.training = Counter()
        self._reset()

    def __getstate__(self) -> Any:
        """A copy has no thread."""
        return {**vars(self), "_detector": None}

    def _reset(self) -> None:
        self._undo = UndoList()
        self._detector: Optional[StallDetector] = None
        self._fit: Optional[_Stage] = None
        self._evaluation: Optional[_Stage] = None
        self._writes = False
        self._ended: Optional[_Fields] = None
        self._epoch = self._start_step = 0
        self._epoch_started = 0.0
        self._epoch_mark = self._line_mark = Rates()
        self._next_line = math.inf
        self._state = "before the first batch"

    @harmless(_LINES)
    def set_up(self, trainer: Any, writes: bool) -> None:
        """Attach to the trainer's loops; after :meth:`end`, where it was attached before.

        Args:
            trainer: The trainer, in ``setup``.
            writes: Whether lines are wanted.
        """
        self._undo.extend(around_fetches(trainer, self._fetch_started, self._fetch_ended))
        if writes:
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

    @harmless(_LINES)
    def begin(self, state: str = "before the first batch") -> None:
        """Note what goes on, and watch from now on."""
        self._state = state
        if self._detector is not None:
            self._detector.beat()
        if self._writes and self._next_line == math.inf:
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
            self._fit.batches = trainer.num_training_batches
            self._fit.sizes = [BatchSize(loaders_of(trainer))]  # it may differ from epoch to epoch
            self._epoch_mark = self._line_mark = self.training.total
        self.begin("before the first batch of the epoch")

    @harmless(_LINES)
    def end_batch(self, trainer: Any, batch: Any, batch_idx: int) -> None:
        """Count a batch, and write a line if one is due."""
        if self._fit is None:
            return
        self._fit.count(batch, batch_idx + 1)
        self.begin("after a batch")
        if self.training.latest >= self._next_line:
            epoch_eta, fit_eta = self._estimates(trainer, self._fit)
            fields = {
                **self._position(trainer, self._fit),
                "percent": self._fit.percent,
                "step": f"{trainer.global_step}",
                **_rate_fields(self.training.total - self._line_mark),
                "gpu_memory": _gpu_memory(trainer),
                "eta_epoch": _seconds(epoch_eta),
                "eta_fit": _seconds(fit_eta),
            }
            self._write("train", fields, bar_metrics(trainer, within_epoch=True))

    def _position(self, trainer: Any, stage: _Stage) -> _Fields:
        is_of_epoch = trainer.state.fn == "fit" and stage.name in ("train", "validation")
        epochs = trainer.max_epochs
        last = max(epochs - 1, self._epoch) if epochs >= 0 else math.inf
        return {"epoch": _of(self._epoch, last) if is_of_epoch else None, "batch": _of(stage.batch, stage.batches)}

    @harmless(_LINES)
    def end_epoch(self, trainer: Any) -> None:
        """Note an epoch that has ended. Its line is written when Lightning has computed its metrics on all ranks."""
        self.begin("after the epoch")
        if self._writes and self._fit is not None:
            self._ended = {
                **self._position(trainer, self._fit),
                "step": f"{trainer.global_step}",
                **_rate_fields(self.training.total - self._epoch_mark, is_end=True),
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
                "time": fit.seconds,
                "reason": None if error is None else type(error).__name__,
            }
            self._write("fit end" if error is None else "fit interrupted", fields)

    def _estimates(self, trainer: Any, fit: _Stage) -> Tuple[float, float]:
        """The seconds to the end of the epoch, and of ``fit``. Validation is taken to go on with each batch."""
        total, timers = self.training.total, seconds_of_timers(trainer)
        if not total.batches:
            return math.inf, timers
        left_in_epoch, later_epochs = fit.batches - fit.batch, trainer.max_epochs - self._epoch - 1
        left = [math.inf]
        if trainer.max_epochs >= 0:
            left.append(left_in_epoch + later_epochs * fit.batches if later_epochs > 0 else left_in_epoch)
        steps_of_batch = (trainer.global_step - self._start_step) / total.batches
        if trainer.max_steps >= 0 and steps_of_batch > 0:
            left.append((trainer.max_steps - trainer.global_step) / steps_of_batch)
        fit_eta = min(min(left) * (total.step_time + self.training.paused_for / total.batches), timers)
        return min(min(left_in_epoch, *left) * total.step_time, fit_eta), fit_eta

    # --- validation, test and prediction

    @harmless(_LINES)
    def begin_evaluation(self, trainer: Any) -> None:
        """Begin to count those batches, and not their time as training."""
        words = _EVALUATIONS.get(trainer.state.stage.value)
        if words is None:  # a program runs the loop of the validation itself, within the training
            return
        self.training.pause()
        stage = self._evaluation = _Stage(trainer, *words)
        loaders, stage.batches = evaluated_loaders(trainer)
        stage.sizes = [BatchSize([loader]) for loader in loaders]
        stage.metrics_before = callback_metrics(trainer)
        self.begin()

    @harmless(_LINES)
    def end_evaluation_batch(self, trainer: Any, batch: Any, loader: int) -> None:
        """Count a batch, and write a line if one is due."""
        stage = self._evaluation
        self.begin("after a batch")
        if stage is not None:
            stage.count(batch, stage.batch + 1, loader)
            if stage.counter.latest >= self._next_line:
                fields = {
                    **self._position(trainer, stage),
                    "percent": stage.percent,
                    **_rate_fields(stage.counter.total),
                    "gpu_memory": _gpu_memory(trainer),
                }
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
            fields = {**self._position(trainer, stage), **rates, "time": stage.seconds}
            self._write(f"{stage.name} end", fields, metrics)
        if trainer.state.fn != "fit":
            self._stop_watching()

    # --- ends

    def _stop_watching(self) -> None:
        if self._detector is not None:
            self._detector.stop()

    def end(self) -> None:
        """Stop watching, and detach from the trainer."""
        self._stop_watching()
        self._undo.run()
        self._reset()

    def _write(self, head: str, fields: _Fields, metrics: Mapping[str, Any] = {}) -> None:
        text = " ".join(f"{name}={word}" for name, word in fields.items() if word is not None)
        log.info("progress %s: %s%s", head, text, f" | {_metrics(metrics)}" if metrics else "")
        self._line_mark = self.training.total
        self._next_line = time.monotonic() + self.every

    def _waiting(self, trainer: Any) -> Waiting:
        """What this process does, called by the thread that watches."""
        stage, rank = self._evaluation or self._fit, int(trainer.global_rank)
        batch = 0 if stage is None else stage.batch
        epoch = f"epoch={self._epoch} " if self._evaluation is None else ""
        position = f"{epoch}batch={batch} rank={rank} of {trainer.world_size}"
        is_spoken = _LINES not in self.failed and (rank == 0 or self._state == "waiting for data")
        return Waiting("train" if stage is None else stage.name, position, self._state, is_spoken)


def _gpu_memory(trainer: Any) -> Optional[str]:
    """What torch has reserved on this process's GPU, and what that has. Neither number waits for the GPU."""
    import torch

    device = trainer.strategy.root_device
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    return f"{torch.cuda.memory_reserved(device) / 2**30:.1f}/{total / 2**30:.1f}GiB"


def _rate_fields(rates: Rates, is_end: bool = False) -> _Fields:
    fields: _Fields = {}
    is_known = not math.isnan(rates.samples)
    if is_end and is_known:
        fields["samples"] = f"{rates.samples:.0f}"
    if rates.batches:
        speed = ("samples/s", rates.samples_per_second) if is_known else ("batches/s", 1 / rates.step_time)
        fields[speed[0]] = _number(speed[1])
        fields["step_time"] = f"{_number(rates.step_time * 1000)}ms"
        fields["data_wait"] = f"{rates.data_wait * 100:.0f}%"
    return fields


def _of(number: int, total: float) -> str:
    return str(number) if math.isinf(total) else f"{number}/{total:.0f}"


def _number(value: float) -> str:
    """At least three digits, and no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else f"{value:.6f}"


def _seconds(seconds: float) -> Optional[str]:
    """Hours, minutes and seconds.

    Example::

        >>> _seconds(3725.4), _seconds(90000), _seconds(math.inf)
        ('1:02:05', '25:00:00', None)
    """
    if math.isinf(seconds):
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
    number = plain_number(value)
    return f"{number:.5g}" if isinstance(number, float) else _one_line(str(number))


def _one_line(text: str) -> str:
    text = re.sub(r"[\s\x00-\x1f\x7f]+", " ", text)
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 3]}..."
