"""``AutoResume``: resumes a restarted job from its newest usable checkpoint."""

import os
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set, Tuple

from lightning_sm._checkpoint.async_io import finish_saves
from lightning_sm._checkpoint.candidates import (
    FINAL_WEIGHTS,
    JOB_KEY,
    Candidate,
    JobIdentity,
    list_candidates,
    newest_of_job,
)
from lightning_sm._checkpoint.finished import (
    FINISHED_FILE,
    Finished,
    ended_with_other_weights,
    had_finished,
    limits_to_json,
    remove_finished,
    training_limits,
    weight_sums,
    write_finished,
)
from lightning_sm._checkpoint.remote import CheckpointCopies
from lightning_sm._checkpoint.resume import (
    Choice,
    ResumeMode,
    check_given,
    choose_checkpoint,
    describe_world_change,
    list_for_all,
)
from lightning_sm._checkpoint.transfers import GivenCopy
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.compat import save_checkpoint_at_end
from lightning_sm._lightning.trainer_hooks import (
    after_run,
    around_restore,
    call_skipped_train_hooks,
    should_stop_now,
    skip_training,
)
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of, is_fast_dev_run
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.callbacks.tiered_checkpoints import newer_in_memory
from lightning_sm.errors import CheckpointError, LightningSMError

__all__ = ["AutoResumeMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

_FROM_SCRATCH = (
    "Set sagemaker.resume to never, or sagemaker.checkpoint_dir to an empty directory, to train from scratch."
)
_OTHER_JOB = (
    "Give each job a checkpoint_s3_uri of its own. To continue that training, set sagemaker.resume to always; to start "
    "a new one from its weights, pass the checkpoint as ckpt_path."
)

# Checkpoint directories of fits that ended in this process, whose checkpoints belong to those fits.
_finished_directories: Set[str] = set()


class AutoResumeMixin(_Base):
    """Resume ``fit`` from the newest checkpoint that is intact, loads, and is the same file on every host.

    SageMaker restarts an interrupted job in a new container, and downloads what had been uploaded of its checkpoint
    directory before the program starts. A ``ckpt_path`` that is given to ``fit`` takes precedence. A job that had
    trained to its end trains no further and exports its model again, unless its limits, such as ``max_epochs``, have
    changed.

    A sharded checkpoint (FSDP, FSDP2, DeepSpeed) counts if the hosts together have every file of its manifest intact;
    hosts send each other what one of them lacks, at most 64 GiB in 10 minutes.

    Each checkpoint holds the identity of the job that wrote it: the job's name, and a digest of each setting that
    affects what is trained. A restarted job has the same name; if one of the two jobs has no name, the settings are
    compared. With ``auto``, a job neither resumes from checkpoints that another job left in the same directory nor
    trains beside them.

    Files in ``directory``:

    ``*.ckpt``, at any depth
      Checkpoints, files or directories (sharded). Hidden ones are ignored.

    ``finished.json``
      Written when training ends: the last checkpoint, its epoch and step, and the limits of the training. Removed when
      training continues.

    ``final.ckpt``
      The last checkpoint, written at the end of training if no callback has saved that step.

    ``final-weights.ckpt``
      The weights after ``on_train_end``, if callbacks such as weight averaging change them there. For export only.

    Environment variables:

    ``TRAINING_JOB_NAME``
      The job's name, for the default ``identity``. Set by SageMaker in each training container; absent elsewhere.

    Args:
        directory: The checkpoint directory, with the same path on every host: ``/opt/ml/checkpoints`` by default in a
            job with a ``CheckpointConfig`` (``checkpoint_s3_uri``). Or a URL, such as ``s3://bucket/prefix``, for which
            fsspec needs a package (s3fs): each host downloads the chosen checkpoint to ``TMPDIR``.
        resume: ``auto``: resume if a checkpoint is usable, else train from scratch. ``always``: the same, also from
            checkpoints of other jobs. ``never``: train from scratch. ``require``: raise an error if no checkpoint of
            any job is usable.
        identity: What identifies this job; by default, its name and hyperparameters.
        weights_only: Whether to reject checkpoints that do not load with ``torch.load(weights_only=True)``, which runs
            no code of the file. DeepSpeed's always run code. It does not apply to a ``ckpt_path`` given to ``fit``.

    Raises:
        CheckpointError: ``resume`` is none of these words, the checkpoints are another job's, none is usable although
            one is required, intact ones do not load, or the chosen one does not fit the model or the strategy.
            DeepSpeed cannot resume with another number of processes.

    Source: the SageMaker developer guide, "Use checkpoints in Amazon SageMaker AI" and "Managed Spot Training".

    Example::

        >>> from lightning_sm.callbacks import AutoResume
        >>> callback = AutoResume("checkpoints", resume="require")
        >>> callback.directory, callback.resume.value
        ('checkpoints', 'require')
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(
        self,
        directory: str,
        resume: str = "auto",
        identity: Optional[JobIdentity] = None,
        weights_only: bool = False,
    ) -> None:
        super().__init__()
        self._job = TrainingJob.resolve()
        self.directory = directory
        self.resume = ResumeMode.parse(resume)
        self.weights_only = weights_only
        self.identity = JobIdentity.of(self._job) if identity is None else identity
        #: What the current fit resumed from: the name of a checkpoint in ``directory``, or the given ``ckpt_path``.
        self.resumed_from: Optional[str] = None
        self._copies, self._given = CheckpointCopies(directory), GivenCopy()
        self._chosen: Optional[Candidate] = None
        self._limits: Dict[str, Any] = {}
        self._had_finished = self._has_final_weights = self._has_trained = False
        self._weight_sums: List[float] = []
        self._undo_skip: Callable[[], None] = lambda: None

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Install the hooks around the restore of ``fit``; ``Tuner`` and ``fast_dev_run`` do not resume."""
        self._chosen, self._had_finished, self._has_final_weights, self._has_trained = None, False, False, False
        self.resumed_from = None
        if stage == "fit" and trainer.state.fn == "fit" and not is_fast_dev_run(trainer):
            # Other callbacks change the weights in on_train_end, and a resume needs those before. Moving only this
            # callback keeps the order of the others.
            callbacks = callbacks_of(trainer)
            callbacks.remove(self)
            callbacks.insert(0, self)
            around_restore(
                trainer,
                choose=lambda path: self._choose(trainer, path),
                explain=self._explain,
                restored=lambda: self._after_restore(trainer, pl_module),
            )

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Any) -> None:
        """Add the job's identity to the checkpoint, and its limits if a callback has set ``should_stop``."""
        stopped_by = limits_to_json(self._limits) if should_stop_now(trainer) else None
        checkpoint[JOB_KEY] = {**self.identity.to_dict(), "stopped_by": stopped_by}

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save the last checkpoint if no callback has, and write ``finished.json``, before the weights are changed."""
        if is_fast_dev_run(trainer):
            return
        self._has_trained = True
        finish_saves(trainer)
        newest = self._newest(trainer)
        if broadcast(trainer, newest is None or newest.global_step < trainer.global_step):
            save_checkpoint_at_end(self.namespace, trainer, os.path.join(self.directory, "final.ckpt"))
        self._write_finished(trainer)
        self._weight_sums = weight_sums(pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Note that this process has trained with this directory."""
        if is_fast_dev_run(trainer):
            return
        _finished_directories.add(os.path.realpath(self.directory))
        if self._had_finished:
            self._undo_skip()

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Remove the local copies of what is remote."""
        self._copies.close()
        self._given.close()

    def _after_run(self, trainer: Trainer, pl_module: Any) -> None:
        """Complete ``finished.json`` after all ``on_train_end`` hooks, and save the weights if they changed them."""
        if not self._has_trained:
            if self._chosen is None or trainer.limit_train_batches == 0:
                return
            if self._has_final_weights:
                for export in exports_of(trainer):
                    export.on_train_end(trainer, pl_module)
                return
            call_skipped_train_hooks(trainer)
        has_changed = any_true(trainer, weight_sums(pl_module) != self._weight_sums)
        if has_changed:
            save_checkpoint_at_end(self.namespace, trainer, os.path.join(self.directory, FINAL_WEIGHTS))
        self._write_finished(trainer, is_over=True, weights=FINAL_WEIGHTS if has_changed else None)

    def _newest(self, trainer: Trainer) -> Optional[Candidate]:
        self._copies.refresh(trainer)
        return newest_of_job(list_for_all(trainer, self._copies.path), self.identity)

    def _write_finished(self, trainer: Trainer, **fields: Any) -> None:
        newest = self._newest(trainer)
        if newest is None or newest.global_step < trainer.global_step:
            return
        progress = newest.name, newest.epoch, newest.global_step
        try:
            finished = Finished(*progress, self._limits, self.identity.name, **fields)
            write_finished(self._copies.path, finished)
            self._copies.publish(FINISHED_FILE)
        except (CheckpointError, OSError) as error:
            # The model is still exported, and a restart finds that no steps are left.
            log.warning("finished.json could not be written to %s (%s)", self.directory, error)

    def _choose(self, trainer: Trainer, path: Any) -> Optional[Tuple[str, Optional[bool]]]:
        """Return the path of the checkpoint to restore, and whether it loads with ``weights_only``."""
        self._limits = training_limits(self.namespace, trainer)
        with failure_reported(self._job):
            self._copies.refresh(trainer)
            copy = self._given.fetch(trainer, path)
            if path:
                check_given(trainer, path, copy)
            choice = Choice() if path or not self._may_resume(trainer) else self._choose_for_all(trainer)
            self._chosen = choice.candidate
            ended = (False, False)
            if self._chosen is not None and trainer.is_global_zero:
                ended = had_finished(self._copies.path, self._chosen, self._limits)
            self._had_finished, self._has_final_weights = broadcast(trainer, ended)
            if self._had_finished and self.resume is ResumeMode.AUTO and self._chosen and self._chosen.job is None:
                problem = f"The training in {self.directory} had finished, and {self._chosen} does not name its job."
                raise CheckpointError(problem, hint=_OTHER_JOB)
        self.resumed_from = str(path) if path else None if self._chosen is None else self._chosen.name
        if path and trainer.is_global_zero:
            log.info("Resuming from %s, given as ckpt_path; checkpoints in %s are ignored", path, self.directory)
        if trainer.local_rank == 0 and not self._had_finished:
            remove_finished(self._copies.path)
            if trainer.is_global_zero:
                self._copies.withdraw(FINISHED_FILE)
        if choice.candidate is None:
            return None if copy is None else (copy, None)
        return os.path.join(self._copies.path, choice.candidate.name), choice.weights_only_error is None

    def _may_resume(self, trainer: Trainer) -> bool:
        if os.path.realpath(self.directory) in _finished_directories:
            reason = "an earlier fit of this process ended there, and checkpoints do not hold which fit wrote them"
            hint = "Give each fit a checkpoint directory of its own, so that all of them can be resumed."
        elif self.resume is ResumeMode.NEVER:
            reason, hint = "sagemaker.resume is never", "With auto, a restart would resume from the newest."
        else:
            return True
        if trainer.is_global_zero and list_candidates(self._copies.path):
            log.warning("The checkpoints in %s are not used: %s. HINT: %s", self.directory, reason, hint)
        return False

    def _choose_for_all(self, trainer: Trainer) -> Choice:
        choice = choose_checkpoint(
            trainer,
            self._copies.path,
            self.identity,
            allow_other_jobs=self.resume in (ResumeMode.ALWAYS, ResumeMode.REQUIRE),
            weights_only=self.weights_only,
            exclude=() if ended_with_other_weights(self._copies.path, self._limits) else (FINAL_WEIGHTS,),
            fetch=self._copies.fetch,
        )
        choice = newer_in_memory(trainer, choice, self.identity, weights_only=self.weights_only)
        if trainer.is_global_zero:
            for rejected in choice.rejected:
                log.warning("%s", rejected)
        if choice.other_job is not None:
            raise CheckpointError(f"In {self.directory}, {choice.other_job}.", hint=_OTHER_JOB)
        if choice.candidate is None:
            self._check_may_start(choice)
            if choice.rejected and trainer.is_global_zero:
                log.warning("No checkpoint in %s can be used: training starts from scratch", self.directory)
        elif trainer.is_global_zero:
            log.info("Resuming from %s in %s", choice.candidate, self.directory)
            self._log_owner(choice.candidate)
            change = describe_world_change(choice.candidate, trainer.world_size)
            if change is not None:
                log.warning("%s", change)
        return choice

    def _log_owner(self, candidate: Candidate) -> None:
        if candidate.job is None:
            log.warning("%s does not name the job that wrote it; it is assumed to be this job", candidate.name)
        elif not candidate.job.is_same_job(self.identity):
            text = "%s was written by %s, and this is %s. It is used because sagemaker.resume is %s."
            log.warning(text, candidate.name, candidate.job, self.identity, self.resume.value)

    def _check_may_start(self, choice: Choice) -> None:
        reasons = textwrap.shorten("; ".join(map(str, choice.rejected)) or "there is none", 600, placeholder=" …")
        if choice.unloadable:
            # Training from scratch would discard the trained steps, because of a class that was renamed.
            problem = f"The checkpoints in {self.directory} are intact, but this program cannot load them: {reasons}."
            trust = "Set sagemaker.resume_weights_only to false if you trust them."
            hint = trust if self.weights_only else "Restore the classes that they name."
            raise CheckpointError(problem, hint=f"{hint} {_FROM_SCRATCH}")
        if self.resume is ResumeMode.REQUIRE:
            problem = f"sagemaker.resume is require, and no checkpoint in {self.directory} can be used: {reasons}."
            raise CheckpointError(problem, hint="Set it to auto, or check the checkpoint's S3 location.")

    def _after_restore(self, trainer: Trainer, pl_module: Any) -> None:
        """Skip the training of a job that had finished."""
        self._copies.release()
        self._given.close()
        after_run(trainer, lambda: self._after_run(trainer, pl_module))
        if not self._had_finished:
            return
        if trainer.is_global_zero:
            own = self._chosen is None or self._chosen.job is None or self._chosen.job.is_same_job(self.identity)
            log.info("%s job had finished with %s; no training is left", "This" if own else "That", self._chosen)
        self._undo_skip = skip_training(trainer)

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, LightningSMError):
            return error
        reason = textwrap.shorten(str(error), 600, placeholder=" …")
        if isinstance(error, KeyError) and " " not in reason:
            reason = f"it has no entry {reason}"
        problem = f"{self._chosen or self.resumed_from} does not fit this model or trainer: {reason}"
        better = CheckpointError(problem, hint=f"Undo what has changed since it was saved. {_FROM_SCRATCH}")
        with suppress(CheckpointError), failure_reported(self._job):
            raise better
        return better
