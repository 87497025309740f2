"""What all ranks agree on: whether something failed on any of them; who reads which file, and who removes any."""

from typing import Callable, List, Optional, Sequence, Tuple, TypeVar

from lightning_sm._lightning.checkpoints import is_failed_write, reasons_of
from lightning_sm._lightning.collectives import broadcast, gather_objects
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.storage import is_remote
from lightning_sm.errors import CheckpointError

__all__ = [
    "ROOM_HINT",
    "agree_on_error",
    "on_main_rank",
    "partition_by_size",
    "raise_on_all_ranks",
    "removes_files",
]

_Value = TypeVar("_Value")
_UNREADABLE = "cannot be read ({})"
#: What to do about a save that failed.
ROOM_HINT = "Check the free space on the disk and its mount: use a larger volume_size, or keep fewer checkpoints."


def raise_on_all_ranks(trainer: Trainer, what: str, action: Callable[[], _Value], problem: str = _UNREADABLE) -> _Value:
    """Run something on this rank, and raise an error on all ranks if it failed on any. Every rank must call it.

    Args:
        trainer: The trainer.
        what: The path or URL that it is about.
        action: What each rank does; it calls no collective.
        problem: What failed, as the words after ``what``.

    Raises:
        CheckpointError: It failed on another rank, or for the storage's or the disk's sake on this one.
        Exception: Any other error of this rank.
    """
    result, error = None, None
    try:
        result = action()
    except Exception as caught:
        error = caught
    agree_on_error(trainer, what, error, problem)
    return result  # type: ignore[return-value]  # without an error it is what the action returned


def on_main_rank(trainer: Trainer, what: str, action: Callable[[], _Value], problem: str = _UNREADABLE) -> _Value:
    """Run something on global rank 0 alone, and return its result on all ranks. Every rank must call it.

    Args:
        trainer: The trainer.
        what: The path or URL that it is about.
        action: What global rank 0 does; it calls no collective.
        problem: What failed, as the words after ``what``.

    Raises:
        Exception: It failed; as :func:`raise_on_all_ranks`.
    """
    result = raise_on_all_ranks(trainer, what, lambda: action() if trainer.is_global_zero else None, problem)
    return broadcast(trainer, result)  # type: ignore[return-value]  # that of global rank 0


def agree_on_error(trainer: Trainer, what: str, error: Optional[BaseException], problem: str = _UNREADABLE) -> None:
    """Raise on all ranks if any rank has an error; see :func:`raise_on_all_ranks`."""
    own: Optional[Tuple[str, Optional[str], bool]] = None
    if error is not None:
        own = (reasons_of(error), None, is_failed_write(error))
        if isinstance(error, CheckpointError):
            own = (error.problem.rstrip("."), error.hint, True)
    failures = [(rank, each) for rank, each in enumerate(gather_objects(trainer, own)) if each is not None]
    if not failures:
        return
    if isinstance(error, CheckpointError) or (own is not None and not own[2]):
        raise error  # type: ignore[misc]  # without an own one there is no error
    rank, (reason, hint, _) = failures[0]
    where = reason if "global_rank" in reason else f"global_rank {rank}: {reason}"
    raise CheckpointError(f"{what} {problem.format(where)}.", hint=hint or ROOM_HINT) from error


def removes_files(trainer: Trainer, directory: str) -> bool:
    """Whether this rank removes files: one of each host that has a directory of its own, or global rank 0 at a URL."""
    return trainer.local_rank == 0 and (trainer.is_global_zero or not is_remote(directory))


def partition_by_size(files: Sequence[SavedFile], index: int, count: int) -> List[SavedFile]:
    """Return the files that process ``index`` of ``count`` reads, so that each reads about as many bytes.

    >>> files = [SavedFile("a", 10), SavedFile("b", 10), SavedFile("c", 20), SavedFile("d", 1)]
    >>> [[file.name for file in partition_by_size(files, index, 2)] for index in range(2)]
    [['c', 'b'], ['a', 'd']]
    """
    return sorted(files, key=lambda each: (-each.size, each.name))[index::count]
