"""``GracefulStop``: leaves a fit in time, with a checkpoint and an exported model."""

import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from lightning_sm._checkpoint.candidates import REPLACED_WEIGHTS
from lightning_sm._checkpoint.trained_weights import TrainedWeights
from lightning_sm._failure import report_exit, set_training
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce, any_true
from lightning_sm._lightning.compat import steps_taken
from lightning_sm._lightning.train_loop_hooks import after_batch_hooks, before_validations
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import STOPPED
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._shutdown import (
    Deadline,
    StopSignal,
    may_leave_anywhere,
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
    """Stop when SIGTERM arrives or the job's time is over: save a checkpoint, export the model, end the program.

    SageMaker sends SIGTERM when a job is stopped, when its spot instances are taken, and when its time limit is over,
    and kills the container 120 seconds later. The signal does not reach a script unless the container's entry point
    forwards it: ``lightning-sm entrypoint`` prints one that does. All ranks stop after the same optimizer step, so no
    accumulated gradient is lost, or between two validation batches. Nothing else of the fit runs, no validation and no
    hook of an epoch's end, because the epoch is not over. The program then ends with 143 after SIGTERM and with 0 when
    its time was over; a script's lines after ``fit`` do not run.

    Where a validation has put other weights into the model, as ``WeightAveraging`` does, the callbacks and the model
    that act at its start are told of its end first, which brings the trained weights back. Where it does not, nothing
    is saved or exported, and the last checkpoint stays. Where ranks validate unequal numbers of batches, the validation
    is not left early: the fit stops after the next step, if the platform does not kill it before.

    Args:
        directory: Where ``stopped-step=N.ckpt`` is saved. By default, the directory of the first ``ModelCheckpoint``;
            where there is none, no checkpoint is saved.
        max_runtime: How long the job may run, such as ``23h30m``, from the start of the container, or of this process
            outside of one. It stops 5 % before that, at most 2 minutes, and earlier where checkpoints take long.

    Raises:
        JobConfigError: ``max_runtime`` is no duration.
        ExportError: The model could not be exported; the checkpoint is there. Or the time was over within a validation
            that put other weights into the model and did not put the trained ones back.
    """

    namespace: Namespace

    def __init__(self, directory: Optional[str] = None, max_runtime: Optional[str] = None) -> None:
        super().__init__()
        self.directory = directory
        self.max_runtime = max_runtime
        self._deadline: Optional[Deadline] = None
        if max_runtime is not None:
            self._deadline = read_deadline(max_runtime, TrainingJob.resolve())
        self._signal = StopSignal()
        self._check = ThrottledAllReduce()
        self._steps = 0
        self._may_leave_validation = False
        self._save_began: Optional[float] = None
        self._save_seconds = 0.0
        self._weights = TrainedWeights(self.namespace)
        self._has_warned = False
        self._undo: List[Callable[[], None]] = []

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Look whose handler of SIGTERM is there before Lightning adds its own, and tell that this rank has joined."""
        # A rank that is killed from here on is missed at once.
        set_training(True)
        self._signal.prepare()
        self._release_loop()
        if stage == "fit":
            self._undo = [
                before_validations(trainer, lambda: self._weights.note(pl_module)),
                after_batch_hooks(trainer, lambda: self._after_batch(trainer, pl_module)),
            ]

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Until the training starts there is nothing to save."""
        self._signal.take(at_once=True)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        """In a test there is nothing to save."""
        self._signal.take(at_once=True)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        """In a prediction there is nothing to save."""
        self._signal.take(at_once=True)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """From here on a signal waits for the end of a step."""
        self._signal.take(at_once=False)
        self._check = ThrottledAllReduce()
        self._steps = steps_taken(self.namespace, trainer)
        self._weights.forget()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Note how long a checkpoint took that was saved before."""
        self._note_saved()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Note how long a checkpoint took that was saved before."""
        self._note_saved()

    def _after_batch(self, trainer: Any, pl_module: Any) -> None:
        """Stop here if any rank has a reason to, and gradients have just been used up."""
        steps = steps_taken(self.namespace, trainer)
        if steps != self._steps:
            self._steps = steps
            self._stop_if_asked(trainer, pl_module)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Find out whether all ranks can look for a reason at each validation batch."""
        self._note_saved()
        if trainer.state.fn != "fit":
            self._signal.take(at_once=True)
        elif not trainer.sanity_checking:
            self._may_leave_validation = may_leave_anywhere(trainer, trainer.num_val_batches)

    def on_validation_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Find out whether the validation has put other weights into the model."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._weights.note_validated(pl_module)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Stop here if any rank has a reason to; the weights are those of the last step."""
        if self._may_leave_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._stop_if_asked(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Let a signal wait until the model has been exported, too."""
        self._signal.outlive(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Note when a checkpoint begins, and mark one of other weights than the trained ones."""
        self._save_began = time.monotonic()
        if trainer.validating and trainer.state.fn == "fit" and not self._weights.are_in(pl_module):
            checkpoint[REPLACED_WEIGHTS] = True
            if trainer.is_global_zero and not self._has_warned:
                log.warning(
                    "A checkpoint is saved while a validation has put other weights into the model. It is no checkpoint"
                    " to resume from. HINT: Put the trained weights back in a callback's on_validation_end, or earlier."
                )
            self._has_warned = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Put back the handler of SIGTERM that was there, and let no rank leave with an error that nobody hears of."""
        self._signal.release(trainer)
        self._release_loop()
        report_exit(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Put back the handler of SIGTERM that was there; a signal that came after the last step ends the program."""
        self._signal.release(trainer)
        self._release_loop()
        if self._signal.received:
            log.info("SIGTERM arrived after the last step. The training is complete, and the program ends here.")
            raise SystemExit(STOPPED)

    def _release_loop(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []
        self._weights.forget()

    def _note_saved(self) -> None:
        if self._save_began is not None:
            self._save_seconds = max(self._save_seconds, time.monotonic() - self._save_began)
            self._save_began = None

    def _stop_if_asked(self, trainer: Any, pl_module: Any) -> None:
        is_late = self._deadline is not None and self._deadline.is_near(self._save_seconds)
        by_signal, by_deadline = self._check.any_true(trainer, [self._signal.received, is_late])
        if by_signal:
            self._stop(trainer, pl_module, "SIGTERM arrived", STOPPED)
        if by_deadline:
            self._stop(trainer, pl_module, f"sagemaker.max_runtime, {self.max_runtime}, is nearly over", 0)

    def _stop(self, trainer: Any, pl_module: Any, reason: str, code: int) -> None:
        directory = save_directory(trainer, self.directory)
        if trainer.is_global_zero:
            log.info("%s: stopping after step %d.", reason, self._steps)
        if trainer.validating and not self._weights.put_back(trainer, pl_module):
            self._leave_unsaved(trainer, code)
        if directory is not None:
            path = save_stopped(trainer, directory, self._steps)
            if trainer.is_global_zero:
                log.info("Saved %s, from which the job can go on.", path)
        _export(trainer, pl_module)
        raise SystemExit(code)

    def _leave_unsaved(self, trainer: Any, code: int) -> None:
        problem = "Nothing is saved or exported: this validation put other weights into the model and they stayed"
        hint = "Put the trained weights back in on_validation_end, or earlier. The last checkpoint is whole."
        if code == 0 and any(exports_of(trainer)):
            raise ExportError(f"{problem}.", hint=hint)
        if trainer.is_global_zero:
            log.warning("%s. HINT: %s", problem, hint)
        raise SystemExit(code)


def _export(trainer: Any, pl_module: Any) -> None:
    """Export the model; no rank leaves before that is done, because launchers then end the others."""
    error: Optional[ExportError] = None
    try:
        for callback in exports_of(trainer):
            callback.export_now(trainer, pl_module)
    except ExportError as caught:
        error = caught
    if any_true(trainer, error is not None):
        raise error or ExportError("The model was not exported.", hint="The log of global rank 0 says why.")
