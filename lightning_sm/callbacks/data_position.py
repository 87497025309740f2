"""``DataPosition``: lets an interrupted run go on with the very batch and random numbers that were next."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from lightning_sm._checkpoint.rank_state import RankState, from_bytes, to_bytes
from lightning_sm._checkpoint.sampler import unwrap
from lightning_sm._checkpoint.train_data import (
    TrainData,
    changes,
    keeps_state,
    losses,
    reason_against,
    set_epoch,
    train_data,
)
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
from lightning_sm._logging import log

__all__ = ["DataPositionMixin"]

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object


_NEXT_EPOCH = "The checkpoint is from within an epoch. This Lightning goes on with the next one."
_ALONE = "other ranks' random numbers and what had been logged in this epoch are not in it"
_NO_POSITION = "The checkpoint does not say which data of its epoch was next. The data starts anew."


class DataPositionMixin(_Base):
    """Save in every checkpoint where training is in its data, and go on there when ``fit`` is given the checkpoint.

    Lightning saves how many batches of an epoch have been trained, but starts the epoch's data at their beginning and
    saves no random numbers and no sums of what is logged. With this callback a resumed run trains the batches that are
    left, in the order they had, each once, and with the random numbers that they would have met, and its epoch's
    metrics are those of the whole epoch: its weights equal those of a run that was never interrupted, where the
    operations themselves are deterministic. It changes nothing about a run that is not resumed.

    Each rank's state is gathered when all ranks save. Random numbers are set on each rank that is seeded as it was.
    Generators of torch, numpy and Python that samplers, data sets and collate functions hold go on, too, and so do
    numbers by which samplers and loaders count their epochs.

    What cannot be restored is said in a line of the log: a data set without an order of its own (``IterableDataset``)
    starts anew; with another world size or other batches the epoch starts anew. Random numbers that worker processes
    draw for the batches which are left do not follow those drawn before, and neither may the order of a sampler that
    draws while the epoch goes on. A checkpoint that is written while a batch is being trained, as after an exception,
    has torch's random numbers of before the batch, and later ones of numpy and Python; one that a rank writes alone
    has nothing of the others. Lightning 1.5 has no way to start within an epoch, and goes on with the next one.
    Loaders that keep their own state are Lightning's, which restores them.
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
        self._begun = False
        self._seed = 0
        self._validated = True
        self._before: Dict[int, Dict[str, Any]] = {}
        self._after: Dict[str, Any] = {}
        self._gathered: List[Any] = []
        self._computed: Dict[str, Any] = {}
        self._log_as_ever: Callable[[], Any] = dict
        self._strict_again: Callable[[], Any] = dict

    def setup(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Take part in the making of the training data."""
        import torch

        if stage != "fit":
            return
        self._release()
        # A checkpoint is loaded after this; an earlier one was for a validation or a test.
        self._saved = {}
        self._seed = torch.initial_seed()
        if not resumes_within_epochs(self.namespace):
            return
        self._trainer = trainer
        self._rank = RankState(self.namespace, trainer)
        self._undo = [
            around_train_loaders(self.namespace, trainer, self._prepare, self._ready),
            around_batches(trainer, self._advance, self._before_validation),
            around_epochs(trainer, self._before_epoch, self._before_iterator, self._begin),
            around_saves(self.namespace, trainer, self._gather, self._gathered_no_more),
        ]

    def _prepare(self, loader: Any) -> None:
        if "ranks" not in self._saved or self._state:
            self._rank.prepare(loader, None)
            return
        # Lightning lets a loader that keeps its state go on before a fit starts, and before it tells the epoch.
        position, state = LoopPosition.from_plain(self._saved["place"]), self._read()
        self._rank.prepare(loader, state if self._has_begun(position, state) and self._known(state) else None)
        if keeps_state(loader):
            set_epoch(loader, position.epoch)

    def _ready(self, loaders: List[Any]) -> None:
        self._loaders = loaders
        self._rank.watch(loaders)

    # --- saving

    def state_dict(self) -> Dict[str, Any]:
        """Tell where training is; what other ranks have to add was gathered before, if all of them save."""
        if self._trainer is None or not self._loaders:
            return {}
        position = read_position(self._trainer, self._validated)
        states = self._gathered or [self._own(position)]
        ranks = range(len(states)) if self._gathered else [self._trainer.global_rank]
        return {"place": position.as_plain(), "data": asdict(self._data()), "ranks": dict(zip(ranks, states))}

    def _gather(self) -> None:
        if self._loaders:
            # What callbacks see at the end of an epoch may be a mean over all ranks, which they make when asked.
            self._trainer.callback_metrics  # noqa: B018
            self._gathered = gather(self._trainer, self._own(read_position(self._trainer, self._validated)))

    def _gathered_no_more(self) -> None:
        self._gathered = []

    def _own(self, position: LoopPosition) -> Any:
        state = self._rank.now(position)
        if position.resume_point == ResumePoint.AFTER_BATCH and self._trainer.validating:
            state = self._after
        elif position.resume_point == ResumePoint.BEFORE_BATCH:
            before = self._before.get(position.batch, {})
            state = {**state, **before, "random_states": {**state["random_states"], **before.get("random_states", {})}}
        return to_bytes({**state, "seed": self._seed})

    def _data(self) -> TrainData:
        return train_data(self._trainer.world_size, self._loaders)

    # --- resuming

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Keep what the checkpoint says until the loops are there to be set."""
        self._saved = dict(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the loops where the checkpoint was written."""
        if self._trainer is None or "ranks" not in self._saved:
            if trainer.is_global_zero and was_saved_within_epoch(trainer):
                log.warning(_NEXT_EPOCH if self._trainer is None else _NO_POSITION)
            return
        position = LoopPosition.from_plain(self._saved["place"])
        changed = changes(TrainData(**self._saved["data"]), self._data())
        self._state = self._read()
        if len(self._saved["ranks"]) < trainer.world_size:
            # Results that one rank alone has would let it wait for the others at the epoch's end.
            self._state.update(results=[], metric_states={})
        if position.resume_point != ResumePoint.EPOCH_START:
            if trainer.is_global_zero:
                self._say(position, changed)
            if changed:
                position = LoopPosition(position.epoch, 0, ResumePoint.EPOCH_START, logged_steps=position.logged_steps)
        self._position = position
        set_metrics(trainer, self._state["metrics"], pl_module.device)
        seek(trainer, position)

    def _read(self) -> Dict[str, Any]:
        ranks = self._saved["ranks"]
        return from_bytes(ranks.get(self._trainer.global_rank, next(iter(ranks.values()))))

    def _say(self, position: LoopPosition, changed: str) -> None:
        where = f"epoch {position.epoch} after {position.batch} batches"
        if changed:
            log.warning("Epoch %d starts anew: the checkpoint is from %s, but %s.", position.epoch, where, changed)
            return
        log.info("Training goes on in %s.", where)
        for loader, sampler in zip(self._loaders, self._state["samplers"]):
            reason = None if keeps_state(loader) else reason_against(loader)
            if reason is not None:
                log.warning("The data starts at its beginning, in %s: %s.", where, reason)
            for loss in losses(loader, draws_as_it_goes=bool(sampler and sampler["draws_as_it_goes"])):
                log.warning("Not as without the interruption, in %s: %s.", where, loss)
        if len(self._saved["ranks"]) < self._trainer.world_size:
            log.warning("The checkpoint was written by one rank alone: %s.", _ALONE)

    def _before_epoch(self) -> None:
        """Set what an epoch that is trained from its beginning meets at first."""
        position = self._position
        if position is None:
            self._rank.find()
            return
        self._begun = self._has_begun(position, self._state)
        if self._begun and position.last_batch:
            # Lightning's SWA sets batch norm's statistics to zero where the epoch begins that computes them.
            buffers = self._trainer.lightning_module.named_buffers()
            self._computed = {name: buffer.clone() for name, buffer in buffers}
        if not self._begun:
            self._rank.set_logged(self._state)
            if self._known(self._state):
                self._rank.set_samplers(self._state)
            self._set_random_numbers()

    def _has_begun(self, position: LoopPosition, state: Dict[str, Any]) -> bool:
        # Newer Lightnings have made the first epoch's iterator already.
        return position.resume_point != ResumePoint.EPOCH_START or (position.epoch == 0 and self._rank.has_begun(state))

    def _before_iterator(self) -> None:
        """Tell the samplers where to go on."""
        position = self._position
        if position is None:
            return
        self._iterator = early_iterator(self._trainer)
        if self._begun:
            self._rank.resume_samplers(self._state, position, known=self._known(self._state))

    def _begin(self, data_fetcher: Any) -> None:
        """Let all that is to come meet what it would have met."""
        position = self._position
        if position is None:
            return
        for name, buffer in self._trainer.lightning_module.named_buffers():
            if name in self._computed:
                buffer.copy_(self._computed[name])
        self._computed = {}
        # Where Lightning has made the iterator before the epoch started, it has begun at the beginning.
        made_early = self._iterator is not None and early_iterator(self._trainer) is self._iterator
        self._iterator = None
        # Within an epoch a loader that keeps its state has gone on with it.
        if made_early and (
            position.resume_point == ResumePoint.EPOCH_START or not any(map(keeps_state, self._loaders))
        ):
            restart_iterator(self._trainer, data_fetcher)
        if self._begun:
            if self._known(self._state):
                self._rank.set_samplers(self._state, only_unasked=True)
            self._rank.set_logged(self._state)
            if self._state["results"]:
                self._log_as_ever = set_results(self._trainer, self._state["results"])
            self._set_random_numbers()
        complete_previous_batch(self._trainer, position)

    def _advance(self, data_fetcher: Any, train: Callable[[], None]) -> None:
        position, self._position = self._position, None
        self._strict_again()
        if position is not None and not resume_loop(self._trainer, position):
            self._strict_again = allow_missing_metrics(self._trainer)
            return
        batches = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if batches > 0 and self._trainer.accumulate_grad_batches == 1:
            # Only a checkpoint that is written within a batch needs them; other than torch's cost more than they help.
            self._before = {batches: self._rank.torch_now()}
        elif batches % self._trainer.accumulate_grad_batches == 0:
            self._before = {batches: self._rank.now(read_position(self._trainer, self._validated))}
        train()
        self._rank.disarm()

    def _set_random_numbers(self) -> None:
        if self._seed == self._state["seed"]:
            self._rank.set_random_numbers(self._state, begun=self._begun)

    def _known(self, state: Dict[str, Any]) -> bool:
        """Whether what is known of the samplers is this rank's."""
        return self._trainer.global_rank in self._saved["ranks"] or self._seed == state["seed"]

    def _before_validation(self) -> None:
        self._validated = False
        if self._loaders:
            self._after = self._rank.now(read_position(self._trainer, validated=False))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember that it is over; callbacks that write checkpoints come after this one."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Let schedulers that follow a metric see a resumed epoch."""
        if self._trainer is not None:
            # Lightning 1.x leaves an epoch whose last batch has been trained without asking for another.
            self._position = None
            self._rank.disarm()
            self._log_as_ever()
            enable_plateau_schedulers(trainer)

    # --- the end

    def teardown(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Leave the trainer and the data loaders as they were."""
        if stage == "fit":
            self._release()

    def _release(self) -> None:
        for undo in (*self._undo, self._log_as_ever, self._strict_again):
            undo()
        for loader in self._loaders:
            unwrap(loader)
        self._undo, self._loaders, self._trainer, self._position = [], [], None, None
        self._state, self._before, self._after, self._computed = {}, {}, {}, {}
