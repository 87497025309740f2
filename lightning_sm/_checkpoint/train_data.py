"""What a position in the training data depends on, and which data has none that could be found again."""

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence

__all__ = [
    "TrainData",
    "changes",
    "is_of_torchdata",
    "keeps_order",
    "keeps_state",
    "losses",
    "reason_against",
    "set_epoch",
    "train_data",
]


@dataclass(frozen=True)
class TrainData:
    """The training data as one rank sees it.

    Args:
        world_size: How many ranks share the data.
        batches: The number of batches of each loader, None where it is not known.
        batch_sizes: The batch size of each loader, None where a sampler of the project's own decides.
    """

    world_size: int
    batches: List[Optional[int]]
    batch_sizes: List[Optional[int]]


def train_data(world_size: int, loaders: Sequence[Any]) -> TrainData:
    """Describe the training data.

    Args:
        world_size: The number of ranks.
        loaders: Everything that the ``Trainer`` iterates over for training.
    """
    sizes = [getattr(loader, "batch_size", None) for loader in loaders]
    return TrainData(
        world_size=int(world_size),
        batches=[_length(loader) for loader in loaders],
        batch_sizes=[size if isinstance(size, int) else None for size in sizes],
    )


def changes(saved: TrainData, now: TrainData) -> str:
    """Say what makes a position in ``saved`` meaningless for ``now``; empty if nothing does."""
    said = []
    if saved.world_size != now.world_size:
        said.append(f"its world_size was {saved.world_size} and is {now.world_size}")
    if saved.batch_sizes != now.batch_sizes:
        said.append(f"its batch size was {_words(saved.batch_sizes)} and is {_words(now.batch_sizes)}")
    if saved.batches != now.batches:
        said.append(f"an epoch had {_words(saved.batches)} batches for each rank and has {_words(now.batches)}")
    return ", ".join(said)


def keeps_state(loader: Any) -> bool:
    """Whether a loader saves its own position, as torchdata's ``StatefulDataLoader`` does."""
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))


def keeps_order(loader: Any) -> bool:
    """Whether a loader that saves its own position saves the order of its sampler, too.

    torchdata's knows what its own samplers hold, and those with a state; of any other, as of the one that Lightning
    puts in where there are several processes, it knows only how much of it was used.
    """
    batches = getattr(loader, "batch_sampler", None)
    sampler = getattr(batches, "sampler", None)
    return (
        reason_against(loader) is not None
        or not is_of_torchdata(batches)
        or is_of_torchdata(sampler)
        or callable(getattr(sampler, "state_dict", None))
    )


def is_of_torchdata(value: Any) -> bool:
    """Whether an object is one of torchdata's, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "torchdata"


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell a loader's sampler the epoch that is to be trained, as Lightning does at its start."""
    samplers = (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None))
    for sampler in samplers:
        tell = getattr(sampler, "set_epoch", None)
        if callable(tell):
            tell(epoch)


def reason_against(loader: Any) -> Optional[str]:
    """Why the position in a loader cannot be found again, or None if it can."""
    from torch.utils.data import DataLoader, IterableDataset

    if not isinstance(loader, DataLoader):
        return f"{type(loader).__name__} is not a torch DataLoader"
    if isinstance(loader.dataset, IterableDataset):
        return f"{type(loader.dataset).__name__} is an IterableDataset, which has no order that could be made again"
    return None


def losses(loader: Any, *, draws_as_it_goes: bool) -> List[str]:
    """Say what of a loader's data may be another than without an interruption within an epoch.

    Args:
        loader: The loader.
        draws_as_it_goes: Whether its sampler draws random numbers while the epoch goes on.
    """
    said = []
    if getattr(loader, "num_workers", 0) > 0 and not keeps_state(loader):
        said.append(
            f"random numbers that the {loader.num_workers} worker processes draw for {type(loader.dataset).__name__}, "
            "as for augmentation, start anew (torchdata's StatefulDataLoader keeps a data set's state_dict)"
        )
    if draws_as_it_goes:
        said.append("the sampler draws while the epoch goes on, so that its order may be another (draw it at once)")
    return said


def _length(loader: Any) -> Optional[int]:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def _words(values: Sequence[Optional[int]]) -> str:
    return " and ".join("unknown" if value is None else str(value) for value in values)
