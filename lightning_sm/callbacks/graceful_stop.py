"""``GracefulStop``: ends a fit in time, with a save and an exported model."""

from functools import partial
from typing import Any, List, Optional, Union

from lightning_sm._failure import forget_exit, report_exit, set_training
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import ThrottledAllReduce, any_true
from lightning_sm._lightning.launchers import Stopped
from lightning_sm._lightning.legacy import connector_of
from lightning_sm._lightning.replaced_method import UndoList, listen
from lightning_sm._lightning.restart import SavePoint
from lightning_sm._lightning.trainer import Callback, Trainer
from lightning_sm._logging import log
from lightning_sm._resume.model_state import are_equal, weight_sums
from lightning_sm._resume.points import ask_at_epoch_start, ask_at_save_points, stop_asking
from lightning_sm._sagemaker.exit_codes import STOPPED, SUCCESS
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._shutdown import Deadline, SigtermHandler, have_equal_batches, read_deadline
from lightning_sm.callbacks.auto_resume import resume_of
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.errors import ExportError

__all__ = ["GracefulStopMixin"]


class GracefulStopMixin(Callback):
    """Stop on SIGTERM or before a time limit: save, export the model, end the program.

    SageMaker sends SIGTERM when a job is stopped, when its spot instances are reclaimed and when its time limit is
    exceeded, and SIGKILL 120 seconds later. The training toolkit does not forward SIGTERM to a script: start the
    container with the entry point that ``lightning-sm entrypoint`` prints.

    All ranks stop after the same optimizer step, or between two validation batches. No validation and no hook of an
    epoch's end runs, because the epoch has not ended. The program then ends with exit code 143 after SIGTERM and 0 at
    the time limit; a script's lines after ``fit`` do not run, and log, report and ``model.json`` say so.

    ``AutoResume`` saves at the stop. In a validation, and within an epoch before Lightning 2.5 or of a model whose
    steps Lightning does not count, nothing is saved: a restart continues from the save before it. If the validation has
    swapped the weights, as ``WeightAveraging`` does, nothing is exported either. If ranks have unequal numbers of
    validation batches, the fit stops after the validation.

    Files that are read:

    ``/proc/1/stat``, ``/proc/uptime``
      With ``max_runtime`` only: when the container started. Where they are absent, the time counts from now.

    Args:
        max_runtime: How long the job may run, such as ``23h30m`` or a number of seconds, from the start of the
            container, or of this process outside of one. The fit stops earlier by 5 %, at most 2 minutes, plus twice
            the time of the slowest save.

    Raises:
        OptionError: ``max_runtime`` is not a duration.
        ExportError: The model could not be exported, after the save; or the time limit was reached in a validation that
            had swapped the weights.

    Sources: StopTrainingJob and managed spot training in the SageMaker Developer Guide
    (https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_StopTrainingJob.html).

    Example::

        >>> from lightning_sm.callbacks import GracefulStop
        >>> GracefulStop(max_runtime="23h30m").max_runtime
        '23h30m'
        >>> trainer = Trainer(callbacks=[GracefulStop(max_runtime="23h30m")])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self, max_runtime: Union[str, float, None] = None) -> None:
        super().__init__()
        self.max_runtime = max_runtime
        #: Why the fit was stopped; ``None`` unless it was.
        self.stopped_by: Optional[str] = None
        self._deadline: Optional[Deadline] = None
        if max_runtime is not None:
            self._deadline = read_deadline(max_runtime, TrainingJob.resolve())
        self._sigterm = SigtermHandler()
        self._all_reduce = ThrottledAllReduce()
        self._can_stop_in_validation = False
        # The sums of the weights before the last validation, and what lets Lightning call no more for them.
        self._trained_sums: List[Any] = []
        self._undo = UndoList()

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Exit at once on SIGTERM: before the training, in a test and in a prediction there is nothing to save."""
        # From here on the sudden exit of this rank is reported as a failure.
        set_training(True)
        forget_exit()
        install = partial(self._sigterm.install, exits_at_once=True)
        install()
        # Lightning's handler replaces ours, long before the first batch.
        self._undo.append(listen(connector_of(trainer, "signal"), "register_signal_handlers", install))
        self.stopped_by = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """From here on, stop at the end of a step."""
        self._sigterm.install(exits_at_once=False)
        self._all_reduce = ThrottledAllReduce()
        stop = partial(self._stop, trainer, pl_module)
        ask_at_save_points(self.namespace, trainer, self, lambda point: self._must_stop(trainer), stop)
        # Before any hook of the validation, by which callbacks such as WeightAveraging swap the weights.
        loop: Any = trainer.fit_loop.epoch_loop.val_loop
        self._undo.append(listen(loop, "run", partial(self._note_weights, pl_module), first=True))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Stop before the epoch."""
        ask_at_epoch_start(trainer, self)

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Determine whether ranks may synchronize after each validation batch."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._can_stop_in_validation = have_equal_batches(trainer, trainer.num_val_batches)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any, **__: Any) -> None:
        """Stop if any rank must."""
        if not self._can_stop_in_validation or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        if any(self._all_reduce.any_true(trainer, [lambda: self._must_stop(trainer)])):
            self._stop(trainer, pl_module, None)

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep handling SIGTERM while the model is exported."""
        self._end(trainer)
        self._sigterm.keep_installed(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Restore the SIGTERM handler, and report a ``SystemExit`` with a code that means failure."""
        self._end(trainer)
        self._sigterm.restore(trainer)
        report_exit(exception)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore the SIGTERM handler, and end the program if SIGTERM was received after the last step."""
        self._end(trainer)
        self._sigterm.restore(trainer)
        if self._sigterm.received:
            log.info("SIGTERM received after the last step: training is complete, exiting with code %d.", STOPPED)
            raise SystemExit(STOPPED)

    def _must_stop(self, trainer: Trainer) -> bool:
        if self._sigterm.received or self._deadline is None:
            return self._sigterm.received
        resume = resume_of(trainer)
        return self._deadline.is_near(0.0 if resume is None else resume.slowest_save)

    def _note_weights(self, pl_module: Any) -> None:
        self._trained_sums = weight_sums(pl_module.parameters())

    def _end(self, trainer: Trainer) -> None:
        stop_asking(trainer)
        self._undo.run()

    def _stop(self, trainer: Trainer, pl_module: Any, point: Optional[SavePoint]) -> None:
        """Save at a point, or elsewhere go back to the save before it; export, and end the program."""
        text, exit_code = f"sagemaker.max_runtime {self.max_runtime} is nearly reached", SUCCESS
        if any_true(trainer, self._sigterm.received):
            text, exit_code = "SIGTERM received", STOPPED
        self.stopped_by = text
        if trainer.is_global_zero:
            log.info("%s: stopping after step %d, before the program's end.", text, trainer.global_step)
        resume = resume_of(trainer)
        try:
            if resume is not None:
                resume.finish_saves()
        except Exception as error:  # of an earlier save; the next one may succeed
            log.error("%s", error)
        if point is not None and resume is not None and resume.saver is not None:
            resume.saver.save(trainer, point)
        elif trainer.is_global_zero:
            log.info("Nothing is saved at this point: a restart continues from the last save, if there is one.")
        has_swapped = trainer.validating and not are_equal(self._trained_sums, weight_sums(pl_module.parameters()))
        if any_true(trainer, has_swapped):
            problem = "Nothing is exported: this validation has swapped the weights"
            hint = "Checkpoints are kept. Give the job more time, or sagemaker.max_runtime another value."
            if exit_code == SUCCESS and any(exports_of(trainer)):
                raise ExportError(f"{problem}.", hint=hint)
            if trainer.is_global_zero:
                log.warning("%s. HINT: %s", problem, hint)
        else:
            _export(trainer, pl_module, text)
        raise Stopped(exit_code)


def _export(trainer: Trainer, pl_module: Any, stopped_by: str) -> None:
    """Export the model. No rank exits before all have done so, because launchers then end the others."""
    error: Optional[ExportError] = None
    try:
        for callback in exports_of(trainer):
            callback.export_now(trainer, pl_module, stopped_by=stopped_by)
    except ExportError as caught:
        error = caught
    if any_true(trainer, error is not None):
        raise error or ExportError("The model was not exported.", hint="The log of global rank 0 says why.")
