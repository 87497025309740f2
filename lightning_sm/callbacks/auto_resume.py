"""``AutoResume``: saves each fit of a program in a series of its own, and resumes a restarted program from these."""

import os
import textwrap
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from lightning_sm._atomic_file import replace_atomically
from lightning_sm._config.directories import CheckpointPlaces
from lightning_sm._distributed.sharded_callbacks import check_callbacks, warn_of_own_states
from lightning_sm._failure import failure_reported
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import all_true, any_true, broadcast, gather_objects
from lightning_sm._lightning.compat import epochs_trained, logged_step
from lightning_sm._lightning.compat_sharded import complete_for_load, is_sharded, shards_of
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod, listen
from lightning_sm._lightning.restart import (
    SavePoint,
    continue_epoch,
    enable_plateau_schedulers,
    end_restart,
    loaders_of,
    mark_point,
    reload_epoch,
    restart_loaders,
    resumes_within_epochs,
    skip_batches,
    skip_training,
    start_epoch,
)
from lightning_sm._lightning.results import set_results
from lightning_sm._lightning.trainer_hooks import (
    after_run,
    around_load,
    around_restore,
    call_skipped_train_hooks,
    forget_restore,
    start_averages,
)
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of, is_fast_dev_run
from lightning_sm._logging import log
from lightning_sm._resume.callback_files import (
    adopt_directories,
    last_saved,
    leave_files,
    list_checkpoints,
    release_names,
    replace_leftovers,
)
from lightning_sm._resume.choose import Choice, LocalFiles, ResumeMode, choose, describe_world_change
from lightning_sm._resume.data import (
    describe_changes,
    describe_data,
    describe_losses,
    is_ordered,
    is_same_loader,
    prepare_loader,
    sampler_of,
    set_sampler_epoch,
)
from lightning_sm._resume.fits import is_search, next_fit, stopping_criteria
from lightning_sm._resume.identity import ModelIdentity, ProgramIdentity
from lightning_sm._resume.install import check_given, finish_saves, install_saves
from lightning_sm._resume.manifest import new_save_id
from lightning_sm._resume.model_state import FinderResults, PruningState, are_equal, weight_sums
from lightning_sm._resume.points import save_points_of
from lightning_sm._resume.record import CheckpointRecord, FitRecord, SavedFile
from lightning_sm._resume.send import broadcast_missing_file
from lightning_sm._resume.series import STATE_KEY, Series, remove_replaced
from lightning_sm._resume.sharded_files import raise_on_all_ranks
from lightning_sm._resume.shared import merge_rest
from lightning_sm._resume.state import (
    rank_state,
    restore_logged,
    restore_random_state,
    restore_samplers,
    stateful_loaders,
)
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.transfers import GivenCopy, upload_file
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import CheckpointError, LightningSMError

__all__ = ["AutoResumeMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

_FROM_SCRATCH = (
    "Set sagemaker.resume to never, or sagemaker.checkpoint_dir to an empty directory, to train from scratch."
)
#: The file with the weights after ``on_train_end``, where callbacks change them there.
_WEIGHTS = "weights.pt"
# Saving may take a twentieth of the time between two saves.
_COST = 20
# A save is due after this share of the interval before a validation, as who is stopped in it goes back to that save,
# and where it shares the files of a checkpoint that a callback of the project has just saved.
_AT_GOOD_MOMENTS = 0.1


class AutoResumeMixin(_Base):
    """Save each fit of a program regularly, and continue a restarted program where it was interrupted.

    SageMaker restarts an interrupted job in a new container, downloads what had been uploaded of its checkpoint
    directory, and runs the identical request. The program then makes the same fits again: those that had ended are not
    trained again, but end with the weights, metrics, best checkpoint, counters and random states that they had, and
    with the hooks of the end of training; the interrupted one continues from its newest save that is whole. Fits are
    told apart by their number in the program. Searches (``Tuner``, ``LearningRateFinder``, ``BatchSizeFinder``) are no
    fits; what they found is restored with the fit that they belong to.

    Only the job's own saves are resumed from. They are made where Lightning can restore its loops: after an optimizer
    step with no validation due, before a validation, and at the start of an epoch; at most two of a fit are kept.
    Before Lightning 2.5 they are made at the start of an epoch only. A ``ckpt_path`` is used until the fit has a save.

    Checkpoints of the project's own callbacks are written atomically to the job's checkpoint directory, and belong to
    them. ``trainer.test``, ``validate`` and ``predict`` load on every host the checkpoint that global rank 0 would
    load; where a host lacks it, it is sent there, at most 64 GiB in 10 minutes.

    Files in ``directory``:

    ``PROGRAM-DIGITS/fit-K/step-N.ckpt``, ``step-N.json``
      A save of fit K after N optimizer steps, a file or a folder of shards, and its record with sizes and checksums,
      which is written last. The digits are those of the program's arguments and hyperparameters.

    ``PROGRAM-DIGITS/fit-K/step-N.rest``
      What differs from the checkpoint of another callback, of which ``step-N.ckpt`` is a hard link.

    ``PROGRAM-DIGITS/fit-K/fit.json``
      What is trained in the fit, and whether it has ended.

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
        identity: What identifies this program; by default the job's name, its hyperparameters and the program's
            arguments.
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
        #: What the current fit continues: the path of a save, or the given ``ckpt_path``; ``None`` from scratch.
        self.resumed_from: Optional[str] = None
        self._undo: List[Callable[[], None]] = []
        self._reset()

    def _reset(self) -> None:
        """Forget the previous fit."""
        for undo in self._undo:
            undo()
        self._undo = []
        self.resumed_from = None
        self._choice: Optional[Choice] = None
        self._model = ModelIdentity("")
        self._criteria: Mapping[str, Any] = {}
        # The checkpoints of other callbacks that were there before the fit.
        self._present: Tuple[str, ...] = ()
        # What the chosen save holds beside Lightning's state, and the part of this rank.
        self._saved: Dict[str, Any] = {}
        self._own: Dict[str, Any] = {}
        self._resumes_within_epoch = self._starts_epoch = self._replays = self._has_trained = False
        self._prepared: List[Any] = []
        self._undo_results: Callable[[], Any] = dict
        self._undo_skip: Callable[[], Any] = dict
        self._finders = FinderResults(self.namespace)
        self._weight_sums: List[Any] = []
        # The save that is being made.
        self._point: Optional[SavePoint] = None
        self._state: Dict[str, Any] = {}
        self._number = 0
        self._names: Set[str] = set()
        self._last_save = self._last_cost = 0.0
        # The step of the last saves of other callbacks, and the sums of the weights at each of them.
        self._others_saved: Tuple[int, List[Any]] = (-1, [])
        self._has_said_stretched = False
        self._compares_states = True
        self._files, self._given = LocalFiles(), GivenCopy()
        self._background: Any = None

    @property
    def _identities(self) -> Tuple[Mapping[str, Any], Mapping[str, Any]]:
        return self.identity.to_json(), self._model.to_json()

    # --- before the training

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Install what saves, and the hooks around the restore of ``fit``; or around the load of other functions."""
        if stage != "fit":
            around_load(trainer, partial(_loadable_here, trainer))
            return
        self._reset()
        forget_restore(trainer)
        if self.places is not None:
            self.places.route(callbacks_of(trainer))
        check_callbacks(trainer, pl_module)
        self._background = install_saves(self.namespace, trainer, self.directory, async_save=self.async_save)
        if trainer.state.fn != "fit" or is_fast_dev_run(trainer) or is_search(trainer):
            return
        # The first callback sees the state of an epoch's start before others change it, and restores it before them.
        callbacks = callbacks_of(trainer)
        callbacks.remove(self)
        callbacks.insert(0, self)
        program = broadcast(trainer, self.identity.series)
        self._choice = Choice(Series(self.directory, program, next_fit(self.directory)))
        self._model = ModelIdentity.of(pl_module)
        strategy = strategy_of(trainer)
        if resumes_within_epochs(self.namespace):
            process = partial(self._process_loader, trainer)
            self._undo.append(ReplacedMethod(strategy, "process_dataloader", process).undo)
        around_restore(
            trainer,
            choose=lambda path: self._choose(trainer, path),
            loaded=lambda checkpoint: self._after_load(trainer, pl_module, checkpoint),
            explain=self._explain,
            restored=lambda: self._after_restore(trainer, pl_module),
        )
        self._undo.append(partial(forget_restore, trainer))

    def _choose(self, trainer: Trainer, path: Any) -> Optional[Tuple[str, Optional[bool]]]:
        """Return the path of the checkpoint to restore and whether it loads with ``weights_only``, if we know."""
        assert self._choice is not None
        series = self._choice.series
        self._criteria = stopping_criteria(self.namespace, trainer)
        with failure_reported(self._job):
            self._choice = choose(trainer, series, self.identity, self._model, self.resume, self._files)
            self._number = self._choice.newest
            self._present = () if self._choice.fit is None else self._choice.fit.present
            record = self._choice.record
            if record is None:
                return self._use_given(trainer, path)
            if self.weights_only and record.strategy:
                raise CheckpointError(
                    "sagemaker.resume_weights_only is set, and loading a sharded checkpoint runs code of its files.",
                    hint="Set it to false if you trust the checkpoint directory.",
                )
        self.resumed_from = f"{self._choice.source}/{record.name}"
        self._names = {record.name}
        if trainer.is_global_zero:
            log.info("Resuming fit %d of this program from %s in %s", series.number, record, self._choice.source)
            if path:
                log.info("The ckpt_path %s is not used: this fit of the job has its own %s", path, record.name)
            change = describe_world_change(record, trainer.world_size)
            if change is not None:
                log.warning("%s", change)
        return self._files.path(self._choice.source, record.name), self.weights_only

    def _use_given(self, trainer: Trainer, path: Any) -> Optional[Tuple[str, Optional[bool]]]:
        assert self._choice is not None
        series = self._choice.series
        if self.resume is ResumeMode.REQUIRE and series.number == 0:
            problem = f"sagemaker.resume is require, and no checkpoint in {self.directory} can be used."
            raise CheckpointError(problem, hint="Set it to auto, or check the checkpoint's S3 location.")
        if self._choice.newest and self.resume is not ResumeMode.NEVER and trainer.is_global_zero:
            log.warning("No checkpoint in %s can be used: the fit starts from scratch", series.directory)
        if not path:
            return None
        self.resumed_from = str(path)
        copy = self._given.fetch(trainer, path)
        check_given(trainer, path, copy)
        # A save of another series is continued as one of this; anything else is left to Lightning.
        return (str(path), None) if copy is None else (copy, False)

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, LightningSMError):
            return error
        reason = textwrap.shorten(str(error), 600, placeholder=" …")
        if isinstance(error, KeyError) and " " not in reason:
            reason = f"it has no entry {reason}"
        problem = f"{self.resumed_from} does not fit this model or trainer: {reason}"
        better = CheckpointError(problem, hint=f"Undo what has changed since it was saved. {_FROM_SCRATCH}")
        with suppress(CheckpointError), failure_reported(self._job):
            raise better
        return better

    def _after_load(self, trainer: Trainer, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        """Take this package's part out of a checkpoint of the series, before Lightning restores the rest."""
        assert self._choice is not None
        record = self._choice.record
        if record is not None and record.rest is not None:
            path = self._files.path(self._choice.source, record.rest)
            merge_rest(checkpoint, path, weights_only=self.weights_only)
        if record is None:
            leave_files(trainer, checkpoint)
        self._saved = checkpoint.pop(STATE_KEY, {})
        if not self._saved:
            return
        ranks = self._saved["ranks"]
        self._own = ranks[trainer.global_rank] if trainer.global_rank < len(ranks) else {}
        point = SavePoint(self._saved["point"])
        same_world = self._saved["data"].get("world size") == trainer.world_size
        self._resumes_within_epoch = point in (SavePoint.BATCH, SavePoint.VALIDATION) and same_world
        self._starts_epoch = not self._resumes_within_epoch
        has_ended = point is SavePoint.END and self._saved["criteria"] == self._criteria
        self._replays = has_ended and record is not None
        if "loops" in checkpoint:  # Lightning 1.5 saves none
            loaders = checkpoint["loops"]["fit_loop"]["state_dict"]
            loaders.pop("combined_loader", None)
            if self._own and stateful_loaders(self._own) and not self._replays:
                # Lightning saves those of global rank 0.
                loaders["combined_loader"] = stateful_loaders(self._own)
        if record is not None:  # the callbacks' files of a given one stay with the training that saved it
            # Lightning gives the directories of global rank 0 to the callbacks of all ranks.
            adopt_directories(trainer, checkpoint, self._saved["directory"], broadcast(trainer, self.directory))
        self._finders.restore(trainer, pl_module, self._saved["finders"])

    def _process_loader(self, trainer: Any, process: Callable[[Any], Any], loader: Any) -> Any:
        if trainer.training:
            prepare_loader(loader)
            self._prepared.append(loader)
            self._resume_loader(len(self._prepared) - 1, loader)
        return process(loader)

    def _resume_loader(self, index: int, loader: Any) -> None:
        states = self._own.get("loaders", ()) if self._resumes_within_epoch else ()
        if index < len(states):
            # Lightning makes the iterator before it calls set_epoch.
            set_sampler_epoch(loader, self._saved["epoch"])
            sampler = sampler_of(loader)
            if sampler is not None and is_same_loader(self._saved["data"], index, loader):
                sampler.resume(states[index], self._saved["batches"])

    def _after_restore(self, trainer: Trainer, pl_module: Any) -> None:
        self._files.close()
        self._given.close()
        if self._replays:
            if trainer.is_global_zero:
                log.info("This fit had ended with %s; no training is left", self._choice)
            self._undo_skip = skip_training(trainer)
        record = None if self._choice is None else self._choice.record
        if record is not None and record.rest is not None:
            for optimizer, groups in zip(trainer.optimizers, self._saved["optimizer_groups"]):
                for group, values in zip(optimizer.param_groups, groups):
                    group.update(values)
        if self._resumes_within_epoch:
            self._prepared = []
            for index, loader in enumerate(loaders_of(trainer)):
                self._resume_loader(index, loader)
            if any(map(is_ordered, loaders_of(trainer))):
                restart_loaders(trainer)
        if self._saved:
            # After on_train_start of all callbacks and of the model, which may reset what is restored.
            self._undo.append(listen(trainer.fit_loop, "on_run_start", lambda: self._restore(trainer, pl_module)))
        self._undo.append(after_run(trainer, lambda: self._after_run(trainer, pl_module)))

    # --- the training

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore what a save holds beside Lightning's own state, and begin to save."""
        if self._choice is None or self._replays:
            return
        self._has_trained = True
        self._begin_fit(trainer)
        if self._background is not None:
            self._background.start()
        self._last_save = time.monotonic()
        points = save_points_of(self.namespace, trainer)
        points.add(partial(self._is_due, trainer), partial(self.save, trainer))
        points.start(self)

    def _begin_fit(self, trainer: Trainer) -> None:
        """Note on the main host what is trained, and remove what an earlier run has saved of what comes later."""
        assert self._choice is not None
        choice, fit = self._choice, self._choice.fit

        def begin() -> Tuple[str, ...]:
            if trainer.local_rank == 0 and (trainer.is_global_zero or not is_remote(self.directory)):
                choice.series.remove_later_fits()
                if self._names:
                    choice.series.remove_but(self._names)
            if not trainer.is_global_zero:
                return ()
            present = self._present if fit is not None else tuple(list_checkpoints(trainer, self.directory))
            is_own = choice.source in ("", choice.series.directory)
            if fit is None or fit.ended or not is_own:
                choice.series.write_fit(FitRecord(*self._identities, present))
            return present

        self._present = raise_on_all_ranks(trainer, choice.series.directory, begin, "cannot be written ({})")
        replace_leftovers(trainer, self.directory, self._present, self._background)
        self._undo.append(partial(release_names, trainer))

    def _restore(self, trainer: Trainer, pl_module: Any) -> None:
        PruningState.restore(trainer, self._saved["pruning"])
        if self._replays:
            if self._own:
                restore_logged(trainer, self._own)
                restore_samplers(trainer, self._own)
                restore_random_state(self._own)
            self._weight_sums = _sums(pl_module)
            return
        if self._saved["should_stop"] and SavePoint(self._saved["point"]) is not SavePoint.END:
            trainer.should_stop = True
        changes = describe_changes(self._saved["data"], describe_data(trainer.world_size, loaders_of(trainer)))
        point, epoch, batches = SavePoint(self._saved["point"]), self._saved["epoch"], self._saved["batches"]
        if point in (SavePoint.BATCH, SavePoint.VALIDATION):
            where = f"epoch {epoch} after {batches} batches"
            if changes and trainer.is_global_zero:
                log.warning("Restarting epoch %d: the checkpoint is from %s, but %s.", epoch, where, changes)
            elif trainer.is_global_zero:
                log.info("Resuming within an epoch: %s.", where)
                for loss in describe_losses(loaders_of(trainer)):
                    log.warning("Not restored, in %s: %s.", where, loss)
        if point is SavePoint.EPOCH and not resumes_within_epochs(self.namespace) and trainer.is_global_zero:
            version = ".".join(map(str, self.namespace.version))
            log.info("This Lightning (%s) continues at the start of an epoch: epoch %d begins again.", version, epoch)
        if changes or self._starts_epoch:
            self._starts_epoch, self._resumes_within_epoch = True, False
            start_epoch(trainer, epoch, self._saved["logged_step"], self._saved["loaded_in"])
        if not self._own:
            return
        restore_logged(trainer, self._own)
        if self._resumes_within_epoch:
            start_averages(trainer)
            continue_epoch(trainer, point, self._saved["loaded_in"], self._saved["accumulate"])
            if not any(map(is_ordered, loaders_of(trainer))):
                skip_batches(trainer, batches)
            restore_random_state(self._own)
            if self._own["results"]:
                self._undo_results = set_results(trainer, self._own["results"])

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Restore the state of the epoch's start, or save it."""
        if self._starts_epoch:
            self._starts_epoch = False
            if self._own and SavePoint(self._saved["point"]) in (SavePoint.EPOCH, SavePoint.END):
                restore_samplers(trainer, self._own)
                restore_random_state(self._own)
            return
        save_points_of(self.namespace, trainer).at_epoch_start(self)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End the restored epoch as any other."""
        if not self._resumes_within_epoch:
            return
        self._resumes_within_epoch = False
        self._undo_results()
        enable_plateau_schedulers(trainer)
        for loader, state in zip(loaders_of(trainer), self._own["loaders"]):
            sampler = sampler_of(loader)
            if sampler is not None and sampler.forget() is not None:  # no batch of the epoch was left
                sampler.restore(state)

    # --- saves

    def _is_due(self, trainer: Trainer, point: Optional[SavePoint]) -> bool:
        if point is None or not trainer.is_global_zero:
            return False
        if self.save_every < 1:
            return True
        is_cheap = point is SavePoint.EPOCH and self._others_saved[0] == trainer.global_step
        share = _AT_GOOD_MOMENTS if is_cheap or point is SavePoint.VALIDATION else 1.0
        cheapest = _COST * self._last_cost
        if cheapest > self.save_every and not self._has_said_stretched:
            self._has_said_stretched = True
            log.info("A save takes %.0f s: saving every %.0f s, so that it takes 5 %%", self._last_cost, cheapest)
        return time.monotonic() - self._last_save >= max(share * self.save_every, cheapest)

    def save(self, trainer: Trainer, point: SavePoint) -> str:
        """Save into the fit's series, and return the path. Collective: every rank must call it.

        Args:
            trainer: The trainer, at a moment at which it can be saved.
            point: Which moment it is.

        Raises:
            CheckpointError: The save failed. Older ones are unchanged.
        """
        assert self._choice is not None
        started = time.monotonic()
        step, epoch = int(trainer.global_step), int(trainer.current_epoch)
        if point is SavePoint.END:
            epoch = epochs_trained(self.namespace, trainer)
        self._number += 1
        stems = (f"step-{step}" if index == 1 else f"step-{step}-{index}" for index in range(1, self._number + 2))
        name = next(f"{stem}.ckpt" for stem in stems if f"{stem}.ckpt" not in self._names)
        record = CheckpointRecord(
            name=name,
            number=self._number,
            step=step,
            epoch=epoch,
            kind=point.value,
            world_size=trainer.world_size,
            strategy=shards_of(strategy_of(trainer)),
            save_id=new_save_id(),
            time=time.time(),
            job=self.identity.to_json(),
            model=self._model.to_json(),
        )
        self._point = point
        self._state = {
            "record": broadcast(trainer, record).to_json(),
            "directory": self.directory,
            "point": point.value,
            "epoch": epoch,
            "batches": int(trainer.fit_loop.epoch_loop.batch_progress.current.processed),
            "logged_step": int(logged_step(trainer)),
            "loaded_in": reload_epoch(trainer),
            "accumulate": int(trainer.accumulate_grad_batches),
            "should_stop": bool(trainer.should_stop),
            "criteria": dict(self._criteria),
            "data": describe_data(trainer.world_size, loaders_of(trainer)),
            "finders": self._finders.read(trainer),
            "pruning": PruningState.read(trainer),
            "ranks": gather_objects(trainer, rank_state(trainer, point)),
            "share": self._checkpoint_to_share(trainer, step),
            "optimizer_groups": _optimizer_groups(trainer),
        }
        path = self._choice.series.path(name)
        try:
            trainer.save_checkpoint(path, weights_only=False)
        finally:
            self._point, self._state = None, {}
        self._names.add(name)
        if trainer.local_rank == 0 and not trainer.is_global_zero and not is_remote(path):
            remove_replaced(self._choice.series.directory)
        self._last_save = time.monotonic()
        self._last_cost = self._last_save - started
        if trainer.is_global_zero:
            log.info("Saved %s (%s, %.2f s)", path, f"epoch {record.epoch}, step {step}", self._last_cost)
            if point is SavePoint.END and self._choice.series.number:
                self._choice.series.thin_out_earlier()
        return path

    def _checkpoint_to_share(self, trainer: Trainer, step: int) -> Optional[str]:
        """The checkpoint of another callback with the weights and optimizers of this step, or ``None``."""
        saved_at, sums = self._others_saved
        if saved_at != step:
            return None
        now = _sums(trainer.lightning_module)
        same = all_true(trainer, all(are_equal(each, now) for each in sums))
        path = broadcast(trainer, last_saved(trainer, step))
        return path if same else None

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: Dict[str, Any]) -> None:
        """Add to a save of the series what Lightning does not save; warn once of states that differ between ranks."""
        if self._compares_states:
            self._compares_states = False
            warn_of_own_states(trainer, checkpoint)
        if self._point is None:
            if self._has_trained and "optimizer_states" in checkpoint:
                step = int(trainer.global_step)
                earlier = self._others_saved[1] if self._others_saved[0] == step else []
                self._others_saved = step, [*earlier, _sums(pl_module)]
            return
        checkpoint[STATE_KEY] = self._state
        # Those of Lightning 1.5 are one too high.
        checkpoint.update(epoch=self._state["epoch"], global_step=self._state["record"]["step"])
        mark_point(checkpoint, self._point)

    # --- the end

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save what has been trained, before other callbacks change it."""
        save_points_of(self.namespace, trainer).stop()
        if self._choice is None or not self._has_trained:
            return
        finish_saves(trainer)
        self.save(trainer, SavePoint.END)
        self._weight_sums = _sums(pl_module)

    def _after_run(self, trainer: Trainer, pl_module: Any) -> None:
        """After all ``on_train_end`` hooks: record that the fit has ended, or let a fit that had ended end again."""
        assert self._choice is not None
        if self._replays:
            self._undo_skip()
            call_skipped_train_hooks(trainer)
            end_restart(trainer)
            trainer.should_stop = self._saved["should_stop"]
        elif not self._has_trained:
            return
        fit = self._choice.fit
        if self._replays and fit is not None and fit.ended:
            if fit.weights is not None:
                self._load_weights(trainer, pl_module, fit.weights)
            return
        # Callbacks that replace whole weights are refused where these are sharded.
        has_changed = not is_sharded(trainer) and not are_equal(_sums(pl_module), self._weight_sums)
        changed = any_true(trainer, has_changed)
        self._end_fit(trainer, pl_module, changed)

    def _end_fit(self, trainer: Trainer, pl_module: Any, changed: bool) -> None:
        assert self._choice is not None
        series = self._choice.series

        def write() -> None:
            if not trainer.is_global_zero:
                return
            weights = _write_weights(series, pl_module) if changed else None
            checkpoint = next((record.name for record in series.records()), None)
            series.write_fit(
                FitRecord(*self._identities, self._present, True, checkpoint, self._criteria, weights=weights)
            )

        raise_on_all_ranks(trainer, series.directory, write, "cannot be written ({})")

    def _load_weights(self, trainer: Trainer, pl_module: Any, weights: SavedFile) -> None:
        assert self._choice is not None
        import torch

        source = self._choice.source
        problem = self._files.obtain_files(trainer, source, weights.name, (weights,))
        if problem is not None:
            raise CheckpointError(
                f"The weights after the end of training in {source} cannot be used: {problem}.", hint=_FROM_SCRATCH
            )
        pl_module.load_state_dict(torch.load(self._files.path(source, weights.name), map_location="cpu"))
        self._files.close()

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Wait for pending saves, if training did not reach its end."""
        finish_saves(trainer)

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        """Wait for pending saves. Their errors are only logged, because training failed for another reason."""
        save_points_of(self.namespace, trainer).stop()
        finish_saves(trainer, failed=True)
        self._reset()

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore what was replaced."""
        if stage == "fit":
            self._files.close()
            self._given.close()
            resumed_from = self.resumed_from
            self._reset()
            self.resumed_from = resumed_from


def _sums(pl_module: Any) -> List[Any]:
    return weight_sums((*pl_module.parameters(), *pl_module.buffers()))


def _optimizer_groups(trainer: Trainer) -> List[List[Dict[str, Any]]]:
    """The learning rates and other values of the optimizers' groups, also of DeepSpeed's, which saves them itself."""
    return [
        [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
        for optimizer in trainer.optimizers
    ]


def _write_weights(series: Series, pl_module: Any) -> SavedFile:
    """Write the weights of a model that is not sharded."""
    import tempfile

    import torch

    with tempfile.TemporaryDirectory(prefix="lightning-sm-") as temporary:
        folder = temporary if is_remote(series.directory) else series.directory
        partial_path = os.path.join(folder, f".{_WEIGHTS}.new")
        torch.save(pl_module.state_dict(), partial_path)
        file = replace(SavedFile.read(folder, os.path.basename(partial_path)), name=_WEIGHTS)
        if is_remote(series.directory):
            upload_file(partial_path, series.path(_WEIGHTS))
        else:
            replace_atomically(partial_path, series.path(_WEIGHTS))
    return file


@contextmanager
def _loadable_here(trainer: Trainer, path: Any) -> Iterator[Any]:
    """Yield the path from which this rank loads the checkpoint of global rank 0. Every rank must call it."""
    given = GivenCopy()
    copy = given.fetch(trainer, path)
    if copy is None:
        with broadcast_missing_file(trainer, path) as found:
            complete_for_load(strategy_of(trainer))
            yield found
        return
    try:
        check_given(trainer, path, copy)
        complete_for_load(strategy_of(trainer))
        yield copy
        strategy_of(trainer).barrier("checkpoint loaded on every host")
    finally:
        given.close()
