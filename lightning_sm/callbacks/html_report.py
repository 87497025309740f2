"""``HTMLReport``: writes a report of the fit, as one page that opens offline."""

import multiprocessing
import os
import time
from contextlib import suppress
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._failure import before_forced_exit, describe_failure
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.legacy import epochs_trained, returns_callback_state
from lightning_sm._lightning.metric_hook import observe_logged_metrics
from lightning_sm._lightning.trainer import Trainer, callbacks_of
from lightning_sm._progress.rates import Rates, RecordsRates
from lightning_sm._report import (
    Attempt,
    History,
    Kind,
    Outcome,
    Report,
    ReportWriter,
    rows_of_export,
    rows_of_job,
    rows_of_topology,
    rows_of_versions,
    version_of_file,
    warn,
)
from lightning_sm._sagemaker.exit_codes import STOPPED, is_success
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.callbacks.auto_resume import AutoResumeMixin
from lightning_sm.callbacks.graceful_stop import GracefulStopMixin
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.errors import LightningSMError

__all__ = ["HTMLReportMixin"]

_FILE = "report.html"
_MAX_GROUPS = 8


class HTMLReportMixin(RecordsRates):
    """Write ``report.html`` when ``fit`` ends, also when it failed or was stopped, from global rank 0.

    The page shows each logged metric, the throughput and the learning rates over the steps, the outcome with the
    reason of a failure, each restart with its resume point, the exported model, topology, routed settings and versions.
    It is one file that opens offline and requests nothing from any host.

    A curve of many points is thinned while it is recorded: the ends and the extremes of equal ranges of steps remain.
    The recorded curves are a part of each checkpoint (at most 0.7 MB, mostly a few KB), so that the report of a
    restarted job shows the training from its beginning. What was recorded after the checkpoint that a job resumes from
    was trained in vain, and is dropped.

    A failed or stopped fit is reported when the program ends, after the checkpoint, the exported model and the failure
    file were written; outside a container at once. A process that is killed writes no report. Of several fits of a
    program that write to one directory, the last one is reported. ``validate``, ``test`` and ``predict`` write none.
    An error in writing the report is one warning in the log.

    Files that are written:

    ``report.html``
      In ``directory``; an earlier one is replaced.

    Files that are read:

    ``model.json``
      In the model directory, if the fit has exported a model.

    ``/opt/ml/output/failure``
      The failure reason of the job, which may be that of another rank.

    Environment variables:

    ``SM_OUTPUT_DATA_DIR``
      The default of ``directory``, ``/opt/ml/output/data``. Set by the training toolkit (SDK v2) or the container
      drivers (SDK v3). Outside a container it is absent, and the trainer's ``default_root_dir`` is used.

    Args:
        directory: The directory to write to.
        routing: The settings that SageMaker determined, one a line.
        topology: The world of the job; by default :meth:`Topology.resolve() <lightning_sm.Topology.resolve>`.

    Example::

        >>> from lightning_sm.callbacks import HTMLReport
        >>> report = HTMLReport("reports")
        >>> report.directory
        'reports'
        >>> trainer = Trainer(callbacks=[report])  # doctest: +SKIP
    """

    namespace: Namespace
    shares_rates = True

    def __init__(
        self,
        directory: Optional[str] = None,
        routing: Sequence[str] = (),
        topology: Optional[Topology] = None,
    ) -> None:
        super().__init__()
        self._job = TrainingJob.resolve()
        self.directory = directory or self._job.output_data_dir
        self.routing = tuple(routing)
        self._topology = topology
        self._history = History()
        self._started = 0.0
        self._is_recording = self._has_begun = False
        self._world: Tuple[Tuple[str, str], ...] = ()
        self._known_files: Dict[str, Any] = {}
        self._model = ""
        self._lr_step: Optional[int] = None
        self._rates_until = 0.0
        self._undo: List[Callable[[], None]] = []

    def __getstate__(self) -> Any:
        """A copy is attached to no trainer."""
        return {**super().__getstate__(), "_undo": []}

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Begin to record, on global rank 0."""
        self._end_recording()
        if stage != "fit" or trainer.state.fn != "fit" or not trainer.is_global_zero:
            return
        try:
            self._begin_recording(trainer, pl_module)
        except Exception as error:  # of a logger, or a file system
            self._give_up(error)

    def _begin_recording(self, trainer: Trainer, pl_module: Any) -> None:
        self._history, self._is_recording, self._has_begun, self._lr_step = History(), True, False, None
        self._started, self._model = time.monotonic(), type(pl_module).__name__
        self._known_files = {path: version_of_file(path) for path in self._files(trainer)}
        self._world = self._describe_world(trainer)
        self._undo.append(observe_logged_metrics(trainer, lambda metrics, step: self._record(trainer, metrics, step)))
        self._undo.append(before_forced_exit(lambda: self._write_blocked(trainer)))

    def _give_up(self, error: Exception) -> None:
        warn(error)
        self._end_recording()

    def state_dict(self) -> Dict[str, Any]:
        """Return what was recorded, which is a part of the checkpoint."""
        if not self._is_recording:
            return {}
        try:
            self._record_rates()
            return {"history": self._history.to_plain()}
        except Exception as error:
            self._give_up(error)
            return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with what an earlier attempt had recorded."""
        if self._is_recording:
            self._history = History.from_plain(state_dict.get("history"))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> Any:
        """Return the state where Lightning asks for it here."""
        return self.state_dict() if returns_callback_state(self.namespace) else None

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Load the state where Lightning hands it over here."""
        if returns_callback_state(self.namespace):
            self.load_state_dict(checkpoint)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note where the training begins."""
        super().on_train_start(trainer, pl_module)
        self._rates_until = 0.0
        if self._is_recording and not self._has_begun:
            try:
                self._begin(trainer)
            except Exception as error:
                self._give_up(error)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Report a fit that failed or was stopped, when the program ends."""
        super().on_exception(trainer, pl_module, exception)
        if self._is_recording:
            self._finish(trainer, exception, at_exit=self._job.in_container)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Report a fit that was completed."""
        super().teardown(trainer, pl_module, stage)
        if self._is_recording and stage == "fit":
            self._finish(trainer, None, at_exit=False)
        self._end_recording()

    def _begin(self, trainer: Trainer) -> None:
        self._has_begun = True
        step, epoch = int(trainer.global_step), int(trainer.current_epoch)
        found = (callback.resumed_from for callback in callbacks_of(trainer) if isinstance(callback, AutoResumeMixin))
        checkpoint = next(found, None) or ("a checkpoint, or the weights of an earlier fit" if step else None)
        self._history.add_attempt(Attempt(time.time(), checkpoint, step, epoch))

    def _record(self, trainer: Trainer, metrics: Mapping[str, Any], step: int) -> None:
        for name, value in metrics.items():
            self._history.add(name, step, value)
        if step != self._lr_step:
            self._lr_step = step
            for name, rate in _learning_rates(trainer):
                self._history.add(name, step, rate, Kind.LEARNING_RATE)

    def _record_rates(self) -> None:
        """Add the rates that were measured since the last call."""
        for point in [point for point in self.rates.history if point.seconds > self._rates_until]:
            self._rates_until = point.seconds
            for name, value in _rates(point.rates):
                self._history.add(name, point.step, value, Kind.THROUGHPUT)

    def _finish(self, trainer: Trainer, exception: Optional[BaseException], *, at_exit: bool) -> None:
        try:
            writer = self._collect(trainer, *_describe_end(trainer, exception, self._job))
            # Processes that multiprocessing started do not all call what is registered for their end.
            if not at_exit or multiprocessing.parent_process() is not None:
                writer.complete()
        except Exception as error:
            warn(error)
        self._end_recording()

    def _write_blocked(self, trainer: Trainer) -> None:
        """Report the failure of another rank, in a process that is ended because it is blocked."""
        try:
            self._collect(trainer, Outcome.FAILED, "Blocked after another rank failed").complete()
        except Exception as error:
            warn(error)

    def _collect(self, trainer: Trainer, outcome: Outcome, reason: Optional[str]) -> ReportWriter:
        if not self._has_begun:
            self._begin(trainer)
        self._record_rates()
        if not self._rates_until:  # a fit that was too short for a point
            for name, value in _rates(self.rates.total):
                self._history.add(name, int(trainer.global_step), value, Kind.THROUGHPUT)
        model_json, failure_file = self._files(trainer)
        path = os.path.join(self._directory(trainer), _FILE)
        is_exported = model_json and version_of_file(model_json) != self._known_files.get(model_json)
        left_out = self._history.num_left_out
        report = Report(
            outcome=outcome,
            title=self._job.name or self._model,
            reason=reason,
            ended=time.time(),
            seconds=time.monotonic() - self._started,
            epochs=epochs_trained(self.namespace, trainer),
            steps=int(trainer.global_step),
            job=rows_of_job(self._job),
            topology=self._world,
            routing=self.routing,
            versions=rows_of_versions(self.namespace),
            curves=self._history.curves(),
            attempts=tuple(self._history.attempts),
            export=rows_of_export(model_json) if is_exported else (),
            notes=(f"{left_out} logged names are not shown: too many, or no numbers.",) if left_out else (),
        )
        return ReportWriter(path, report, self._job, failure_file, self._known_files.get(failure_file))

    def _directory(self, trainer: Trainer) -> str:
        for directory in (self.directory, self._job.output_data_dir, getattr(trainer, "default_root_dir", None)):
            if directory and "://" not in directory:
                return str(directory)
        return os.getcwd()

    def _files(self, trainer: Trainer) -> Tuple[str, str]:
        """The description of the exported model, and the failure file; empty where there is none."""
        directories = [callback.model_dir for callback in exports_of(trainer) if callback.model_dir]
        model_json = os.path.join(directories[0], "model.json") if directories else ""
        return model_json, self._job.failure_file or ""

    def _describe_world(self, trainer: Trainer) -> Tuple[Tuple[str, str], ...]:
        import torch

        backend = None
        with suppress(Exception):  # a build of torch without it, or no group
            backend = torch.distributed.get_backend()
        try:
            topology = Topology.resolve(job=self._job) if self._topology is None else self._topology
        except LightningSMError:
            return ()
        return rows_of_topology(topology, world_size=trainer.world_size, num_nodes=trainer.num_nodes, backend=backend)

    def _end_recording(self) -> None:
        for undo in self._undo:
            undo()
        self._undo, self._is_recording = [], False


def _describe_end(trainer: Trainer, error: Optional[BaseException], job: TrainingJob) -> Tuple[Outcome, Optional[str]]:
    if error is None:
        return Outcome.COMPLETED, None
    found = [callback.stopped_by for callback in callbacks_of(trainer) if isinstance(callback, GracefulStopMixin)]
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


def _rates(rates: Rates) -> List[Tuple[str, float]]:
    wait = None if rates.data_wait is None else 100 * rates.data_wait
    found = (
        ("samples per second, all processes", rates.samples_per_second),
        ("seconds per batch", rates.step_time),
        ("waiting for data, % of the time", wait),
    )
    return [(name, value) for name, value in found if value is not None]


def _learning_rates(trainer: Trainer) -> List[Tuple[str, Any]]:
    optimizers = trainer.optimizers
    rates = []
    for index, optimizer in enumerate(optimizers):
        name = type(optimizer).__name__ + (f" {index}" if len(optimizers) > 1 else "")
        groups = getattr(optimizer, "param_groups", None) or []
        for number, group in enumerate(groups[:_MAX_GROUPS]):
            if group.get("lr") is not None:
                rates.append((f"{name}, group {number}" if len(groups) > 1 else name, group["lr"]))
    return rates
