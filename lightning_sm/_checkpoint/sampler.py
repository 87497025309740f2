"""``ResumableSampler``: a sampler of a data loader that can start in the middle of an epoch, in the same order."""

import contextlib
import itertools
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from lightning_sm._checkpoint.rng_state import (
    counted,
    generators_in,
    numbers_in,
    random_states,
    read_generator,
    set_counted,
    set_generators,
    set_random_states,
    states_from_plain,
    states_to_plain,
)
from lightning_sm._checkpoint.train_data import keeps_state

__all__ = ["ResumableSampler", "sampler_of", "unwrap", "wrap"]

# The states of the process's generators ("process") and of those that the sampler holds ("own"), and its counters.
_State = Dict[str, Any]
# The states when the iterator was "made" and when it "began" to give.
_Start = Dict[str, _State]

# A sampler that draws as it goes is found out by the first few of its items.
_WATCHED = 3


class ResumableSampler:
    """Stands in for the sampler of a data loader, draws what it draws when it draws it, and remembers how it began.

    A sampler decides an epoch's order by what random number generators give it, some when ``iter`` is called, most at
    the first ``next``, and some by a number that counts their epochs. The states at both moments are kept. A resumed
    epoch sets them again for the length of these two calls, so that the sampler makes the same order, and then takes
    from it what has been trained, of which no data is loaded. The process's own random numbers go on as if nothing had
    been drawn.

    Everything else is the wrapped sampler's: its length, its attributes, ``set_epoch``.

    Args:
        sampler: The batch sampler, or the sampler of a loader that does not batch.
        others: Generators that the sampler leads to and that belong to the data set.
    """

    def __init__(self, sampler: Any, others: Mapping[str, Any] = {}) -> None:
        self.wrapped = sampler
        self.draws_as_it_goes = False
        self.asked = False
        self._others = others
        self._at_first = numbers_in(sampler)
        self._start: Optional[_Start] = None
        self._told: Tuple[Optional[_Start], Dict[str, Any]] = (None, {})
        self._resume: Optional[_Start] = None
        self._skip = 0

    def start(self) -> Optional[Dict[str, Any]]:
        """How the newest iteration began, as plain values, or None if none has."""
        if self._start is None:
            return None
        # It stays the same for a whole epoch.
        if self._told[0] is not self._start:
            self._told = self._start, {name: _to_plain(state) for name, state in self._start.items()}
        return self._told[1]

    def generators(self) -> Dict[str, Any]:
        """The generators that the sampler and those in it hold, such as the one given to a ``DataLoader``."""
        return generators_in(self.wrapped, but=self._others)

    def now(self) -> Dict[str, Any]:
        """What the sampler holds between two iterations, as plain values."""
        return self._own()

    def set(self, now: Mapping[str, Any]) -> None:
        """Put back what :meth:`now` told."""
        set_generators(self.generators(), now["own"])
        set_counted(self.wrapped, now["numbers"], self._at_first)

    def resume(self, start: Optional[Mapping[str, Any]], skip: int, draws_as_it_goes: bool = False) -> None:
        """Let the next iteration go on where another left off.

        Args:
            start: How that iteration began, or None if it is not known or was another rank's; then only the number
                counts.
            skip: How much of it has been used.
            draws_as_it_goes: Whether the random numbers of the items that are left are those of the process, then.
        """
        self._resume = {} if start is None else {name: _from_plain(state) for name, state in start.items()}
        self._skip = skip
        self.asked = False
        self.draws_as_it_goes = draws_as_it_goes
        # A checkpoint may be written before the first batch is asked for.
        self._start = self._resume or None

    def disarm(self) -> None:
        """Let further iterations be whole ones."""
        self._resume = None

    def __iter__(self) -> Iterator[Any]:
        resume = self._resume
        if not resume:
            self._start = {"made": self._read()}
            return self._walk(iter(self.wrapped), self._start["made"], resume)
        with self._for_a_moment(resume["made"]):
            iterator = iter(self.wrapped)
        return self._walk(iterator, resume["made"], resume)

    def _walk(self, iterator: Iterator[Any], made: _State, resume: Optional[_Start]) -> Iterator[Any]:
        began = resume["began"] if resume and "began" in resume else self._read()
        self._start = {"made": made, "began": began}
        self.asked = True
        if resume is None or (resume and "began" not in resume):
            yield from itertools.islice(iterator, 1)
            yield from self._watched(iterator)
        else:
            with self._for_a_moment(began):
                # Many a sampler draws only now, at the first of its items.
                for _ in itertools.islice(iterator, self._skip):
                    pass
                following = list(itertools.islice(iterator, 0 if self.draws_as_it_goes else 1))
            yield from following
        yield from iterator
        if resume is not None:
            # A loader that is shorter than the epoch begins anew within it.
            self.disarm()

    def _watched(self, iterator: Iterator[Any]) -> Iterator[Any]:
        """The next few items, and whether the sampler draws random numbers for them."""
        for _ in range(0 if self.draws_as_it_goes else _WATCHED):
            before = random_states()
            following = list(itertools.islice(iterator, 1))
            self.draws_as_it_goes |= not _equal(before, random_states())
            yield from following

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def _own(self) -> Dict[str, Any]:
        own = {path: read_generator(generator) for path, generator in self.generators().items()}
        return {"own": own, "numbers": counted(self.wrapped, self._at_first)}

    def _read(self) -> _State:
        return {"process": random_states(), **self._own()}

    @contextlib.contextmanager
    def _for_a_moment(self, state: _State) -> Iterator[None]:
        """Set the generators of the process, which are put back, and what the sampler holds, which goes on from it."""
        before = random_states()
        set_random_states(state["process"])
        self.set(state)
        try:
            yield
        finally:
            set_random_states(before)


def wrap(loader: Any, others: Mapping[str, Any] = {}) -> None:
    """Wrap the sampler from which a torch ``DataLoader`` takes what to load, in place, unless that is done.

    Args:
        loader: The loader.
        others: Generators that belong to its data set, to which the sampler may lead.
    """
    if sampler_of(loader) is None:
        # The loader itself refuses to have it set, lest the batch size no longer fits; here it is the same sampler.
        owner, name = _place(loader)
        object.__setattr__(owner, name, ResumableSampler(getattr(owner, name), others))


def unwrap(loader: Any) -> None:
    """Give a loader its own sampler back, if it was wrapped."""
    sampler = sampler_of(loader)
    if sampler is not None:
        object.__setattr__(*_place(loader), sampler.wrapped)


def sampler_of(loader: Any) -> Optional[ResumableSampler]:
    """Return what :func:`wrap` put into a loader, or None."""
    owner, name = _place(loader)
    sampler = getattr(owner, name, None)
    return sampler if isinstance(sampler, ResumableSampler) else None


def _place(loader: Any) -> Tuple[Any, str]:
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:
        return loader, "sampler"
    # A loader that keeps its own state needs its own batch sampler.
    return (batches, "sampler") if keeps_state(loader) else (loader, "batch_sampler")


def _to_plain(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {**state, "process": states_to_plain(state["process"])}


def _from_plain(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {**state, "process": states_from_plain(state["process"])}


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    import torch

    same = torch.equal(one["torch"], other["torch"]) and one["python"] == other["python"]
    if not same or "numpy" not in one:
        return bool(same)
    return one["numpy"][2] == other["numpy"][2] and bool((one["numpy"][1] == other["numpy"][1]).all())
