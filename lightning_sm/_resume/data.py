"""The position in the training data: samplers that continue an epoch, and what tells whether the data is the same."""

import itertools
import weakref
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.stand_in import StandIn, iterated_by
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._resume.data_values import (
    changed_data_set_values,
    data_set_values,
    get_sampler_state,
    sampler_values,
    set_data_set_values,
    set_sampler_state,
)
from lightning_sm._resume.random_state import get_process_state, keep_process_state, set_process_state
from lightning_sm._resume.values import changed_values

__all__ = [
    "IteratedLoader",
    "ResumableSampler",
    "describe_changes",
    "describe_data",
    "describe_losses",
    "has_repeated",
    "is_ordered",
    "is_stateful",
    "prepare_loader",
    "release_loader",
    "sampler_of",
    "set_sampler_epoch",
]


class ResumableSampler:
    """A sampler or batch sampler that notes from which random state an epoch's order follows, and can continue it.

    Args:
        inner: The sampler.
        loader: The loader whose sampler it is.
        trained_epoch: Returns the epoch that is trained; ``None`` in a validation, which may have the same loader.
    """

    def __init__(self, inner: Any, loader: Any, trained_epoch: Callable[[], Optional[int]]) -> None:
        self.inner = inner
        self._loader, self._trained_epoch = loader, trained_epoch
        self._start: Optional[Dict[str, Any]] = None
        self._drawn, self._is_over = 0, False
        # The epoch, and how many the whole iterations before this one have drawn in it.
        self._epoch: Optional[int] = None
        self._past = 0
        self._resumed: Optional[Mapping[str, Any]] = None
        self._skip = 0
        # What the samplers hold, before training changes it. What they draw from is saved in any case: another attempt
        # may begin with another seed.
        drawn = get_sampler_state(loader)
        self._before = {path: each for path, each in sampler_values(loader).items() if path not in drawn}

    def state(self) -> Dict[str, Any]:
        """Return from where the current epoch's order follows, and the state of the loader and its samplers now.

        Worker processes are asked for batches ahead, so more may have been drawn than were trained.
        """
        now, lost = self._samplers()
        counts = {"past": self._past, "drawn": self._drawn, "is_over": self._is_over}
        return {"start": self._start, "now": now, "lost": lost, **counts}

    def resume(self, state: Mapping[str, Any], batches: int, *, repeats: bool) -> None:
        """Let the next iteration continue the epoch in which :meth:`state` was called.

        Args:
            state: What it returned.
            batches: How many batches of the epoch have been trained.
            repeats: Whether they are those of several iterations, if there were more than one.
        """
        if state["start"] is not None:
            length = _length(self.inner)
            self._skip = min(batches - state["past"] * repeats, state["drawn"] if length is None else length)
            if is_stateful(self._loader):  # which skips by itself
                self._skip = 0
            self._resumed = state

    def forget(self) -> Optional[Mapping[str, Any]]:
        """Let the next iteration be a whole one, and return the state that it would have continued."""
        resumed, self._resumed = self._resumed, None
        return resumed

    def __iter__(self) -> Iterator[Any]:
        epoch = self._trained_epoch()
        return iter(self.inner) if epoch is None else self._iterate(epoch)

    def _iterate(self, epoch: int) -> Iterator[Any]:
        resumed = self.forget()
        self._past = self._past + self._drawn if self._is_over and epoch == self._epoch else 0
        self._epoch, self._drawn, self._is_over = epoch, 0, False
        if resumed is None:
            self._start = {"process": get_process_state(), "sampler": self._samplers()[0]}
            yield from self._count(iter(self.inner))
            return
        self._start = resumed["start"]
        with keep_process_state():
            set_process_state(resumed["start"]["process"])
            set_sampler_state(self._loader, resumed["start"]["sampler"])
            iterator = iter(self.inner)
            end = None if resumed["is_over"] else max(self._skip, resumed["drawn"])
            ahead = list(itertools.islice(iterator, self._skip, end))
            set_sampler_state(self._loader, resumed["now"])
        self._past, self._drawn = resumed["past"], self._skip
        yield from self._count(itertools.chain(ahead, iterator))

    def _count(self, items: Iterator[Any]) -> Iterator[Any]:
        for item in items:
            self._drawn += 1
            yield item
        self._is_over = True

    def _samplers(self) -> Tuple[Dict[str, Any], Dict[str, str]]:
        return changed_values(self._before, sampler_values(self._loader))


class _Batches:
    """Tells a loader when it is over. A copy has none left, as Lightning copies no iterator of torch's loaders."""

    def __init__(self, loader: "IteratedLoader", batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._loader.is_over = True
            raise

    def __reduce__(self) -> Any:
        return iter, ((),)


class IteratedLoader:
    """Iterates a loader, notes from what state it does so in each epoch, and iterates it from that state again.

    What is read again is then the same: the process and the loader have the random states, and the data sets the
    attributes, from which an order, the seeds of worker processes and augmentation follow.

    Args:
        loader: The loader.
        trainer: The trainer.
        waits: Returns whether the fit is still to be restored, so that nothing must be read.
    """

    def __init__(self, loader: Any, trainer: Trainer, waits: Callable[[], bool]) -> None:
        self.inner = loader
        self._trainer, self._waits = trainer, waits
        self._before = data_set_values(loader)
        self._epoch = -1
        #: Whether the last iteration has come to its end.
        self.is_over = False
        self._resumed: Optional[Mapping[str, Any]] = None
        self._undo_lazy: Callable[[], Any] = dict
        # Weak, so that worker processes end with the iteration.
        self._batches: Callable[[], Any] = dict
        #: The random states of the process and the loader when the epoch's iteration began, and what had changed of
        #: data sets by then.
        self.start: Dict[str, Any] = {}

    def resume(self, start: Mapping[str, Any]) -> None:
        """Let the next iteration begin from what :attr:`start` was. A state of the loader's own is loaded after it."""
        # Persistent worker processes have the data sets of the fit's start.
        data = {} if getattr(self.inner, "persistent_workers", False) else start["data"]
        values = {key: {**before, **data.get(key, {})} for key, before in self._before.items()}
        set_data_set_values(self.inner, values, strategy_of(self._trainer).root_device)
        set_sampler_state(self.inner, start["loader"])
        self._resumed = start

    def __iter__(self) -> Iterator[Any]:
        if self._waits():
            return iter(())
        epoch = self._trainer.current_epoch
        # Lightning begins a shorter one of several loaders again.
        if not (self.is_over and epoch == self._epoch):
            self._begin()
        self._epoch, self.is_over = epoch, False
        batches = _Batches(self, iter(self.inner))
        self._batches = weakref.ref(batches)
        return batches

    def _begin(self) -> None:
        self._undo_lazy()  # no batch of the epoch was left
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            changed = changed_data_set_values(self._before, data_set_values(self.inner))
            self.start = {"process": get_process_state(), "loader": get_sampler_state(self.inner), "data": changed}
            return
        self.start = dict(resumed)
        set_process_state(resumed["process"])
        if is_stateful(self.inner) and hasattr(self.inner, "_get_iterator"):
            self._begin_lazily(resumed["process"])

    def _begin_lazily(self, process: Mapping[str, Any]) -> None:
        """Let the seed of worker processes be drawn from the epoch's start also where a generator draws it.

        It does so for its first batch, before which other random states are restored: those of litdata and streaming.
        """

        def get_iterator(original: Callable[[], Any]) -> Any:
            with keep_process_state():
                set_process_state(process)
                return original()

        self._undo_lazy = ReplacedMethod(self.inner, "_get_iterator", get_iterator, once=True).undo

    def end(self) -> None:
        """Let a loader that has continued an epoch by itself see that the epoch is over, as litdata's must.

        Lightning asks it for as many batches as it has, and not for the end.
        """
        if is_stateful(self.inner):
            sampler = get_sampler_state(self.inner)
            with keep_process_state():
                next(iter(self._batches() or ()), None)
                set_sampler_state(self.inner, sampler)


def prepare_loader(loader: Any, trained_epoch: Callable[[], Optional[int]]) -> None:
    """Let a loader's sampler be resumable, before Lightning makes an iterator; others than torch's are left alone.

    Args:
        loader: The loader.
        trained_epoch: Returns the epoch that is trained, or ``None``.
    """
    owner, name = _place_of_sampler(loader)
    sampler = getattr(owner, name, None)
    if sampler is not None and iterated_by(sampler) is None:
        _put(loader, owner, name, StandIn(ResumableSampler(sampler, loader, trained_epoch)))


def release_loader(loader: Any) -> None:
    """Undo :func:`prepare_loader`."""
    owner, name = _place_of_sampler(loader)
    resumable = sampler_of(loader)
    if resumable is not None:
        _put(loader, owner, name, resumable.inner)


def _put(loader: Any, owner: Any, name: str, sampler: Any) -> None:
    # Of persistent workers, which the program may have asked for a batch before the fit.
    iterator = vars(loader).get("_iterator")
    if iterator is not None and iterator._index_sampler is getattr(owner, name):
        iterator._index_sampler = sampler
    # DataLoader forbids to set the attribute.
    object.__setattr__(owner, name, sampler)


def sampler_of(loader: Any) -> Optional[ResumableSampler]:
    """Return what is iterated in the sampler's place, if :func:`prepare_loader` has put anything there."""
    owner, name = _place_of_sampler(loader)
    resumable: Optional[ResumableSampler] = iterated_by(getattr(owner, name, None))
    return resumable


def _place_of_sampler(loader: Any) -> Tuple[Any, str]:
    """The object that holds what gives a loader's order, and the attribute; ``None`` and a name where nothing does."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or _keeps_iterator(loader):
        return None, "sampler"
    if not is_stateful(loader):
        return loader, "sampler" if loader.batch_sampler is None else "batch_sampler"
    # It skips what has been read of samplers that keep no state, so these must give the same order again.
    sampler = getattr(loader.batch_sampler, "sampler", None)
    keeps_state = sampler is None or hasattr(sampler, "state_dict") or type(sampler).__module__.startswith("torchdata")
    return None if keeps_state else loader.batch_sampler, "sampler"


def _keeps_iterator(loader: Any) -> bool:
    """Whether a loader's own class has made an iterator, which goes on in each epoch: timm's, ultralytics'."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    kept = getattr(loader, "__dict__", {}).items()
    return any(isinstance(each, _BaseDataLoaderIter) for name, each in kept if name != "_iterator")


def is_ordered(loader: Any) -> bool:
    """Whether a loader continues an epoch by itself or by its sampler; others are read from the beginning."""
    if is_stateful(loader):
        # Without a length Lightning reads one batch ahead, and its state is that of the next one.
        return _length(loader) is not None
    return sampler_of(loader) is not None


def has_repeated(loader: Any, state: Mapping[str, Any], batches: int) -> Optional[bool]:
    """Whether a loader that continues an epoch had begun again in it; ``None`` for one that is read from the beginning.

    Args:
        loader: The loader.
        state: What :meth:`ResumableSampler.state` returned.
        batches: How many batches of the epoch have been trained.
    """
    if not is_ordered(loader):
        return None
    return bool(batches > len(loader) if is_stateful(loader) else state["past"])


def is_stateful(loader: Any) -> bool:
    """Whether a loader saves its own position, as torchdata's ``StatefulDataLoader`` does."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def set_sampler_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a loader's samplers, as Lightning does when an epoch starts."""
    for sampler in (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)):
        set_epoch = getattr(sampler, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)


def describe_data(world_size: int, loaders: Sequence[Any]) -> Dict[str, Any]:
    """Return what must be the same for an epoch to be continued, as plain values."""
    return {
        "world size": world_size,
        "batch size": [getattr(loader, "batch_size", None) for loader in loaders],
        "number of batches": [_length(loader) for loader in loaders],
    }


def describe_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what differs, for the log; an empty text where nothing does."""
    changes = (f"the {name} was {saved[name]} and is {now[name]}" for name in saved if saved[name] != now.get(name))
    return ", ".join(changes)


def describe_losses(loaders: Sequence[Any]) -> List[str]:
    """Return what of the loaders cannot be continued within an epoch, a sentence each."""
    losses = []
    for loader in loaders:
        kind = type(getattr(loader, "dataset", loader)).__name__
        if _keeps_iterator(loader):
            losses.append(f"the order of {kind}, whose loader keeps an iterator of its own: it begins again")
        elif not is_ordered(loader):
            losses.append(f"{kind} is read again up to there, which takes time")
            if getattr(loader, "persistent_workers", False):
                losses.append(f"what persistent worker processes count and draw for {kind} starts again")
            elif not getattr(loader, "num_workers", 0):
                losses.append(f"what {kind} draws, or counts in its parts, may differ, as no worker process reads it")
        elif not is_stateful(loader) and loader.num_workers:
            losses.append(f"random numbers that worker processes draw for {kind}, as for augmentation, start again")
    return losses


def _length(loader: Any) -> Optional[int]:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
