"""``ResumableSampler``: a sampler of a data loader that can start in the middle of an epoch, in the same order."""

import contextlib
import itertools
from typing import Any, Dict, Iterator, List, Mapping, Optional

from lightning_sm._position._random_states import random_states, set_random_states, states_from_plain, states_to_plain

__all__ = ["ResumableSampler", "sampler_of", "unwrap", "wrap"]

# The states of the process's generators ("process") and of those that the sampler holds ("own").
_State = Dict[str, Any]
# The states when the iterator was "made" and when it "began" to give.
_Start = Dict[str, _State]


class ResumableSampler:
    """Stands in for the sampler of a data loader, draws what it draws when it draws it, and remembers how it began.

    A sampler decides an epoch's order by what random number generators give it, some when ``iter`` is called, most at
    the first ``next``. The states at both moments are kept. A resumed epoch sets them again for the length of these
    two calls, so that the sampler makes the same order, and then takes from it what has been trained, of which no data
    is loaded. The process's own random numbers go on as if nothing had been drawn.

    Everything else is the wrapped sampler's: its length, its attributes, ``set_epoch``.

    Args:
        sampler: The batch sampler, or the sampler of a loader that does not batch.
    """

    def __init__(self, sampler: Any) -> None:
        self.wrapped = sampler
        self._start: Optional[_Start] = None
        self._resume: Optional[_Start] = None
        self._skip = 0

    def start(self) -> Optional[Dict[str, Any]]:
        """How the newest iteration began, as plain values, or None if none has."""
        return None if self._start is None else {name: _to_plain(state) for name, state in self._start.items()}

    def resume(self, start: Optional[Mapping[str, Any]], skip: int) -> None:
        """Let the next iteration go on where another left off.

        Args:
            start: How that iteration began, or None if it is not known or was another rank's; then only the number
                counts.
            skip: How much of it has been used.
        """
        self._resume = {} if start is None else {name: _from_plain(state) for name, state in start.items()}
        self._skip = skip
        # A checkpoint may be written before the first batch is asked for.
        self._start = self._resume or None

    def disarm(self) -> None:
        """Let further iterations be whole ones."""
        self._resume = None

    def __iter__(self) -> Iterator[Any]:
        resume = self._resume
        made = _read(self.wrapped)
        if not resume:
            return self._walk(iter(self.wrapped), made, resume)
        with _for_a_moment(self.wrapped, resume["made"]):
            iterator = iter(self.wrapped)
        return self._walk(iterator, resume["made"], resume)

    def _walk(self, iterator: Iterator[Any], made: _State, resume: Optional[_Start]) -> Iterator[Any]:
        began = resume["began"] if resume else _read(self.wrapped)
        self._start = {"made": made, "began": began}
        if resume is not None:
            with _for_a_moment(self.wrapped, began):
                # Many a sampler draws only now, at the first of its items.
                following = list(itertools.islice(iterator, self._skip, self._skip + 1))
            yield from following
        yield from iterator
        if resume is not None:
            # A loader that is shorter than the epoch begins anew within it.
            self.disarm()

    def __len__(self) -> int:
        return len(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)


def wrap(loader: Any) -> None:
    """Wrap the sampler from which a torch ``DataLoader`` takes what to load, in place, unless that is done."""
    if sampler_of(loader) is None:
        # The loader itself refuses to have it set, lest the batch size no longer fits; here it is the same sampler.
        object.__setattr__(loader, _attribute(loader), ResumableSampler(getattr(loader, _attribute(loader))))


def unwrap(loader: Any) -> None:
    """Give a loader its own sampler back, if it was wrapped."""
    sampler = sampler_of(loader)
    if sampler is not None:
        object.__setattr__(loader, _attribute(loader), sampler.wrapped)


def sampler_of(loader: Any) -> Optional[ResumableSampler]:
    """Return what :func:`wrap` put into a loader, or None."""
    sampler = getattr(loader, _attribute(loader), None)
    return sampler if isinstance(sampler, ResumableSampler) else None


def _attribute(loader: Any) -> str:
    return "sampler" if getattr(loader, "batch_sampler", None) is None else "batch_sampler"


def _read(sampler: Any) -> Dict[str, Any]:
    return {"process": random_states(), "own": [generator.get_state() for generator in _generators(sampler)]}


@contextlib.contextmanager
def _for_a_moment(sampler: Any, state: _State) -> Iterator[None]:
    """Set the generators of the process, which are put back, and those of the sampler, which go on from there."""
    before = random_states()
    set_random_states(state["process"])
    for generator, own in zip(_generators(sampler), state["own"]):
        generator.set_state(own)
    try:
        yield
    finally:
        set_random_states(before)


def _to_plain(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {"process": states_to_plain(state["process"]), "own": list(state["own"])}


def _from_plain(state: Mapping[str, Any]) -> Dict[str, Any]:
    return {"process": states_from_plain(state["process"]), "own": [own.cpu() for own in state["own"]]}


def _generators(sampler: Any) -> List[Any]:
    """The torch generators of a sampler and of those that it holds, such as the one given to a ``DataLoader``."""
    import torch

    found: List[Any] = []
    while sampler is not None:
        values = vars(sampler).values() if hasattr(sampler, "__dict__") else ()
        found += [value for value in values if isinstance(value, torch.Generator) and value not in found]
        sampler = getattr(sampler, "sampler", None)
    return found
