"""``TrainingMonitor``: writes what is observed of a training: progress lines, metric lines and a report."""

import functools
import math
import multiprocessing
import os
import time
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Set, Tuple, Union

from lightning_sm._duration import duration_of_option
from lightning_sm._export import distribution_versions
from lightning_sm._failure import before_forced_exit, describe_failure
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.observing import hand_metrics_to, replace_progress_bar
from lightning_sm._lightning.replaced_method import UndoList
from lightning_sm._lightning.trainer import Callback
from lightning_sm._observe.harmless import harmless
from lightning_sm._observe.history import Attempt, History, Kind
from lightning_sm._observe.metrics import MetricLog, plain_number
from lightning_sm._observe.metrics_logger import metrics_logger
from lightning_sm._observe.progress import Progress
from lightning_sm._observe.rates import Rates
from lightning_sm._observe.report import (
    Outcome,
    Report,
    Rows,
    rows_of_export,
    rows_of_job,
    rows_of_topology,
    rows_of_versions,
)
from lightning_sm._observe.report_writer import ReportWriter, version_of_file, warn
from lightning_sm._resume.fits import is_search, is_search_within
from lightning_sm._sagemaker.exit_codes import STOPPED, is_success
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.callbacks.auto_resume import resume_of
from lightning_sm.callbacks.graceful_stop import GracefulStopMixin
from lightning_sm.callbacks.model_export import exports_of

__all__ = ["TrainingMonitorMixin"]

_FILE = "report.html"
_MAX_GROUPS = 8
_PACKAGES = ("numpy", "torchvision", "torchmetrics", "transformers")
# Rates are drawn for windows of a second, and later of this share of the time since the start.
_WINDOW, _WINDOWS = 1.0, 500


class TrainingMonitorMixin(Callback):
    """Write the progress and the metrics of a training to the log, and a report of each fit.

    In a job :class:`~lightning_sm.SageMakerCLI` and :func:`~lightning_sm.trainer_settings` add it, as the options
    ``log_every``, ``log_metrics`` and ``report`` of ``sagemaker`` say. Nothing of it ends a training.

    **Progress lines**, written with the logger ``lightning_sm`` on global rank 0, from time to time and at the end of
    each stage; where nothing goes on for five times ``progress``, a warning says where the run waits. Lightning's own
    progress bars are disabled. A bar of a class of the project's wins, and with ``enable_progress_bar=False`` nothing
    is written::

        progress train: epoch=0/2 batch=7/14 percent=50 step=7 samples/s=80 ... | loss=0.25

    **Metric lines**, one for each hand-over to loggers, with and without a logger, which the regular expressions of
    :func:`~lightning_sm.metric_definitions` find::

        metrics at step 120, epoch 3: train/loss=0.25 "my metric"=1.5e-07 val_loss=nan

    **report.html** in the directory ``report`` when ``fit`` ends, also when it failed or was stopped. What was recorded
    is a part of each checkpoint (at most 0.7 MB), so that the report of a restarted job shows the training from its
    beginning. ``docs/logs.md`` and ``docs/report.md`` describe all three.

    Files that are read: ``model.json`` in the model directory, if the fit has exported a model, and the job's failure
    file. Environment variables: see :class:`~lightning_sm.TrainingJob`.

    Args:
        progress: The shortest time between two progress lines within a stage: seconds, or text such as ``30s`` or
            ``5m``; ``None`` for no lines.
        metrics: Whether to write metric lines.
        report: The directory of the report; ``None`` for none. A URL stands for the job's output directory.
        objective: The name of the metric that a tuning job optimizes, which is written first. If a fit that was not
            resumed ends without a finite value of it, one warning says so. A job's is the hyperparameter
            ``_tuning_objective_metric``.
        settings: The settings that SageMaker determined, one a line, for the report.
        topology: The world of the job; by default :meth:`Topology.resolve() <lightning_sm.Topology.resolve>`.

    Raises:
        OptionError: ``progress`` is no duration.

    Example::

        >>> from lightning_sm.callbacks import TrainingMonitor
        >>> monitor = TrainingMonitor(progress="1m", report="reports")
        >>> trainer = Trainer(callbacks=[monitor])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(
        self,
        progress: Union[str, float, None] = "30s",
        metrics: bool = True,
        report: Optional[str] = None,
        objective: Optional[str] = None,
        settings: Sequence[str] = (),
        topology: Optional[Topology] = None,
    ) -> None:
        super().__init__()
        self.progress = Progress(math.inf if progress is None else duration_of_option("log_every", progress))
        self.metrics = MetricLog(objective) if metrics else None
        self.report, self.settings = report, tuple(settings)
        self.history = History()
        self.failed: Set[str] = set()
        self._job, self._topology = TrainingJob.resolve(), topology
        self._undo = UndoList()
        self._is_reported = self._has_begun = False
        self._started = 0.0
        self._known_failure: Any = None
        self._world: Rows = ()
        self._lr_step: Optional[int] = None
        self._window, self._next_window = Rates(), 0.0

    # --- the trainer's start and end

    def setup(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """Attach to the trainer."""
        self._detach()
        has_lines = self.progress.every < math.inf and replace_progress_bar(self.namespace, trainer)
        self.progress.set_up(trainer, has_lines)
        if trainer.is_global_zero:
            is_fit = trainer.state.fn == "fit" and not is_search(trainer)
            self._is_reported = is_fit and self.report is not None and "report" not in self.failed
            self._observe_metrics(trainer)
            self._begin_report(trainer)

    @harmless("metric lines")
    def _observe_metrics(self, trainer: Any) -> None:
        if self.metrics is not None or self._is_reported:
            logger = metrics_logger(self.namespace, trainer, functools.partial(self._write_metrics, trainer))
            self._undo.append(hand_metrics_to(trainer, logger))

    def teardown(self, trainer: Any, pl_module: Any, stage: Any = None) -> None:
        """Report a fit that was completed, and detach from the trainer."""
        if self._is_reported:
            self._finish(trainer, None, at_exit=False)
        self._detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the totals up to the exception, and report the fit when the program ends."""
        self.progress.end_fit(trainer, exception)
        if self._is_reported:
            self._finish(trainer, exception, at_exit=self._job.in_container)
        self._detach()

    def _detach(self) -> None:
        self.progress.end()
        self._undo.run()
        self._is_reported = False

    # --- training

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self.progress.begin_fit(trainer)
        self._window, self._next_window = Rates(), 0.0
        if self._is_reported:
            self._add_attempt(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count the epoch's batches."""
        self.progress.begin_epoch(trainer)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Count a batch, and write a line if one is due."""
        self.progress.end_batch(trainer, batch, batch_idx)
        if self._is_reported and self.progress.training.latest >= self._next_window:
            self._record_rates(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Note the end of the epoch, whose line is written when its metrics are there."""
        self.progress.end_epoch(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop watching: what follows has no batches."""
        self.progress.end_training(trainer)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the totals, and warn if the objective of a tuning job was not logged."""
        self.progress.end_fit(trainer)
        # Of a resumed fit it is unknown what was logged before.
        if self.metrics is not None and trainer.is_global_zero and not (trainer.fast_dev_run or _resumed_from(trainer)):
            self.metrics.check_objective()

    # --- validation, test and prediction

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self.progress.begin()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to count."""
        self.progress.begin_evaluation(trainer)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Count a batch, and write a line if one is due."""
        self.progress.end_evaluation_batch(trainer, batch, dataloader_idx)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the totals."""
        self.progress.end_evaluation(trainer)

    on_test_start = on_predict_start = on_validation_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
    on_test_end = on_predict_end = on_validation_end

    # --- metrics

    @harmless("metric lines")
    def _write_metrics(self, trainer: Any, handed: Mapping[str, Any], step: Optional[int]) -> None:
        if not handed or trainer.sanity_checking or is_search_within(trainer, self):
            return
        metrics = {str(name): plain_number(value) for name, value in handed.items()}
        epoch = int(trainer.current_epoch)
        if metrics.get("epoch") == epoch:  # which Lightning adds
            del metrics["epoch"]
        step = int(metrics.pop("step", trainer.global_step) if step is None else step)
        if self.metrics is not None:
            self.metrics.write(metrics, step, epoch)
        if self._is_reported:
            self._record(trainer, metrics, step)

    @harmless("report")
    def _record(self, trainer: Any, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in metrics.items():
            self.history.add(name, step, value)
        if step != self._lr_step:
            self._lr_step = step
            for name, rate in _learning_rates(trainer):
                self.history.add(name, step, rate, Kind.LEARNING_RATE)

    @harmless("report")
    def _record_rates(self, trainer: Any) -> None:
        counter, before = self.progress.training, self._window
        self._window = counter.total
        self._next_window = counter.latest + max(_WINDOW, self._window.seconds / _WINDOWS)
        rates = self._window - before
        if rates.batches:
            for name, value in (
                ("samples per second, all processes", rates.samples_per_second),
                ("seconds per batch", rates.step_time),
                ("waiting for data, % of the time", 100 * rates.data_wait),
            ):
                if not math.isnan(value):
                    self.history.add(name, int(trainer.global_step), value, Kind.THROUGHPUT)

    # --- the report

    @harmless("report")
    def _begin_report(self, trainer: Any) -> None:
        if self._is_reported:
            self._started, self._has_begun, self._lr_step, self.history = time.monotonic(), False, None, History()
            self._known_failure = version_of_file(self._job.failure_file or "")
            # A process that is ended because it is blocked reports the failure of the other rank.
            blocked = RuntimeError("another rank failed")
            self._undo.append(before_forced_exit(lambda: self._finish(trainer, blocked, at_exit=False)))
            self._world = self._describe_world(trainer)

    @harmless("report")
    def state_dict(self) -> Dict[str, Any]:
        """Return what was recorded, which is a part of the checkpoint."""
        return {"history": self.history.to_plain()} if self._is_reported else {}

    @harmless("report")
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what an earlier attempt had recorded."""
        if self._is_reported:
            self.history = History.from_plain(state_dict["history"])

    @harmless("report")
    def _add_attempt(self, trainer: Any) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        step, epoch = int(trainer.global_step), int(trainer.current_epoch)
        checkpoint = _resumed_from(trainer) or ("a checkpoint, or the weights of an earlier fit" if step else None)
        self.history.add_attempt(Attempt(time.time(), checkpoint, step, epoch))

    def _finish(self, trainer: Any, exception: Optional[BaseException], *, at_exit: bool) -> None:
        try:
            writer = self._collect(trainer, *_describe_end(trainer, exception, self._job))
            # Processes that multiprocessing started do not all call what is registered for their end.
            if not at_exit or multiprocessing.parent_process() is not None:
                writer.complete()
        except Exception as error:
            warn(error)

    def _collect(self, trainer: Any, outcome: Outcome, reason: Optional[str]) -> ReportWriter:
        self._add_attempt(trainer)
        self._record_rates(trainer)
        exported = next((callback.exported for callback in exports_of(trainer) if callback.exported), None)
        report = Report(
            outcome=outcome,
            title=self._job.name or type(trainer.lightning_module).__name__,
            reason=reason,
            ended=time.time(),
            seconds=time.monotonic() - self._started,
            epochs=int(trainer.current_epoch),
            steps=int(trainer.global_step),
            history=self.history,
            export=() if exported is None else rows_of_export(exported),
            job=rows_of_job(self._job),
            topology=self._world,
            settings=self.settings,
            versions=rows_of_versions(self.namespace, distribution_versions(_PACKAGES)),
        )
        path = os.path.join(self._directory(trainer), _FILE)
        return ReportWriter(path, report, self._job, self._known_failure)

    def _directory(self, trainer: Any) -> str:
        for directory in (self.report, self._job.output_data_dir, trainer.default_root_dir):
            if directory and "://" not in directory:
                return str(directory)
        return os.getcwd()

    def _describe_world(self, trainer: Any) -> Rows:
        import torch

        dist = torch.distributed
        backend = dist.get_backend() if dist.is_available() and dist.is_initialized() else None
        topology = Topology.resolve(job=self._job) if self._topology is None else self._topology
        return rows_of_topology(topology, world_size=trainer.world_size, num_nodes=trainer.num_nodes, backend=backend)


def _resumed_from(trainer: Any) -> Optional[str]:
    resume = resume_of(trainer)
    return None if resume is None else resume.resumed_from


def _describe_end(trainer: Any, error: Optional[BaseException], job: TrainingJob) -> Tuple[Outcome, Optional[str]]:
    if error is None:
        return Outcome.COMPLETED, None
    found = [callback.stopped_by for callback in trainer.callbacks if isinstance(callback, GracefulStopMixin)]
    stopped_by = next((reason for reason in found if reason), None)
    if isinstance(error, KeyboardInterrupt):
        return Outcome.STOPPED, "Interrupted from the keyboard"
    if isinstance(error, SystemExit):
        if stopped_by is not None:
            return Outcome.STOPPED, stopped_by
        if error.code == STOPPED:
            return Outcome.STOPPED, "SIGTERM received"
        if is_success(error.code):
            return Outcome.STOPPED, f"The program was left by sys.exit({error.code!r})"
    return Outcome.FAILED, describe_failure(error, job)


def _learning_rates(trainer: Any) -> Iterator[Tuple[str, Any]]:
    optimizers = trainer.optimizers
    for index, optimizer in enumerate(optimizers):
        name = type(optimizer).__name__ + (f" {index}" if len(optimizers) > 1 else "")
        groups = optimizer.param_groups
        for number, group in enumerate(groups[:_MAX_GROUPS]):
            if "lr" in group:
                yield f"{name}, group {number}" if len(groups) > 1 else name, group["lr"]
