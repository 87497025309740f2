"""``AutoResume``: saves each fit of a program in a series of its own, and resumes a restarted program from these."""

import io
import textwrap
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._distributed.sharded_callbacks import check_callbacks, warn_of_own_states
from lightning_sm._export import load_file, load_weights
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace, SupportLevel, support_level
from lightning_sm._lightning.checkpoints import complete_for_load
from lightning_sm._lightning.collectives import any_true, broadcast
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod, UndoList, listen
from lightning_sm._lightning.restart import SavePoint, iterate_through, resumes_within_epochs
from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Callback, Trainer, callbacks_of, is_fast_dev_run
from lightning_sm._lightning.trainer_hooks import after_run, around_load, around_restore, forget_restore
from lightning_sm._logging import log
from lightning_sm._resume.attributes import Attributes
from lightning_sm._resume.callback_files import leave_files, list_checkpoints, replace_leftovers
from lightning_sm._resume.choose import Choice, ResumeMode, choose, describe_world_change
from lightning_sm._resume.fits import counts_fits, is_search, is_search_within, next_fit, stopping_criteria
from lightning_sm._resume.gradients import note_steps
from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity
from lightning_sm._resume.install import install_saves, read_plainly
from lightning_sm._resume.model_state import are_equal, sums_of
from lightning_sm._resume.optimizers import describe_optimizers
from lightning_sm._resume.points import ask_at_epoch_start, ask_at_save_points, stop_asking
from lightning_sm._resume.ranks import on_main_rank, raise_on_all_ranks, removes_files
from lightning_sm._resume.record import FitRecord, SavedFile
from lightning_sm._resume.restorer import FitRestorer, release_loaders
from lightning_sm._resume.saver import SeriesSaver
from lightning_sm._resume.series import Series
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.transfers import LocalFiles
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.checkpoint_places import CheckpointPlaces
from lightning_sm.errors import CheckpointError, LightningSMError

__all__ = ["AutoResumeMixin", "resume_of"]

_FROM_SCRATCH = (
    "Set sagemaker.resume to never, or sagemaker.checkpoint_dir to an empty directory, to train from scratch."
)
_LAYERS = "and make the model's layers in __init__, configure_model or configure_optimizers, not in later hooks"
#: The file with the weights after ``on_train_end``, where callbacks change them there.
_WEIGHTS = "weights.pt"


class AutoResumeMixin(Callback):
    """Save each fit of a program regularly, and continue a restarted program where it was interrupted.

    SageMaker restarts an interrupted job in a new container, downloads what had been uploaded of its checkpoint
    directory, and runs the identical request. The program then makes the same fits again: those that had ended are not
    trained again, but end with the weights, metrics, best checkpoint, counters and random states that they had, and
    with the hooks of the end of training; the interrupted one continues from its newest save that is whole. Fits are
    told apart by their number in the program. Searches (``Tuner``, ``LearningRateFinder``, ``BatchSizeFinder``) are no
    fits; what they found is restored with the fit that they belong to. Fits in processes that ``multiprocessing``
    starts (``ddp_spawn``) have no number: they are neither saved nor resumed, and a line of the log says so.

    Only the job's own saves are resumed from. They are made where Lightning can restore its loops: after an optimizer
    step with no validation due, before a validation, and at the start of an epoch; at most two of a fit are kept.
    Before Lightning 2.5 they are made at the start of an epoch only. A ``ckpt_path`` is used until the fit has a save.

    Checkpoints of the project's own callbacks are written atomically to the job's checkpoint directory, and belong to
    them. ``trainer.test``, ``validate`` and ``predict`` load on every host the checkpoint that global rank 0 would
    load; where a host lacks it, it is sent there.

    Files in ``directory``:

    ``PROGRAM-DIGITS/fit-K/step-N.ckpt``, ``step-N.json``
      A save of fit K after N optimizer steps, a file or a folder of shards, and its record with sizes and checksums,
      which is written last. The digits are those of the program's path, arguments and hyperparameters.

    ``PROGRAM-DIGITS/fit-K/checkpoints``
      What ``ModelCheckpoint`` callbacks without a ``dirpath`` save whose first fit is fit K; those of fit 0 save in
      ``directory`` itself.

    ``PROGRAM-DIGITS/fit-K/fit.json``
      Which job trains the fit, and whether it has ended.

    ``PROGRAM-DIGITS/fit-K/weights.pt``
      The weights after ``on_train_end``, where callbacks such as weight averaging change them there.

    Environment variables:

    ``TRAINING_JOB_NAME``
      The job's name, for the default ``identity``. Set by SageMaker in each training container; absent elsewhere.

    Args:
        directory: The checkpoint directory, with the same path on every host: ``/opt/ml/checkpoints`` by default in a
            job with a ``CheckpointConfig`` (``checkpoint_s3_uri``). Or a URL, such as ``s3://bucket/prefix``, for which
            fsspec needs a package (s3fs): each host downloads the chosen save to ``TMPDIR``.
        resume: ``auto``: resume if a save is usable, else train from scratch. ``always``: the same, also from saves of
            other jobs and programs. ``never``: train from scratch. ``require``: raise an error if no save of any job
            is usable for the program's first fit.
        identity: What identifies this program; by default the job's name, its hyperparameters and the program's path
            and arguments.
        weights_only: Whether to load saves with ``torch.load(weights_only=True)``, which runs no code of the file.
            Sharded saves cannot be loaded so.
        save_every: Seconds between two saves; longer where saving would take more than 5 % of the time. Less than a
            second saves at each opportunity.
        async_save: Whether a thread writes checkpoints while training continues.
        places: Where the checkpoints of the project's callbacks go; :class:`~lightning_sm.cli.SageMakerCLI` and
            :func:`~lightning_sm.trainer_settings` set it.

    Raises:
        CheckpointError: ``resume`` is none of these words; the saves are another job's or another model's; none is
            usable although one is required; the chosen one does not fit the model or the strategy; or a save failed.
            DeepSpeed cannot resume with another number of processes.
        StrategyUnavailableError: A callback averages or unfreezes weights in a way that fails where they are sharded.

    Sources: the SageMaker developer guide, "Use checkpoints in Amazon SageMaker AI" and "Managed Spot Training";
    ``RestartStage`` in ``lightning/pytorch/loops``.

    Example::

        >>> from lightning_sm.callbacks import AutoResume
        >>> callback = AutoResume("checkpoints", resume="require", save_every=300)
        >>> callback.directory, callback.resume.value
        ('checkpoints', 'require')
        >>> trainer = Trainer(callbacks=[callback])  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(
        self,
        directory: str,
        resume: str = "auto",
        identity: Optional[ProgramIdentity] = None,
        weights_only: bool = False,
        save_every: float = 600.0,
        async_save: bool = False,
        places: Optional[CheckpointPlaces] = None,
    ) -> None:
        super().__init__()
        self._job = TrainingJob.resolve()
        self.directory = directory
        self.resume = ResumeMode.parse(resume)
        self.weights_only = weights_only
        self.save_every = save_every
        self.async_save = async_save
        self.places = places
        self.identity = ProgramIdentity.of(self._job) if identity is None else identity
        #: What the fit continues, or continued: the path of a save, or the given ``ckpt_path``; ``None`` from scratch.
        self.resumed_from: Optional[str] = None
        self._undo = UndoList()
        self._files = LocalFiles()
        self._reset()

    def _reset(self) -> None:
        """Forget the previous fit."""
        self._undo.run()
        self._files.close()
        self._choice: Optional[Choice] = None
        self._model, self._fit = ModelIdentity(""), FitRecord()
        self._criteria: Mapping[str, Any] = {}
        self._attributes = Attributes(self.namespace)
        self._restorer = FitRestorer(self.namespace, self._attributes)
        #: Saves the current fit; ``None`` before its first step, and for one that is not saved for a restart.
        self.saver: Optional[SeriesSaver] = None
        self._weight_sums: List[Any] = []
        self._compares_states = True
        #: What writes the saves.
        self.background: Any = None

    # --- before the training

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Install what saves, and the hooks around the restore of ``fit``; or around the load of other functions."""
        if self.places is not None:
            self.places.route(callbacks_of(trainer))
        if stage != "fit":
            around_load(trainer, partial(_loadable_here, trainer))
            return
        self._reset()
        self.resumed_from = None
        forget_restore(trainer)
        check_callbacks(trainer, pl_module)
        self.background = install_saves(self.namespace, trainer, async_save=self.async_save)
        if trainer.state.fn != "fit" or is_fast_dev_run(trainer) or is_search(trainer):
            return
        if not counts_fits():
            self._place_checkpoints(trainer, self.directory)
            self._tell_not_resumed(trainer)
            return
        # The first callback sees the state of an epoch's start before others change it, and restores it before them.
        callbacks = callbacks_of(trainer)
        callbacks.remove(self)
        callbacks.insert(0, self)
        program = broadcast(trainer, self.identity.series)
        series = Series(self.directory, program, next_fit(self.directory))
        self._choice = Choice(series)
        # Of each trainer another directory, as with plain Lightning, where each has its own of its logger.
        self._place_checkpoints(trainer, f"{series.directory}/checkpoints" if series.number else self.directory)
        self._model = ModelIdentity.of(pl_module)
        strategy = strategy_of(trainer)
        if support_level(self.namespace) > SupportLevel.CORE:
            process = partial(self._restorer.process_loader, trainer)
            self._undo.append(ReplacedMethod(strategy, "process_dataloader", process).undo)
            self._undo.append(partial(release_loaders, trainer))
        if resumes_within_epochs(self.namespace):
            self._undo.append(iterate_through(trainer, partial(self._restorer.iterated, trainer)))
        around_restore(
            trainer,
            choose=lambda path: self._choose(trainer, path),
            loaded=lambda checkpoint: self._after_load(trainer, pl_module, checkpoint),
            restore_model=lambda restore: self._restorer.restore_model(pl_module, restore),
            prepare=lambda: self._restorer.before_restore(trainer),
            explain=self._explain,
            restored=lambda: self._after_restore(trainer, pl_module),
        )
        self._undo.append(partial(forget_restore, trainer))

    def _place_checkpoints(self, trainer: Trainer, directory: str) -> None:
        if self.places is not None:
            self.places.place(trainer, directory)

    def _tell_not_resumed(self, trainer: Trainer) -> None:
        problem = "Fits in processes that multiprocessing starts, as ddp_spawn does, cannot be resumed"
        hint = 'Start the ranks by torchrun or by strategy="ddp".'
        if self.resume is ResumeMode.REQUIRE:
            with failure_reported(self._job):
                raise CheckpointError(f"sagemaker.resume is require. {problem}.", hint=hint)
        if trainer.is_global_zero:
            log.warning("%s: this one is not saved for a restart. HINT: %s", problem, hint)

    @property
    def _chosen(self) -> Choice:
        assert self._choice is not None
        return self._choice

    def _choose(self, trainer: Trainer, path: Any) -> Optional[Tuple[str, Optional[bool]]]:
        """Return the path of the checkpoint to restore and whether it loads with ``weights_only``, if we know."""
        if self.places is not None:
            self.places.keep(trainer)
        series = self._chosen.series
        with failure_reported(self._job):
            self._choice = choose(trainer, series, self.identity, self._model, self.resume, self._files)
            fit, is_own = self._chosen.fit or FitRecord(), self._chosen.source in ("", series.directory)
            self._fit = FitRecord(asdict(self.identity), fit.present, raised=fit.raised if is_own else None)
            self._criteria = stopping_criteria(self.namespace, trainer)
            record = self._chosen.record
            if record is None:
                return self._use_given(trainer, path)
            if self.weights_only and record.strategy:
                raise CheckpointError(
                    "sagemaker.resume_weights_only is set, and loading a sharded checkpoint runs code of its files.",
                    hint="Set it to false if you trust the checkpoint directory.",
                )
        self.resumed_from = f"{self._chosen.source}/{record.name}"
        if trainer.is_global_zero:
            log.info("Resuming fit %d of this program from %s in %s", series.number, record, self._chosen.source)
            if path:
                log.info("The ckpt_path %s is not used: this fit of the job has its own %s", path, record.name)
            change = describe_world_change(record, trainer.world_size)
            if change is not None:
                log.warning("%s", change)
        found = self._files.path(self._chosen.source, record.name)
        read_plainly(trainer, found)
        return found, self.weights_only

    def _use_given(self, trainer: Trainer, path: Any) -> Optional[Tuple[str, Optional[bool]]]:
        series = self._chosen.series
        if self.resume is ResumeMode.REQUIRE and series.number == 0:
            problem = f"sagemaker.resume is require, and no checkpoint in {self.directory} can be used."
            raise CheckpointError(problem, hint="Set it to auto, or check the checkpoint's S3 location.")
        if self._chosen.newest and self.resume is not ResumeMode.NEVER and trainer.is_global_zero:
            log.warning("No checkpoint in %s can be used: the fit starts from scratch", series.directory)
        if not path:
            return None
        self.resumed_from = str(path)
        found = self._files.obtain_given(trainer, path)
        # A save of another series is continued as one of this; anything else is left to Lightning.
        return str(found), False if is_remote(path) and not is_remote(found) else None

    def _explain(self, error: Exception) -> Exception:
        # What is missing can only be a checkpoint that was given, and Lightning's error names it.
        if isinstance(error, (LightningSMError, FileNotFoundError)):
            return error
        reason = textwrap.shorten(str(error), 600, placeholder=" …")
        if isinstance(error, KeyError) and " " not in reason:
            reason = f"it has no entry {reason}"
        if self._restorer.difference is not None:
            reason = f"{self._restorer.difference}: {reason}"
        problem = f"{self.resumed_from} does not fit this model or trainer: {reason}"
        better = CheckpointError(problem, hint=f"Undo what has changed since it was saved, {_LAYERS}. {_FROM_SCRATCH}")
        with suppress(CheckpointError), failure_reported(self._job):
            raise better
        return better

    def _after_load(self, trainer: Trainer, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        """Take this package's part out of a checkpoint of the series, before Lightning restores the rest."""
        record = self._chosen.record
        self._restorer.take(trainer, pl_module, checkpoint, record, self._criteria, self.directory)
        if record is None:
            leave_files(trainer, checkpoint)

    def _after_restore(self, trainer: Trainer, pl_module: Any) -> None:
        self._files.close()
        record = self._chosen.record
        if self._restorer.replays and trainer.is_global_zero:
            log.info("This fit had ended with fit %d: %s; no training is left", self._chosen.series.number, record)
        self._restorer.after_restore(trainer)
        # After on_train_start of all callbacks and of the model, which may reset what is restored.
        self._undo.append(listen(trainer.fit_loop, "on_run_start", lambda: self._restore(trainer, pl_module)))
        self._undo.append(after_run(trainer, lambda: self._after_run(trainer, pl_module)))

    def _restore(self, trainer: Trainer, pl_module: Any) -> None:
        if is_search_within(trainer, self):
            return
        self._attributes.begin(trainer)
        self._restorer.restore(trainer)
        if self._restorer.replays:
            self._weight_sums = sums_of(pl_module)

    # --- the training

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note what the hooks that are called from now on set before the first batch."""
        self._attributes.start(trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note what the sanity check changes, which a fit that continues has not."""
        self._attributes.begin(trainer)

    def on_sanity_check_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The same."""
        self._attributes.end_sanity_check(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore what a save holds beside Lightning's own state, and begin to save."""
        if self._choice is None or self._restorer.replays:
            return
        self._begin_fit(trainer)
        if self.background is not None:
            self.background.start()
        self.saver = SeriesSaver(
            self.namespace,
            self._chosen,
            self.identity,
            self._model,
            self._criteria,
            self.save_every,
            self._attributes,
            self._restorer.configured or describe_optimizers(trainer),
        )
        self._undo += note_steps(trainer)
        is_due, save = partial(self.saver.is_due, trainer), partial(self.saver.save, trainer)
        ask_at_save_points(self.namespace, trainer, self, is_due, save)

    def _begin_fit(self, trainer: Trainer) -> None:
        """Note on the main host what is trained, and remove what an earlier run has saved of what comes later.

        Later fits are kept where this one raised an error that the program has caught: until it ends otherwise now.
        """
        choice, fit = self._chosen, self._chosen.fit

        def begin() -> Tuple[str, ...]:
            if self._fit.raised is None:
                self._remove_later_fits(trainer)
            if removes_files(trainer, self.directory) and choice.record is not None:
                choice.series.remove_but([choice.record.name])
            if not trainer.is_global_zero:
                return ()
            present = self._fit.present if fit is not None else tuple(list_checkpoints(trainer, self.directory))
            is_own = choice.source in ("", choice.series.directory)
            if fit is None or fit.ended or not is_own:
                choice.series.write(replace(self._fit, present=present))
            return present

        present = raise_on_all_ranks(trainer, choice.series.directory, begin, "cannot be written ({})")
        self._fit = replace(self._fit, present=present)
        self._undo += replace_leftovers(trainer, self.directory, present, self.background)

    def _remove_later_fits(self, trainer: Trainer) -> None:
        if removes_files(trainer, self.directory):
            self._chosen.series.remove_later_fits()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the state of the epoch's start, or save it."""
        if not self._restorer.start_epoch(trainer):
            ask_at_epoch_start(trainer, self)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the restored epoch as any other."""
        self._restorer.end_epoch(trainer)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        """Note what Lightning has put into a save of the series; warn once of states that differ between ranks."""
        if self._compares_states:
            self._compares_states = False
            warn_of_own_states(trainer, checkpoint)
        if self.saver is not None:
            self.saver.note_entries(checkpoint)

    @property
    def slowest_save(self) -> float:
        """How many seconds the slowest save of this fit has taken so far, in the training or in the background."""
        in_background = 0.0 if self.background is None else self.background.slowest
        return in_background if self.saver is None else max(self.saver.slowest, in_background)

    def finish_saves(self, *, failed: bool = False) -> None:
        """Wait for pending background saves, and save synchronously from now on. Every rank must call it.

        Args:
            failed: Whether training has failed, so that not every rank may get here: no collective is called, and
                errors are only logged.

        Raises:
            Exception: The error of the last save; of a sharded checkpoint on every rank.
        """
        if self.background is not None:
            self.background.finish(failed=failed)

    # --- the end

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save what has been trained, before other callbacks change it."""
        stop_asking(trainer)
        if self.saver is None:
            return
        self.finish_saves()
        self.saver.save(trainer, SavePoint.END)
        self._weight_sums = sums_of(pl_module)

    def _after_run(self, trainer: Trainer, pl_module: Any) -> None:
        """After all ``on_train_end`` hooks: record that the fit has ended, or let a fit that had ended end again."""
        if self._restorer.replays:
            self._restorer.end_replay(trainer)
        elif self.saver is None:
            return
        ended = self._chosen.fit if self._had_ended else None
        if ended is not None and (ended.weights is None or self._load_weights(trainer, pl_module, ended.weights)):
            return
        # Callbacks that replace whole weights are refused where these are sharded.
        has_changed = not is_sharded(trainer) and not are_equal(sums_of(pl_module), self._weight_sums)
        changed = any_true(trainer, has_changed)
        self._end_fit(trainer, pl_module, changed)

    @property
    def _had_ended(self) -> bool:
        """Whether an earlier start has ended this fit."""
        return self._restorer.replays and self._chosen.fit is not None and self._chosen.fit.ended

    def _end_fit(self, trainer: Trainer, pl_module: Any, changed: bool) -> None:
        series = self._chosen.series

        def write() -> None:
            weights = _write_weights(series, pl_module) if changed else None
            series.write(replace(self._fit, weights=weights))

        if self._fit.raised is not None:  # in an earlier start, and not in this one
            raise_on_all_ranks(trainer, series.root, lambda: self._remove_later_fits(trainer), "cannot be written ({})")
        self._fit = replace(self._fit, ended=True, raised=None)
        on_main_rank(trainer, series.directory, write, "cannot be written ({})")

    def _load_weights(self, trainer: Trainer, pl_module: Any, weights: SavedFile) -> bool:
        """Load the weights after the end of training; return whether they are whole, as every rank does."""
        source = self._chosen.source
        problem = self._files.obtain(trainer, source, (weights,))
        if problem is None:
            path = self._files.path(source, weights.name)
            load_weights(pl_module, load_file(path, weights_only=self.weights_only))
        elif trainer.is_global_zero:
            # SageMaker uploads file by file: an interruption may leave the record without them.
            log.warning("Skipped %s in %s: %s. The fit ends anew from its last save", weights.name, source, problem)
        self._files.close()
        return problem is None

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Wait for pending saves, and note the error. What fails is only logged: training failed for another reason."""
        stop_asking(trainer)
        self.finish_saves(failed=True)
        has_begun = self.saver is not None or self._restorer.replays
        if has_begun and not (self._had_ended or self._fit.ended) and isinstance(exception, Exception):
            try:
                self._note_error(trainer, exception)
            except (OSError, CheckpointError) as error:
                log.error("%s", error)
        self._reset()

    def _note_error(self, trainer: Trainer, error: Exception) -> None:
        """Note an error that the program may catch, and go on to later fits, as with a pruned trial of a search.

        With the error of an earlier start, at the same step, nothing has changed for these.
        """
        raised = f"{type(error).__qualname__} at step {trainer.global_step}"
        if raised == self._fit.raised:
            return
        self._remove_later_fits(trainer)
        if trainer.is_global_zero:
            self._chosen.series.write(replace(self._fit, raised=raised))

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore what was replaced, and let the program find its checkpoints."""
        if stage == "fit":
            if self.places is not None:
                self.places.link_checkpoints(removes=trainer.local_rank == 0)
            self._reset()


def resume_of(trainer: Trainer) -> Optional[AutoResumeMixin]:
    """Return the trainer's ``AutoResume``, or ``None``."""
    return next((each for each in callbacks_of(trainer) if isinstance(each, AutoResumeMixin)), None)


def _write_weights(series: Series, pl_module: Any) -> SavedFile:
    """Write the weights of a model that is not sharded."""
    import torch

    file = io.BytesIO()
    torch.save(pl_module.state_dict(), file)
    content = file.getvalue()
    series.storage.write(_WEIGHTS, content)
    return SavedFile.of(_WEIGHTS, content)


@contextmanager
def _loadable_here(trainer: Trainer, path: Any) -> Iterator[Any]:
    """Yield the path from which this rank loads the checkpoint of global rank 0. Every rank must call it."""
    files = LocalFiles()
    try:
        found = files.obtain_given(trainer, path)
        complete_for_load(strategy_of(trainer))
        yield found
        if is_remote(path):
            strategy_of(trainer).barrier("checkpoint loaded on every host")
    finally:
        files.close()
