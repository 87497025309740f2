"""What the callbacks have in common that end a fit between two optimizer steps, with a checkpoint."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

from lightning_sm._checkpoint.candidates import REPLACED_WEIGHTS_KEY
from lightning_sm._checkpoint.finished import TrainedWeights
from lightning_sm._failure import report_exit, set_training
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce, any_true
from lightning_sm._lightning.compat import steps_taken
from lightning_sm._lightning.train_loop_hooks import after_batch_hooks, before_validations
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import SUCCESS
from lightning_sm._shutdown import have_equal_batches, save_directory, save_stopped
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.errors import ExportError

__all__ = ["StepStopMixin", "StopReason"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


@dataclass(frozen=True)
class StopReason:
    """Why a fit is stopped, and how the program then ends.

    Args:
        text: For the log and the report.
        exit_code: The exit code of the program.
        exports: Whether the model is exported, as for a job that is not started again.
    """

    text: str
    exit_code: int
    exports: bool = True


class StepStopMixin(_Base):
    """Stop ``fit`` on all ranks after the same optimizer step, or between two validation batches.

    A subclass says which reasons to stop this process knows. All ranks agree at steps that the clock of global rank 0
    determines. No validation and no hook of an epoch's end runs, because the epoch has not ended.

    Args:
        directory: Where ``stopped-step=N.ckpt`` is saved. By default, the directory of the first ``ModelCheckpoint``;
            without one, no checkpoint is saved.
    """

    namespace: Namespace

    def __init__(self, directory: Optional[str] = None) -> None:
        super().__init__()
        self.directory = directory
        #: Why the fit was stopped; ``None`` unless it was.
        self.stopped_by: Optional[str] = None
        self._all_reduce = ThrottledAllReduce()
        self._steps = 0
        self._can_stop_in_validation = False
        self._weights = TrainedWeights(self.namespace)
        self._has_warned = False
        self._remove_hooks: List[Callable[[], None]] = []

    def _read_flags(self, trainer: Trainer) -> Sequence[bool]:
        """Whether this process has each reason to stop. Called on all ranks at the same steps."""
        raise NotImplementedError

    def _reason(self, index: int) -> StopReason:
        """The reason that a flag stands for."""
        raise NotImplementedError

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Hook into the training loop."""
        # From here on the sudden exit of this rank is reported as a failure.
        set_training(True)
        self.stopped_by = None
        self._reset_loop()
        if stage == "fit":
            self._remove_hooks = [
                before_validations(trainer, lambda: self._weights.record(pl_module)),
                after_batch_hooks(trainer, lambda: self._after_batch(trainer, pl_module)),
            ]

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """From here on, stop at the end of a step."""
        self._all_reduce = ThrottledAllReduce()
        self._steps = steps_taken(self.namespace, trainer)
        self._weights.reset()

    def _after_batch(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop if any rank must and the batch ended with an optimizer step."""
        steps = steps_taken(self.namespace, trainer)
        if steps != self._steps:
            self._steps = steps
            self._stop_if_requested(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Determine whether ranks may synchronize after each validation batch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._can_stop_in_validation = have_equal_batches(trainer, trainer.num_val_batches)

    def on_validation_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Note the weights that are validated."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._weights.record_validated(pl_module)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Stop if any rank must."""
        if self._can_stop_in_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._stop_if_requested(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Mark a checkpoint of weights that a validation has swapped in."""
        if trainer.validating and trainer.state.fn == "fit" and not self._weights.are_in(pl_module):
            if trainer.is_global_zero and not self._has_warned and REPLACED_WEIGHTS_KEY not in checkpoint:
                log.warning(
                    "A checkpoint is saved while a validation has swapped the weights. Jobs do not resume from it. "
                    "HINT: Restore the trained weights in a callback's on_validation_end, or earlier."
                )
            checkpoint[REPLACED_WEIGHTS_KEY] = True
            self._has_warned = True

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Report a ``SystemExit`` with a code that means failure."""
        self._reset_loop()
        report_exit(exception)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Remove the hooks from the training loop."""
        self._reset_loop()

    def _reset_loop(self) -> None:
        for remove in self._remove_hooks:
            remove()
        self._remove_hooks = []
        self._weights.reset()

    def _stop_if_requested(self, trainer: Trainer, pl_module: Any) -> None:
        for index, is_requested in enumerate(self._all_reduce.any_true(trainer, self._read_flags(trainer))):
            if is_requested:
                self._stop(trainer, pl_module, self._reason(index))

    def _stop(self, trainer: Trainer, pl_module: Any, reason: StopReason) -> None:
        self.stopped_by = reason.text
        directory = save_directory(trainer, self.directory)
        if trainer.is_global_zero:
            log.info("%s: stopping after step %d.", reason.text, self._steps)
        if trainer.validating and not self._weights.restore(trainer, pl_module):
            _exit_unsaved(trainer, reason)
        if directory is not None:
            path = save_stopped(trainer, directory, self._steps)
            if trainer.is_global_zero:
                log.info("Saved %s, from which the job can resume.", path)
        elif trainer.is_global_zero and not reason.exports:
            log.warning("No checkpoint is saved: neither this callback nor a ModelCheckpoint names a directory.")
        if reason.exports:
            _export(trainer, pl_module)
        raise SystemExit(reason.exit_code)


def _exit_unsaved(trainer: Trainer, reason: StopReason) -> None:
    problem = "Nothing is saved or exported: this validation has swapped the weights and did not restore them"
    hint = "Restore the trained weights in on_validation_end, or earlier. The last checkpoint is usable."
    if reason.exit_code == SUCCESS and reason.exports and any(exports_of(trainer)):
        raise ExportError(f"{problem}.", hint=hint)
    if trainer.is_global_zero:
        log.warning("%s. HINT: %s", problem, hint)
    raise SystemExit(reason.exit_code)


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
