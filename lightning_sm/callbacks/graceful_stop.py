"""``GracefulStop``: ends a fit in time, with a checkpoint and an exported model."""

import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from lightning_sm._checkpoint.candidates import REPLACED_WEIGHTS_KEY
from lightning_sm._checkpoint.finished import TrainedWeights
from lightning_sm._failure import report_exit, set_training
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce, any_true
from lightning_sm._lightning.compat import steps_taken
from lightning_sm._lightning.train_loop_hooks import after_batch_hooks, before_validations
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import STOPPED, SUCCESS
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._shutdown import (
    Deadline,
    SigtermHandler,
    have_equal_batches,
    read_deadline,
    save_directory,
    save_stopped,
)
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.errors import ExportError

__all__ = ["GracefulStopMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


class GracefulStopMixin(_Base):
    """Stop on SIGTERM or before a time limit: save a checkpoint, export the model, end the program.

    SageMaker sends SIGTERM when a job is stopped, when its spot instances are reclaimed and when its time limit is
    exceeded, and SIGKILL 120 seconds later. The training toolkit does not forward SIGTERM to a script: start the
    container with the entry point that ``lightning-sm entrypoint`` prints.

    All ranks stop after the same optimizer step, so that no accumulated gradient is lost, or between two validation
    batches. No validation and no hook of an epoch's end runs, because the epoch has not ended. The program then ends
    with exit code 143 after SIGTERM and 0 at the time limit; a script's lines after ``fit`` do not run.

    If a validation swaps the weights, as ``WeightAveraging`` does, the end hooks of the callbacks that act at its start
    are called first, which restores the trained weights. If they do not, nothing is saved or exported, and the last
    checkpoint remains. If ranks have unequal numbers of validation batches, the fit stops after the next step instead
    of within the validation.

    Files that are written:

    ``stopped-step=N.ckpt``
      The checkpoint after optimizer step N, in ``directory``; older ones are removed.

    Files that are read:

    ``/proc/1/stat``, ``/proc/uptime``
      With ``max_runtime`` only: when the container started. Where they are absent, the time counts from now.

    Args:
        directory: Where ``stopped-step=N.ckpt`` is saved. By default, the directory of the first ``ModelCheckpoint``;
            without one, no checkpoint is saved.
        max_runtime: How long the job may run, such as ``23h30m`` or a number of seconds, from the start of the
            container, or of this process outside of one. The fit stops earlier by 5 %, at most 2 minutes, plus twice
            the time of the slowest checkpoint.

    Raises:
        JobConfigError: ``max_runtime`` is not a duration.
        ExportError: The model could not be exported, after the checkpoint was saved; or the time limit was reached in a
            validation that did not restore the trained weights.

    Sources: StopTrainingJob and managed spot training in the SageMaker Developer Guide
    (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StopTrainingJob.html).

    Example::

        >>> from lightning_sm.callbacks import GracefulStop
        >>> stop = GracefulStop("checkpoints", max_runtime="23h30m")
        >>> stop.directory, stop.max_runtime
        ('checkpoints', '23h30m')
        >>> trainer = Trainer(callbacks=[stop])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self, directory: Optional[str] = None, max_runtime: Optional[str] = None) -> None:
        super().__init__()
        self.directory = directory
        self.max_runtime = max_runtime
        #: Why the fit was stopped; ``None`` unless it was.
        self.stopped_by: Optional[str] = None
        self._deadline: Optional[Deadline] = None
        if max_runtime is not None:
            self._deadline = read_deadline(max_runtime, TrainingJob.resolve())
        self._sigterm = SigtermHandler()
        self._all_reduce = ThrottledAllReduce()
        self._steps = 0
        self._can_stop_in_validation = False
        self._save_started: Optional[float] = None
        self._save_seconds = 0.0
        self._weights = TrainedWeights(self.namespace)
        self._has_warned = False
        self._remove_hooks: List[Callable[[], None]] = []

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Save the SIGTERM handler that is there before Lightning installs its own, and hook into the training loop."""
        # From here on the sudden exit of this rank is reported as a failure.
        set_training(True)
        self.stopped_by = None
        self._sigterm.prepare()
        self._reset_loop()
        if stage == "fit":
            self._remove_hooks = [
                before_validations(trainer, lambda: self._weights.record(pl_module)),
                after_batch_hooks(trainer, lambda: self._after_batch(trainer, pl_module)),
            ]

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Exit at once on SIGTERM: before the training there is nothing to save."""
        self._sigterm.install(exits_at_once=True)

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Exit at once on SIGTERM: in a test there is nothing to save."""
        self._sigterm.install(exits_at_once=True)

    def on_predict_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Exit at once on SIGTERM: in a prediction there is nothing to save."""
        self._sigterm.install(exits_at_once=True)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """From here on, stop at the end of a step on SIGTERM."""
        self._sigterm.install(exits_at_once=False)
        self._all_reduce = ThrottledAllReduce()
        self._steps = steps_taken(self.namespace, trainer)
        self._weights.reset()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Measure the checkpoint that was saved before, if any."""
        self._measure_save()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Measure the checkpoint that was saved before, if any."""
        self._measure_save()

    def _after_batch(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop if any rank must and the batch ended with an optimizer step."""
        steps = steps_taken(self.namespace, trainer)
        if steps != self._steps:
            self._steps = steps
            self._stop_if_requested(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Determine whether ranks may synchronize after each validation batch."""
        self._measure_save()
        if trainer.state.fn != "fit":
            self._sigterm.install(exits_at_once=True)
        elif not trainer.sanity_checking:
            self._can_stop_in_validation = have_equal_batches(trainer, trainer.num_val_batches)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Note the weights that are validated."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._weights.record_validated(pl_module)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Stop if any rank must."""
        if self._can_stop_in_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._stop_if_requested(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep handling SIGTERM while the model is exported."""
        self._sigterm.keep_installed(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Start to measure the save, and mark a checkpoint of weights that a validation has swapped in."""
        self._save_started = time.monotonic()
        if trainer.validating and trainer.state.fn == "fit" and not self._weights.are_in(pl_module):
            checkpoint[REPLACED_WEIGHTS_KEY] = True
            if trainer.is_global_zero and not self._has_warned:
                log.warning(
                    "A checkpoint is saved while a validation has swapped the weights. Jobs do not resume from it. "
                    "HINT: Restore the trained weights in a callback's on_validation_end, or earlier."
                )
            self._has_warned = True

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the SIGTERM handler, and report a ``SystemExit`` with a code that means failure."""
        self._sigterm.restore(trainer)
        self._reset_loop()
        report_exit(exception)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore the SIGTERM handler, and end the program if SIGTERM was received after the last step."""
        self._sigterm.restore(trainer)
        self._reset_loop()
        if self._sigterm.received:
            log.info("SIGTERM received after the last step: training is complete, exiting with code %d.", STOPPED)
            raise SystemExit(STOPPED)

    def _reset_loop(self) -> None:
        for remove in self._remove_hooks:
            remove()
        self._remove_hooks = []
        self._weights.reset()

    def _measure_save(self) -> None:
        if self._save_started is not None:
            self._save_seconds = max(self._save_seconds, time.monotonic() - self._save_started)
            self._save_started = None

    def _stop_if_requested(self, trainer: Trainer, pl_module: Any) -> None:
        is_late = self._deadline is not None and self._deadline.is_near(self._save_seconds)
        by_signal, by_deadline = self._all_reduce.any_true(trainer, [self._sigterm.received, is_late])
        if by_signal:
            self._stop(trainer, pl_module, "SIGTERM received", STOPPED)
        if by_deadline:
            self._stop(trainer, pl_module, f"sagemaker.max_runtime {self.max_runtime} is nearly reached", SUCCESS)

    def _stop(self, trainer: Trainer, pl_module: Any, reason: str, code: int) -> None:
        self.stopped_by = reason
        directory = save_directory(trainer, self.directory)
        if trainer.is_global_zero:
            log.info("%s: stopping after step %d.", reason, self._steps)
        if trainer.validating and not self._weights.restore(trainer, pl_module):
            self._exit_unsaved(trainer, code)
        if directory is not None:
            path = save_stopped(trainer, directory, self._steps)
            if trainer.is_global_zero:
                log.info("Saved %s, from which the job can resume.", path)
        _export(trainer, pl_module)
        raise SystemExit(code)

    def _exit_unsaved(self, trainer: Trainer, code: int) -> None:
        problem = "Nothing is saved or exported: this validation has swapped the weights and did not restore them"
        hint = "Restore the trained weights in on_validation_end, or earlier. The last checkpoint is usable."
        if code == SUCCESS and any(exports_of(trainer)):
            raise ExportError(f"{problem}.", hint=hint)
        if trainer.is_global_zero:
            log.warning("%s. HINT: %s", problem, hint)
        raise SystemExit(code)


def _export(trainer: Trainer, pl_module: Any) -> None:
    """Export the model. No rank exits before all have done so, because launchers then end the others."""
    error: Optional[ExportError] = None
    try:
        for callback in exports_of(trainer):
            callback.export_now(trainer, pl_module)
    except ExportError as caught:
        error = caught
    if any_true(trainer, error is not None):
        raise error or ExportError("The model was not exported.", hint="The log of global rank 0 says why.")
