"""``GracefulStop``: ends a fit in time, with a checkpoint and an exported model."""

import time
from typing import Any, Optional, Sequence

from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import STOPPED, SUCCESS
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._shutdown import Deadline, SigtermHandler, read_deadline
from lightning_sm.callbacks.step_stop import StepStopMixin, StopReason

__all__ = ["GracefulStopMixin"]


class GracefulStopMixin(StepStopMixin):
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

    def __init__(self, directory: Optional[str] = None, max_runtime: Optional[str] = None) -> None:
        super().__init__(directory)
        self.max_runtime = max_runtime
        self._deadline: Optional[Deadline] = None
        if max_runtime is not None:
            self._deadline = read_deadline(max_runtime, TrainingJob.resolve())
        self._sigterm = SigtermHandler()
        self._save_started: Optional[float] = None
        self._save_seconds = 0.0

    def _read_flags(self, trainer: Trainer) -> Sequence[bool]:
        is_late = self._deadline is not None and self._deadline.is_near(self._save_seconds)
        return self._sigterm.received, is_late

    def _reason(self, index: int) -> StopReason:
        by_deadline = StopReason(f"sagemaker.max_runtime {self.max_runtime} is nearly reached", SUCCESS)
        return (StopReason("SIGTERM received", STOPPED), by_deadline)[index]

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Save the SIGTERM handler that is there before Lightning installs its own, and hook into the training loop."""
        self._sigterm.prepare()
        super().setup(trainer, pl_module, stage)

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
        super().on_train_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Measure the checkpoint that was saved before, if any."""
        self._measure_save()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Measure the checkpoint that was saved before, if any."""
        self._measure_save()

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Determine whether ranks may synchronize after each validation batch."""
        self._measure_save()
        if trainer.state.fn != "fit":
            self._sigterm.install(exits_at_once=True)
        super().on_validation_start(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep handling SIGTERM while the model is exported."""
        self._sigterm.keep_installed(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Start to measure the save, and mark a checkpoint of weights that a validation has swapped in."""
        self._save_started = time.monotonic()
        super().on_save_checkpoint(trainer, pl_module, checkpoint)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the SIGTERM handler, and report a ``SystemExit`` with a code that means failure."""
        self._sigterm.restore(trainer)
        super().on_exception(trainer, pl_module, exception)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore the SIGTERM handler, and end the program if SIGTERM was received after the last step."""
        self._sigterm.restore(trainer)
        super().teardown(trainer, pl_module, stage)
        if self._sigterm.received:
            log.info("SIGTERM received after the last step: training is complete, exiting with code %d.", STOPPED)
            raise SystemExit(STOPPED)

    def _measure_save(self) -> None:
        if self._save_started is not None:
            self._save_seconds = max(self._save_seconds, time.monotonic() - self._save_started)
            self._save_started = None
