"""``AutoResume``: lets a restarted job go on where it was interrupted."""

import os
import textwrap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Set, Tuple

from lightning_sm._checkpoint.async_io import finish_saves
from lightning_sm._checkpoint.candidates import FINAL_WEIGHTS, STAMP, Candidate, list_candidates
from lightning_sm._checkpoint.finished import (
    Finished,
    plain,
    read_finished,
    remove_finished,
    training_limits,
    weight_sums,
    write_finished,
)
from lightning_sm._checkpoint.identity import JobIdentity
from lightning_sm._checkpoint.resume import Choice, choose
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.compat import save_checkpoint_at_end
from lightning_sm._lightning.trainer_hooks import after_run, around_restore, call_skipped_train_hooks, should_stop_now
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.callbacks.model_export import exports_of
from lightning_sm.errors import CheckpointError, LightningSMError

__all__ = ["AutoResumeMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


_MODES = ("auto", "always", "never", "require")
_AFRESH = "Set sagemaker.resume to never, or sagemaker.checkpoint_dir to an empty directory, to train from scratch."

_OTHER_JOB = (
    "Give each job a checkpoint_s3_uri of its own. To go on with that training, set sagemaker.resume to always; to "
    "start a new one from its weights, name the checkpoint as ckpt_path."
)

# Directories in which a training of this process has come to its end: what is there belongs to that one.
_ended_here: Set[str] = set()


class AutoResumeMixin(_Base):
    """Go on from the newest checkpoint of an interrupted job that is whole, loads and is the same on every host.

    SageMaker restarts an interrupted job in a fresh container, whose checkpoint directory holds what had been uploaded.
    A path that is given to ``fit`` wins. A job that had trained to its end (``finished.json`` in the directory says so)
    trains no further and exports its model again, unless its limits have changed since.

    Each checkpoint says which job wrote it: the job's name, and a digest of each setting that says what is trained. A
    restart has the same name. Where one of the two jobs has none, the settings decide. With ``auto``, a job does not go
    on from checkpoints that another job has left in the same directory, nor train beside them.

    Args:
        directory: The job's checkpoint directory, which has the same path on every host.
        resume: ``auto`` to train from scratch where no checkpoint can be used, ``always`` to do so and to take
            checkpoints of other jobs, too, ``never`` to train from scratch always, ``require`` to stop where there is
            none, of whichever job.
        identity: What tells this job from others; by default, the job's name and hyperparameters.
        weights_only: Whether no code of a checkpoint may run when it is loaded. One that loads only with
            ``weights_only=False`` is then not taken. A path that is given to ``fit`` is the caller's business.

    Raises:
        CheckpointError: ``resume`` is none of these, the checkpoints are another job's, there is no checkpoint to go on
            from although one is required, those that are whole do not load, or the chosen one does not fit the model.
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
        if resume not in _MODES:
            raise CheckpointError(f"sagemaker.resume is {resume!r}.", hint=f"Choose one of {', '.join(_MODES)}.")
        self._job = TrainingJob.resolve()
        self.directory = directory
        self.resume = resume
        self.weights_only = weights_only
        self.identity = JobIdentity.of(self._job) if identity is None else identity
        self._chosen: Optional[Candidate] = None
        self._limits: Dict[str, Any] = {}
        self._had_finished = False
        self._was_over = False
        self._is_over = False
        self._weights: List[float] = []
        self._least: Tuple[Any, Any] = (None, None)

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Take part in what ``fit`` restores; a search for a learning rate or batch size restores nothing."""
        self._chosen, self._had_finished, self._was_over, self._is_over = None, False, False, False
        if stage == "fit" and trainer.state.fn == "fit" and not trainer.fast_dev_run:
            # Other callbacks change the weights in on_train_end, from which no training can go on. To move what is
            # being called to the front leaves the order in which the others are called as it is.
            trainer.callbacks.remove(self)
            trainer.callbacks.insert(0, self)
            around_restore(
                trainer,
                choose=lambda path: self._choose(trainer, path),
                explain=self._explain,
                restored=lambda: self._restored(trainer, pl_module),
            )

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Write into each checkpoint which job it is of, and whether a callback has asked the training to stop."""
        stopped_by = plain(self._limits) if should_stop_now(trainer) else None
        checkpoint[STAMP] = {**self.identity.as_plain(), "stopped_by": stopped_by}

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the end of the training if no callback has done so, and note it before the model gets other weights."""
        if trainer.fast_dev_run:
            return
        self._is_over = True
        finish_saves(trainer)
        newest = self._newest() if trainer.is_global_zero else None
        if broadcast(trainer, newest is None or newest.global_step < trainer.global_step):
            save_checkpoint_at_end(self.namespace, trainer, os.path.join(self.directory, "final.ckpt"))
        self._note_end(trainer)
        self._weights = weight_sums(pl_module)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember that this program has trained with this directory."""
        if trainer.fast_dev_run:
            return
        _ended_here.add(os.path.realpath(self.directory))
        if self._had_finished:
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = self._least

    def _after_run(self, trainer: Any, pl_module: Any) -> None:
        """Note that the training is over, with the weights that callbacks left at its end."""
        if not self._is_over:
            if self._chosen is None or trainer.limit_train_batches == 0:
                return
            if self._was_over:
                for export in exports_of(trainer):
                    export.on_train_end(trainer, pl_module)
                return
            call_skipped_train_hooks(trainer)
        has_changed = any_true(trainer, weight_sums(pl_module) != self._weights)
        if has_changed:
            save_checkpoint_at_end(self.namespace, trainer, os.path.join(self.directory, FINAL_WEIGHTS))
        self._note_end(trainer, is_over=True, weights=FINAL_WEIGHTS if has_changed else None)

    def _note_end(self, trainer: Any, **how: Any) -> None:
        newest = self._newest() if trainer.is_global_zero else None
        if newest is None or newest.global_step < trainer.global_step:
            return
        name, limits = self.identity.name, self._limits
        try:
            write_finished(self.directory, Finished(newest.name, newest.epoch, newest.global_step, limits, name, **how))
        except OSError as error:
            # The model is still to be exported, and a restart finds nothing left to train by itself.
            log.warning("finished.json could not be written to %s (%s)", self.directory, error)

    def _choose(self, trainer: Any, path: Any) -> Optional[Tuple[str, bool]]:
        """Return the checkpoint to restore and whether it loads with ``weights_only``."""
        self._limits = training_limits(self.namespace, trainer)
        with failure_reported(self._job):
            choice = Choice() if path or not self._may_resume(trainer) else self._agree(trainer)
            self._chosen = choice.candidate
            found = self._had_ended() if trainer.is_global_zero else (False, False)
            self._had_finished, self._was_over = broadcast(trainer, found)
            self._refuse_unsigned()
        if path and trainer.is_global_zero:
            log.info("Resuming from %s, which ckpt_path names; %s is not searched", path, self.directory)
        if trainer.local_rank == 0 and not self._had_finished:
            remove_finished(self.directory)
        if choice.candidate is None:
            return None
        return os.path.join(self.directory, choice.candidate.name), choice.untrusted is None

    def _may_resume(self, trainer: Any) -> bool:
        if os.path.realpath(self.directory) in _ended_here:
            reason = "another training of this program ended there, and checkpoints do not tell which they belong to"
            hint = "Give each training a checkpoint directory of its own, so that all can be resumed."
        elif self.resume == "never":
            reason, hint = "sagemaker.resume is never", "With auto, a restart would go on from the newest."
        else:
            return True
        if trainer.is_global_zero and list_candidates(self.directory):
            log.warning("The checkpoints in %s are not used: %s. HINT: %s", self.directory, reason, hint)
        return False

    def _agree(self, trainer: Any) -> Choice:
        finished = read_finished(self.directory)
        at_end = finished is not None and finished.limits == plain(self._limits) and finished.weights == FINAL_WEIGHTS
        choice = choose(
            trainer,
            self.directory,
            self.identity,
            of_any_job=self.resume in ("always", "require"),
            weights_only=self.weights_only,
            without=() if at_end else (FINAL_WEIGHTS,),
        )
        if trainer.is_global_zero:
            for rejected in choice.rejected:
                log.warning("%s", rejected)
        if choice.other_job is not None:
            raise CheckpointError(f"In {self.directory}, {choice.other_job}.", hint=_OTHER_JOB)
        if choice.candidate is None:
            self._refuse_if_needed(choice)
            if choice.rejected and trainer.is_global_zero:
                log.warning("No checkpoint in %s can be used: training starts from scratch", self.directory)
        elif trainer.is_global_zero:
            log.info("Resuming from %s in %s", choice.candidate, self.directory)
            self._tell_whose(choice.candidate)
        return choice

    def _tell_whose(self, candidate: Candidate) -> None:
        if candidate.job is None:
            log.warning("%s does not say which job wrote it; it is taken for one of this job's", candidate.name)
        elif not candidate.job.is_same_job(self.identity):
            log.warning(
                "%s was written by %s, and this is %s. It is taken because sagemaker.resume is %s.",
                candidate.name,
                candidate.job,
                self.identity,
                self.resume,
            )

    def _refuse_if_needed(self, choice: Choice) -> None:
        reasons = _short("; ".join(map(str, choice.rejected)) or "there is none")
        if choice.unloadable:
            # To train from scratch would throw away what was trained, because of a name that has changed.
            problem = f"The checkpoints in {self.directory} are whole, but this program cannot load them: {reasons}."
            hint = "Bring back the classes that they name."
            if self.weights_only:
                hint = "Set sagemaker.resume_weights_only to false if you trust them."
            raise CheckpointError(problem, hint=f"{hint} {_AFRESH}")
        if self.resume == "require":
            problem = f"sagemaker.resume is require, and no checkpoint in {self.directory} can be used: {reasons}."
            raise CheckpointError(problem, hint="Set it to auto, or check the checkpoint's S3 location.")

    def _had_ended(self) -> Tuple[bool, bool]:
        """Whether the training had ended, and whether the weights of the checkpoint are those of the trained model."""
        chosen, finished = self._chosen, read_finished(self.directory)
        if chosen is None:
            return False, False
        if finished is not None and finished.is_end_of(chosen, self._limits):
            return True, finished.is_all_of(chosen)
        return chosen.stopped_by == plain(self._limits), False

    def _refuse_unsigned(self) -> None:
        if self._had_finished and self.resume == "auto" and self._chosen is not None and self._chosen.job is None:
            problem = f"The training in {self.directory} had finished, and {self._chosen} does not say whose it is."
            raise CheckpointError(problem, hint=_OTHER_JOB)

    def _restored(self, trainer: Any, pl_module: Any) -> None:
        """Skip the training of a job that had finished."""
        after_run(trainer, lambda: self._after_run(trainer, pl_module))
        if not self._had_finished:
            return
        if trainer.is_global_zero:
            own = self._chosen is None or self._chosen.job is None or self._chosen.job.is_same_job(self.identity)
            whose = "This job" if own else "That job"
            log.info("%s had finished with %s; nothing is left to train", whose, self._chosen)
        loop = trainer.fit_loop
        self._least = loop.min_epochs, loop.epoch_loop.min_steps
        # A checkpoint from within the last epoch, by a validation, does not count that one.
        loop.min_epochs = loop.epoch_loop.min_steps = None
        trainer.should_stop = True

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, LightningSMError):
            return error
        reason = _short(str(error))
        if isinstance(error, KeyError) and " " not in reason:
            reason = f"it lacks the entry {reason}"
        problem = f"{self._chosen} does not fit this model or trainer: {reason}"
        better = CheckpointError(problem, hint=f"Bring back what has changed since it was saved. {_AFRESH}")
        with suppress(CheckpointError), failure_reported(self._job):
            raise better
        return better

    def _newest(self) -> Optional[Candidate]:
        """The newest that this job wrote itself, and from which training could go on."""
        for candidate in list_candidates(self.directory):
            if candidate.problem is not None or candidate.job is None or candidate.name == FINAL_WEIGHTS:
                continue
            if candidate.job.is_same_job(self.identity):
                return candidate
        return None


def _short(text: str) -> str:
    return textwrap.shorten(text, 600, placeholder=" …")
