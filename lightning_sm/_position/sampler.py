"""``ResumableSampler``: resumes a data loader in the middle of an epoch, in the same order.

Also what the position in the training data depends on (``TrainData``), and which loaders have none to restore.
"""

import contextlib
import itertools
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._position.rng_state import (
    changed_counters,
    find_counters,
    find_generators,
    get_generator_state,
    get_rng_states,
    rng_states_from_plain,
    rng_states_to_plain,
    set_counters,
    set_generator_states,
    set_rng_states,
)

__all__ = [
    "ResumableSampler",
    "TrainData",
    "describe_changes",
    "describe_losses",
    "describe_train_data",
    "is_from_torchdata",
    "is_stateful",
    "resumable_sampler_of",
    "saves_order",
    "set_sampler_epoch",
    "unsupported_reason",
    "unwrap_sampler",
    "wrap_sampler",
]

# The global generators ("process"), and the generators ("generators") and counters of the sampler.
_State = Dict[str, Any]
# The states when the iterator was "created" and when its "first" item was requested.
_Start = Dict[str, _State]

# The number of items for which random numbers are compared to detect a sampler that draws them lazily.
_CHECKED_ITEMS = 3


class ResumableSampler:
    """Wraps the sampler of a data loader, and records the random states from which an epoch's order follows.

    Samplers draw an epoch's order from random number generators, some in ``iter()``, most at the first ``next()``, and
    some derive it from a counter of epochs. The states at both points are recorded. A resumed epoch sets them again
    during these two calls, so that the sampler produces the same order, and skips the items that have been trained
    without loading their data. The global random states are restored afterwards.

    Length, attributes and ``set_epoch`` are those of the wrapped sampler.

    Args:
        sampler: The batch sampler, or the sampler of a loader without batching.
        exclude: Generators that the sampler references and that belong to the data set.
    """

    def __init__(self, sampler: Any, exclude: Mapping[str, Any] = {}) -> None:
        self.wrapped = sampler
        self.draws_lazily = False
        self.has_started = False
        self._exclude = exclude
        self._initial_counters = find_counters(sampler)
        self._start: Optional[_Start] = None
        self._plain_start: Tuple[Optional[_Start], Dict[str, Any]] = (None, {})
        self._resume: Optional[_Start] = None
        self._skip = 0

    def start_state(self) -> Optional[Dict[str, Any]]:
        """Return the states at the start of the latest iteration as plain values; ``None`` if there was none."""
        if self._start is None:
            return None
        # It is the same for a whole epoch.
        if self._plain_start[0] is not self._start:
            self._plain_start = self._start, {name: _to_plain(state) for name, state in self._start.items()}
        return self._plain_start[1]

    def generators(self) -> Dict[str, Any]:
        """Return the generators that the sampler references, such as the ``generator`` of a ``DataLoader``."""
        return find_generators(self.wrapped, exclude=self._exclude)

    def state(self) -> Dict[str, Any]:
        """Return the sampler's own generators and counters as plain values."""
        generators = {path: get_generator_state(generator) for path, generator in self.generators().items()}
        return {"generators": generators, "counters": changed_counters(self.wrapped, self._initial_counters)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned."""
        set_generator_states(self.generators(), state["generators"])
        set_counters(self.wrapped, state["counters"], self._initial_counters)

    def resume(self, start: Optional[Mapping[str, Any]], skip: int, draws_lazily: bool = False) -> None:
        """Let the next iteration continue an earlier one.

        Args:
            start: The result of :meth:`start_state` for that iteration, or ``None`` if it is unknown or belongs to
                another rank; then the items are skipped in a new order.
            skip: The number of items to skip.
            draws_lazily: Whether the sampler draws random numbers for each item, which continue with the global state.
        """
        self._resume = {} if start is None else {name: _from_plain(state) for name, state in start.items()}
        self._skip = skip
        self.has_started = False
        self.draws_lazily = draws_lazily
        # A checkpoint may be written before the first batch is requested.
        self._start = self._resume or None

    def cancel_resume(self) -> None:
        """Let further iterations be complete ones."""
        self._resume = None

    def __iter__(self) -> Iterator[Any]:
        resume = self._resume
        if not resume:
            self._start = {"created": self._read()}
            return self._iterate(iter(self.wrapped), self._start["created"], resume)
        with self._temporary_state(resume["created"]):
            iterator = iter(self.wrapped)
        return self._iterate(iterator, resume["created"], resume)

    def _iterate(self, iterator: Iterator[Any], created: _State, resume: Optional[_Start]) -> Iterator[Any]:
        first = resume["first"] if resume and "first" in resume else self._read()
        self._start = {"created": created, "first": first}
        self.has_started = True
        if resume is None or (resume and "first" not in resume):
            yield from itertools.islice(iterator, 1)
            yield from self._detect_lazy_draws(iterator)
        else:
            with self._temporary_state(first):
                # Many samplers draw the order now, at the first item.
                for _ in itertools.islice(iterator, self._skip):
                    pass
                following = list(itertools.islice(iterator, 0 if self.draws_lazily else 1))
            yield from following
        yield from iterator
        if resume is not None:
            # A loader that is shorter than the epoch is iterated again within it.
            self.cancel_resume()

    def _detect_lazy_draws(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """Yield the next few items, and note whether the sampler draws random numbers for them."""
        for _ in range(0 if self.draws_lazily else _CHECKED_ITEMS):
            before = get_rng_states()
            following = list(itertools.islice(iterator, 1))
            self.draws_lazily |= not _are_equal(before, get_rng_states())
            yield from following

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def _read(self) -> _State:
        return {"process": get_rng_states(), **self.state()}

    @contextlib.contextmanager
    def _temporary_state(self, state: _State) -> Iterator[None]:
        """Set the global generators for the block only, and the sampler's own state, which continues from there."""
        before = get_rng_states()
        set_rng_states(state["process"])
        self.set_state(state)
        try:
            yield
        finally:
            set_rng_states(before)


def wrap_sampler(loader: Any, exclude: Mapping[str, Any] = {}) -> None:
    """Replace the sampler of a ``DataLoader`` by a :class:`ResumableSampler` around it, in place and once.

    Args:
        loader: The loader.
        exclude: Generators that belong to its data set and that the sampler may reference.
    """
    if resumable_sampler_of(loader) is None:
        # DataLoader.__setattr__ refuses a new sampler, because the batch size might not fit; here it is the same one.
        owner, name = _sampler_attribute(loader)
        object.__setattr__(owner, name, ResumableSampler(getattr(owner, name), exclude))


def unwrap_sampler(loader: Any) -> None:
    """Restore the original sampler of a loader, if it was replaced."""
    sampler = resumable_sampler_of(loader)
    if sampler is not None:
        object.__setattr__(*_sampler_attribute(loader), sampler.wrapped)


def resumable_sampler_of(loader: Any) -> Optional[ResumableSampler]:
    """Return the :class:`ResumableSampler` of a loader, or ``None``."""
    owner, name = _sampler_attribute(loader)
    sampler = getattr(owner, name, None)
    return sampler if isinstance(sampler, ResumableSampler) else None


def _sampler_attribute(loader: Any) -> Tuple[Any, str]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    if batch_sampler is None:
        return loader, "sampler"
    # A stateful loader needs its own class of batch sampler.
    return (batch_sampler, "sampler") if is_stateful(loader) else (loader, "batch_sampler")


def _to_plain(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {**state, "process": rng_states_to_plain(state["process"])}


def _from_plain(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {**state, "process": rng_states_from_plain(state["process"])}


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    import torch

    same = torch.equal(one["torch"], other["torch"]) and one["python"] == other["python"]
    if not same or "numpy" not in one:
        return bool(same)
    return one["numpy"][2] == other["numpy"][2] and bool((one["numpy"][1] == other["numpy"][1]).all())


@dataclass(frozen=True)
class TrainData:
    """The training data of one rank, as far as a position in it depends on it.

    Args:
        world_size: The number of ranks that share the data.
        batches: The number of batches of each loader; ``None`` if it has no length.
        batch_sizes: The batch size of each loader; ``None`` if it has a batch sampler of its own.
    """

    world_size: int
    batches: List[Optional[int]]
    batch_sizes: List[Optional[int]]


def describe_train_data(world_size: int, loaders: Sequence[Any]) -> TrainData:
    """Return the description of the training data.

    Args:
        world_size: The number of ranks.
        loaders: All loaders that the ``Trainer`` iterates over for training.
    """
    sizes = [getattr(loader, "batch_size", None) for loader in loaders]
    return TrainData(
        world_size=int(world_size),
        batches=[_length(loader) for loader in loaders],
        batch_sizes=[size if isinstance(size, int) else None for size in sizes],
    )


def describe_changes(saved: TrainData, now: TrainData) -> str:
    """Return why a position in ``saved`` is not valid in ``now``; empty if it is."""
    changes = []
    if saved.world_size != now.world_size:
        changes.append(f"its world_size was {saved.world_size} and is {now.world_size}")
    if saved.batch_sizes != now.batch_sizes:
        changes.append(f"its batch size was {_join(saved.batch_sizes)} and is {_join(now.batch_sizes)}")
    if saved.batches != now.batches:
        changes.append(f"an epoch had {_join(saved.batches)} batches per rank and has {_join(now.batches)}")
    return ", ".join(changes)


def is_stateful(loader: Any) -> bool:
    """Whether a loader saves its own position, as torchdata's ``StatefulDataLoader`` does."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def saves_order(loader: Any) -> bool:
    """Whether a stateful loader saves the order of its sampler, too.

    torchdata's saves its own samplers and those with a ``state_dict``. Of any other, such as Lightning's
    ``DistributedSamplerWrapper``, it saves only the number of items that were used.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", None)
    return (
        unsupported_reason(loader) is not None
        or not is_from_torchdata(batch_sampler)
        or is_from_torchdata(sampler)
        or callable(getattr(sampler, "state_dict", None))
    )


def is_from_torchdata(value: Any) -> bool:
    """Whether an object's class is torchdata's, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "torchdata"


def set_sampler_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a loader's samplers, as Lightning does when an epoch starts."""
    samplers = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    for sampler in samplers:
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def unsupported_reason(loader: Any) -> Optional[str]:
    """Return why the position in a loader cannot be restored, or ``None`` if it can."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is not a torch DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset, whose order cannot be reproduced"
    return None


def describe_losses(loader: Any, *, draws_lazily: bool) -> List[str]:
    """Return what cannot be restored of a loader within an epoch.

    Args:
        loader: The loader.
        draws_lazily: Whether its sampler draws random numbers for each item.
    """
    losses = []
    if getattr(loader, "num_workers", 0) > 0 and not is_stateful(loader):
        losses.append(
            f"random numbers that the {loader.num_workers} worker processes draw for {type(loader.dataset).__name__}, "
            "as for augmentation, restart (torchdata's StatefulDataLoader keeps a data set's state_dict)"
        )
    if draws_lazily:
        losses.append("the sampler draws for each item, so the order may differ (draw the whole order at once)")
    return losses


def _length(loader: Any) -> Optional[int]:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _join(values: Sequence[Optional[int]]) -> str:
    return " and ".join("unknown" if value is None else str(value) for value in values)
