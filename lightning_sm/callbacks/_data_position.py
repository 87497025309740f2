"""``DataPosition``: lets an interrupted run go on with the very batch and random numbers that were next."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional

from lightning_sm._lightning import Namespace
from lightning_sm._lightning._progress import (
    Moment,
    Place,
    batches_taken,
    go_on,
    heed_metrics,
    iterator_of,
    left_within_epoch,
    metrics_of,
    place_of,
    put_at,
    renew,
    set_metrics,
)
from lightning_sm._lightning._shims import resumes_within_epochs, strategy_of
from lightning_sm._lightning._train_loaders import around_batches, around_train_loaders
from lightning_sm._log import log
from lightning_sm._position._random_states import (
    random_states,
    set_random_states,
    states_from_plain,
    states_to_plain,
    torch_states,
)
from lightning_sm._position._resumable_sampler import sampler_of, unwrap, wrap
from lightning_sm._position._train_data import TrainData, changes, keeps_state, reason_against, train_data

if TYPE_CHECKING:
    from pytorch_lightning import Callback as _Base
else:
    _Base = object

__all__ = ["DataPositionMixin"]

_NEXT_EPOCH = "The checkpoint is from within an epoch. This Lightning goes on with the next one."
_NO_POSITION = "The checkpoint does not say which data of its epoch was next. The data starts anew."


class DataPositionMixin(_Base):
    """Save in every checkpoint where training is in its data, and go on there when ``fit`` is given the checkpoint.

    Lightning saves how many batches of an epoch have been trained, but starts the epoch's data at their beginning and
    saves no random numbers. With this callback a resumed run trains the batches that are left, in the order they had,
    each once, and with the random numbers that they would have met: its weights equal those of a run that was never
    interrupted, where the operations themselves are deterministic. It changes nothing about a run that is not resumed.

    The random numbers are those of global rank 0. They are set on each rank that was seeded alike, as
    ``seed_everything`` does; other ranks keep their own.

    What cannot be restored is said in a line of the log: a data set without an order of its own (``IterableDataset``)
    starts anew; with another world size or other batches the epoch starts anew. Random numbers that worker processes
    draw for the batches which are left do not follow those drawn before. A checkpoint that is written while a batch is
    being trained, as after an exception, has torch's random numbers of before the batch, and later ones of numpy and
    Python. Lightning 1.5 has no way to start within an
    epoch, and goes on with the next one. Loaders that keep their own state are Lightning's, which restores them.
    """

    namespace: Namespace

    def __init__(self) -> None:
        super().__init__()
        self._trainer: Any = None
        self._loaders: List[Any] = []
        self._undo: List[Callable[[], None]] = []
        self._saved: Dict[str, Any] = {}
        self._place: Optional[Place] = None
        self._iterator: Any = None
        self._seed = 0
        self._validated = True
        self._before: Dict[int, Dict[str, Any]] = {}
        self._after: Dict[str, Any] = {}

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
        self._undo = [
            around_train_loaders(self.namespace, trainer, self._prepare, self._ready),
            around_batches(trainer, self._advance, self._before_validation),
        ]

    def _prepare(self, loader: Any) -> None:
        if reason_against(loader) is None and not keeps_state(loader):
            wrap(loader)

    def _ready(self, loaders: List[Any]) -> None:
        self._loaders = loaders

    # --- saving

    def state_dict(self) -> Dict[str, Any]:
        """Tell where training is, without asking other ranks, as a checkpoint may be written by one rank alone."""
        if self._trainer is None or not self._loaders:
            return {}
        place = place_of(self._trainer, self._validated)
        return {
            "place": asdict(place),
            "data": asdict(self._data()),
            "seed": self._seed,
            "metrics": metrics_of(self._trainer),
            "random_states": states_to_plain(self._states_at(place)),
            "samplers": [None if sampler is None else sampler.start() for sampler in map(sampler_of, self._loaders)],
        }

    def _states_at(self, place: Place) -> Dict[str, Any]:
        if place.moment == Moment.AFTER_BATCH and self._trainer.validating:
            return self._after
        before = self._before.get(place.batch, {}) if place.moment == Moment.BEFORE_BATCH else {}
        return {**self._random_states(), **before}

    def _random_states(self) -> Dict[str, Any]:
        return random_states(self._on_cuda())

    def _on_cuda(self) -> bool:
        return bool(strategy_of(self._trainer).root_device.type == "cuda")

    def _data(self) -> TrainData:
        return train_data(self._trainer.world_size, self._loaders)

    # --- resuming

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Keep what the checkpoint says until the loops are there to be set."""
        self._saved = dict(state_dict)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the loops where the checkpoint was written."""
        if self._trainer is None or not self._saved:
            if trainer.is_global_zero and left_within_epoch(trainer):
                log.warning(_NEXT_EPOCH if self._trainer is None else _NO_POSITION)
            return
        place = Place(**self._saved["place"])
        changed = changes(TrainData(**self._saved["data"]), self._data())
        if place.moment != Moment.EPOCH_START:
            if trainer.is_global_zero:
                self._say(place, changed)
            if changed:
                place = Place(place.epoch, 0, Moment.EPOCH_START, logged_steps=place.logged_steps)
        self._place = place
        set_metrics(trainer, self._saved["metrics"], pl_module.device)
        put_at(trainer, place)

    def _say(self, place: Place, changed: str) -> None:
        where = f"epoch {place.epoch} after {place.batch} batches"
        if changed:
            log.warning("Epoch %d starts anew: the checkpoint is from %s, but %s.", place.epoch, where, changed)
            return
        log.info("Training goes on in %s.", where)
        reasons = [reason_against(loader) for loader in self._loaders if not keeps_state(loader)]
        for reason in filter(None, reasons):
            log.warning("The data starts at its beginning, in %s: %s.", where, reason)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Tell the samplers where to go on."""
        place = self._place
        if place is None:
            return
        self._iterator = iterator_of(trainer)
        if place.moment == Moment.EPOCH_START:
            self._set_random_states()
            return
        known = trainer.global_rank == 0 or self._seeded_alike()
        for sampler, start in zip(map(sampler_of, self._loaders), self._saved["samplers"]):
            if sampler is not None:
                sampler.resume(start if known else None, batches_taken(trainer, place.batch, len(sampler)))

    def _advance(self, data_fetcher: Any, train: Callable[[], None]) -> None:
        if self._place is not None and not self._take_up(self._place, data_fetcher):
            return
        batches = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
        if self._trainer.accumulate_grad_batches == 1:
            # Only a checkpoint that is written within a batch needs them; other than torch's cost more than they help.
            self._before = {batches: torch_states(self._on_cuda())}
        elif batches % self._trainer.accumulate_grad_batches == 0:
            self._before = {batches: self._random_states()}
        train()
        self._let_samplers_be()

    def _take_up(self, place: Place, data_fetcher: Any) -> bool:
        """Go on where the checkpoint was written, and tell whether the next batch is due."""
        self._place = None
        # Where Lightning has made the iterator before the epoch started, it has begun at the beginning.
        made_early = self._iterator is not None and iterator_of(self._trainer) is self._iterator
        self._iterator = None
        if made_early and not any(map(keeps_state, self._loaders)):
            renew(self._trainer, data_fetcher)
        if place.moment != Moment.EPOCH_START:
            self._set_random_states()
        return go_on(self._trainer, place)

    def _let_samplers_be(self) -> None:
        """Let the next iteration be a whole one."""
        for sampler in filter(None, map(sampler_of, self._loaders)):
            sampler.disarm()

    def _set_random_states(self) -> None:
        if self._seeded_alike():
            set_random_states(states_from_plain(self._saved["random_states"]))

    def _seeded_alike(self) -> bool:
        return bool(self._seed == self._saved["seed"])

    def _before_validation(self) -> None:
        self._validated = False
        self._after = self._random_states()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Remember that it is over; callbacks that write checkpoints come after this one."""
        self._validated = True

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Let schedulers that follow a metric see a resumed epoch."""
        if self._trainer is not None:
            if self._place is not None:
                # Lightning 1.x leaves an epoch whose last batch has been trained without asking for another.
                self._set_random_states()
                self._place = None
            self._let_samplers_be()
            heed_metrics(trainer)

    # --- the end

    def teardown(self, trainer: Any, pl_module: Any, stage: Optional[str] = None) -> None:
        """Leave the trainer and the data loaders as they were."""
        if stage == "fit":
            self._release()

    def _release(self) -> None:
        for undo in self._undo:
            undo()
        for loader in self._loaders:
            unwrap(loader)
        self._undo, self._loaders, self._trainer, self._place = [], [], None, None
