"""``DataPosition``: resumes within an epoch, with the next batch and the same random numbers."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import gather
from lightning_sm._lightning.compat import resumes_within_epochs
from lightning_sm._lightning.loop_progress import (
    LoopPosition,
    ResumePoint,
    allow_missing_metrics,
    complete_previous_batch,
    early_iterator,
    enable_plateau_schedulers,
    read_position,
    restart_iterator,
    resume_loop,
    seek,
    was_saved_within_epoch,
)
from lightning_sm._lightning.results import set_metrics, set_results
from lightning_sm._lightning.train_loop_hooks import around_batches, around_epochs, around_saves, around_train_loaders
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm._position.rank_state import RankState, state_from_tensor, state_to_tensor
from lightning_sm._position.sampler import (
    TrainData,
    describe_changes,
    describe_losses,
    describe_train_data,
    is_stateful,
    set_sampler_epoch,
    unsupported_reason,
    unwrap_sampler,
)
from lightning_sm._progress.schedule import describe_schedules

__all__ = ["DataPositionMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


_NEXT_EPOCH = "The checkpoint was saved within an epoch; this version of Lightning resumes with the next epoch."
_NO_POSITION = "The checkpoint has no position in the training data. The data of its epoch starts at the beginning."
_ONE_RANK = (
    "The checkpoint was saved by one rank only: it has no random states of other ranks, and no metrics of its epoch."
)


class DataPositionMixin(_Base):
    """Save the position in the training data in every checkpoint, and resume there when ``fit`` loads the checkpoint.

    Lightning saves how many batches of an epoch have been trained, but starts the epoch's data at the beginning, and
    saves no random states and no partial sums of logged metrics. With this callback a resumed run trains the remaining
    batches of the epoch in the same order, each once, with the random numbers and logged metrics of an uninterrupted
    run: the final weights are equal where the operations themselves are deterministic. A run that is not resumed is not
    affected.

    Each rank's state is gathered when all ranks save: the global generators of Python, numpy, torch and CUDA, the
    generators and epoch counters that samplers, data sets and collate functions reference, and logged metrics. It is a
    part of the checkpoint (about 26 kB per rank); no other file or environment variable is read.

    What cannot be restored is logged as a warning:

    - An ``IterableDataset`` has no order to restore; its data starts at the beginning.
    - With another world size, batch size or number of batches, the epoch is restarted.
    - Random numbers that worker processes draw, as for augmentation, restart; so may the order of a sampler that
      draws random numbers for each item.
    - A checkpoint written by one rank only, or while a batch is being trained (after an exception), lacks the states of
      other ranks, or has the random states of Python and numpy from within the batch.
    - Lightning 1.5 cannot resume within an epoch, and continues with the next one.

    Stateful loaders, such as torchdata's ``StatefulDataLoader``, are restored by Lightning (2.2 and later).

    Source: ``fit_loop.py`` and ``training_epoch_loop.py`` in ``lightning/pytorch/loops``.

    Example::

        >>> from lightning_sm.callbacks import DataPosition
        >>> position = DataPosition()
        >>> trainer = Trainer(callbacks=[position])  # doctest: +SKIP
        >>> trainer.fit(model, ckpt_path="last.ckpt")  # doctest: +SKIP
    """

    namespace: Namespace

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Any = None
        self._loaders: List[Any] = []
        self._rank: Any = None
        self._undo: List[Callable[[], None]] = []
        self._saved: Dict[str, Any] = {}
        self._state: Dict[str, Any] = {}
        self._position: Optional[LoopPosition] = None
        self._iterator: Any = None
        self._within_epoch = False
        self._seed = 0
        self._has_validated = True
        self._state_before_batch: Dict[int, Dict[str, Any]] = {}
        self._state_before_validation: Dict[str, Any] = {}
        self._gathered: List[Any] = []
        self._buffers: Dict[str, Any] = {}
        self._restore_logging: Callable[[], Any] = dict
        self._restore_strict: Callable[[], Any] = dict

    def setup(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Install the hooks around data loaders, epochs, batches and saves."""
        import torch

        if stage != "fit":
            return
        self._release()
        # Lightning calls load_state_dict after this; earlier calls were for a validation or a test.
        self._saved = {}
        self._seed = torch.initial_seed()
        if not resumes_within_epochs(self.namespace):
            return
        self._trainer = trainer
        self._rank = RankState(self.namespace, trainer)
        self._undo = [
            around_train_loaders(self.namespace, trainer, self._prepare_loader, self._set_loaders),
            around_batches(trainer, self._advance, self._before_validation),
            around_epochs(trainer, self._before_epoch, self._before_iterator, self._after_iterator),
            around_saves(self.namespace, trainer, self._gather, self._drop_gathered),
        ]

    def _prepare_loader(self, loader: Any) -> None:
        if "position" not in self._saved or self._state:
            self._rank.prepare_loader(loader, None)
            return
        # Lightning restores a stateful loader before fit starts, and before it calls set_epoch.
        position, state = LoopPosition.from_dict(self._saved["position"]), self._read_state()
        within_epoch = self._is_within_epoch(position, state)
        self._rank.prepare_loader(loader, state if within_epoch and self._is_own(state) else None)
        if is_stateful(loader):
            set_sampler_epoch(loader, position.epoch)

    def _set_loaders(self, loaders: List[Any]) -> None:
        self._loaders = loaders
        self._rank.set_loaders(loaders)

    def state_dict(self) -> Dict[str, Any]:
        """Return the position and the states of all ranks, or of this rank if it saves alone."""
        if self._trainer is None or not self._loaders:
            return {}
        position = read_position(self._trainer, self._has_validated)
        states = self._gathered or [self._encode_state(position)]
        ranks = range(len(states)) if self._gathered else [self._trainer.global_rank]
        return {"position": position.to_dict(), "data": asdict(self._data()), "ranks": dict(zip(ranks, states))}

    def _gather(self) -> None:
        if self._loaders:
            # This property reduces the epoch's metrics over all ranks, so all of them must read it now.
            self._trainer.callback_metrics  # noqa: B018
            state = self._encode_state(read_position(self._trainer, self._has_validated))
            self._gathered = gather(self._trainer, state)

    def _drop_gathered(self) -> None:
        self._gathered = []

    def _encode_state(self, position: LoopPosition) -> Any:
        state = self._rank.state(position)
        if position.resume_point == ResumePoint.AFTER_BATCH and self._trainer.validating:
            state = self._state_before_validation
        elif position.resume_point == ResumePoint.BEFORE_BATCH:
            before = self._state_before_batch.get(position.batch, {})
            state = {**state, **before, "rng_states": {**state["rng_states"], **before.get("rng_states", {})}}
        return state_to_tensor({**state, "seed": self._seed})

    def _data(self) -> TrainData:
        return describe_train_data(self._trainer.world_size, self._loaders)

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Keep the saved state until the loops exist."""
        self._saved = dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Set the loops to the saved position."""
        if self._trainer is None or "position" not in self._saved:
            if trainer.is_global_zero and was_saved_within_epoch(trainer):
                log.warning(_NEXT_EPOCH if self._trainer is None else _NO_POSITION)
            return
        position = LoopPosition.from_dict(self._saved["position"])
        changes = describe_changes(TrainData(**self._saved["data"]), self._data())
        self._state = self._read_state()
        if len(self._saved["ranks"]) < trainer.world_size:
            # A rank that alone has results would wait for the others in the reduction at the epoch's end.
            self._state.update(results=[], metric_states={})
        if position.resume_point != ResumePoint.EPOCH_START:
            if trainer.is_global_zero:
                self._log_resume(position, changes)
            if changes:
                start = ResumePoint.EPOCH_START
                position = LoopPosition(position.epoch, 0, start, logged_steps=position.logged_steps)
        if changes and trainer.is_global_zero:
            for line in describe_schedules(trainer, position.epoch):
                log.warning("%s", line)
        self._position = position
        set_metrics(trainer, self._state["metrics"], pl_module.device)
        seek(trainer, position)

    def _read_state(self) -> Dict[str, Any]:
        ranks = self._saved["ranks"]
        return state_from_tensor(ranks.get(self._trainer.global_rank, next(iter(ranks.values()))))

    def _log_resume(self, position: LoopPosition, changes: str) -> None:
        where = f"epoch {position.epoch} after {position.batch} batches"
        if changes:
            log.warning("Restarting epoch %d: the checkpoint is from %s, but %s.", position.epoch, where, changes)
            return
        log.info("Resuming within an epoch: %s.", where)
        for loader, sampler in zip(self._loaders, self._state["samplers"]):
            reason = None if is_stateful(loader) else unsupported_reason(loader)
            if reason is not None:
                log.warning("The data starts at its beginning, in %s: %s.", where, reason)
            for loss in describe_losses(loader, draws_lazily=bool(sampler and sampler["draws_lazily"])):
                log.warning("Not restored, in %s: %s.", where, loss)
        if len(self._saved["ranks"]) < self._trainer.world_size:
            log.warning(_ONE_RANK)

    def _before_epoch(self) -> None:
        """Restore the state at the start of an epoch that is trained from its beginning."""
        position = self._position
        if position is None:
            self._rank.find_generators()
            return
        self._within_epoch = self._is_within_epoch(position, self._state)
        if self._within_epoch and position.last_batch:
            # StochasticWeightAveraging resets batch norm statistics at the start of the epoch that recomputes them.
            buffers = self._trainer.lightning_module.named_buffers()
            self._buffers = {name: buffer.clone() for name, buffer in buffers}
        if not self._within_epoch:
            self._rank.restore_metrics(self._state)
            if self._is_own(self._state):
                self._rank.restore_samplers(self._state)
            self._restore_rng()

    def _is_within_epoch(self, position: LoopPosition, state: Dict[str, Any]) -> bool:
        # Newer versions of Lightning create the first epoch's iterator before the epoch starts.
        at_start = position.resume_point == ResumePoint.EPOCH_START
        return not at_start or (position.epoch == 0 and self._rank.has_started(state))

    def _before_iterator(self) -> None:
        """Let the samplers resume."""
        if self._position is None:
            return
        self._iterator = early_iterator(self._trainer)
        if self._within_epoch:
            self._rank.resume_samplers(self._state, self._position, is_own=self._is_own(self._state))

    def _after_iterator(self, data_fetcher: Any) -> None:
        """Restore the remaining state before the first batch is fetched."""
        position = self._position
        if position is None:
            return
        for name, buffer in self._trainer.lightning_module.named_buffers():
            if name in self._buffers:
                buffer.copy_(self._buffers[name])
        self._buffers = {}
        # An iterator that Lightning has created before the epoch starts at the beginning of the data.
        is_early = self._iterator is not None and early_iterator(self._trainer) is self._iterator
        self._iterator = None
        at_start = position.resume_point == ResumePoint.EPOCH_START
        # Within an epoch a stateful loader's iterator is at its position already.
        if is_early and (at_start or not any(map(is_stateful, self._loaders))):
            restart_iterator(self._trainer, data_fetcher)
        if self._within_epoch:
            if self._is_own(self._state):
                self._rank.restore_samplers(self._state, only_not_started=True)
            self._rank.restore_metrics(self._state)
            if self._state["results"]:
                self._restore_logging = set_results(self._trainer, self._state["results"])
            self._restore_rng()
        complete_previous_batch(self._trainer, position)

    def _advance(self, data_fetcher: Any, train: Callable[[], None]) -> None:
        position, self._position = self._position, None
        self._restore_strict()
        if position is not None and not resume_loop(self._trainer, position):
            self._restore_strict = allow_missing_metrics(self._trainer)
            return
        batches = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if batches > 0 and self._trainer.accumulate_grad_batches == 1:
            # Needed only for a checkpoint written within a batch, so the slower states are not read.
            self._state_before_batch = {batches: self._rank.torch_rng_states()}
        elif batches % self._trainer.accumulate_grad_batches == 0:
            self._state_before_batch = {
                batches: self._rank.state(read_position(self._trainer, self._has_validated)),
            }
        train()
        self._rank.cancel_resume()

    def _restore_rng(self) -> None:
        if self._seed == self._state["seed"]:
            self._rank.restore_rng(self._state, within_epoch=self._within_epoch)

    def _is_own(self, state: Dict[str, Any]) -> bool:
        """Whether the saved state of the samplers is valid for this rank."""
        return self._trainer.global_rank in self._saved["ranks"] or self._seed == state["seed"]

    def _before_validation(self) -> None:
        self._has_validated = False
        if self._loaders:
            self._state_before_validation = self._rank.state(read_position(self._trainer, validated=False))

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Note that the validation has ended; checkpoint callbacks run after this one."""
        self._has_validated = True

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Let ``ReduceLROnPlateau`` schedulers be stepped after a resumed epoch."""
        if self._trainer is not None:
            # Lightning 1.x ends an epoch whose last batch has been trained without requesting another.
            self._position = None
            self._rank.cancel_resume()
            self._restore_logging()
            enable_plateau_schedulers(trainer)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: Optional[str] = None) -> None:
        """Restore the trainer's methods and the loaders' samplers."""
        if stage == "fit":
            self._release()

    def _release(self) -> None:
        for undo in (*self._undo, self._restore_logging, self._restore_strict):
            undo()
        for loader in self._loaders:
            unwrap_sampler(loader)
        self._undo, self._loaders, self._trainer, self._position = [], [], None, None
        self._state, self._buffers = {}, {}
        self._state_before_batch, self._state_before_validation = {}, {}
