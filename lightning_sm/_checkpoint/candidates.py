"""Where checkpoints are looked for, so that what counts as saved for a restart is what a restart finds.

``Candidate``: a checkpoint that a job might go on from, and what can be told of it without loading it.
"""

import os
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._checkpoint.contents import (
    META,
    DamagedError,
    check_and_digest,
    check_and_digest_folder,
    folder_size,
    read_contents,
)
from lightning_sm._checkpoint.identity import JobIdentity

__all__ = [
    "checkpoint_names",
    "will_be_found",
    "Candidate",
    "FINAL_WEIGHTS",
    "REPLACED_WEIGHTS",
    "STAMP",
    "list_candidates",
    "own_first",
]

_SUFFIX = ".ckpt"


def checkpoint_names(directory: str) -> Iterator[str]:
    """Yield the checkpoints below a directory, however deep, as paths from there.

    Checkpoints are files and folders named ``*.ckpt``. Hidden ones, and those in hidden folders, are somebody's
    unfinished work.
    """
    yield from _below(directory, "", frozenset())


def will_be_found(directory: str, path: str) -> bool:
    """Whether :func:`checkpoint_names` of ``directory`` yields ``path`` when a checkpoint has been written there.

    Args:
        directory: The directory that is searched.
        path: A path, or the pattern of one, such as ``…/{epoch}/{val_loss:.2f}.ckpt``.
    """
    if "://" in path:
        return False
    folder, name = os.path.split(path)
    *folders, name = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.path.realpath(directory)).split(
        "/"
    )
    if any(part.startswith(".") for part in (*folders, name)):  # ".." leads out of the directory
        return False
    return name.endswith(_SUFFIX) and not any(part.endswith(_SUFFIX) for part in folders)


def _below(directory: str, below: str, above: FrozenSet[str]) -> Iterator[str]:
    here = os.path.realpath(os.path.join(directory, below))
    if here in above:  # a link that leads back
        return
    try:
        entries = sorted(os.listdir(here))
    except OSError:
        return
    for entry in entries:
        name = os.path.join(below, entry)
        path = os.path.join(directory, name)
        # A symlink that leads nowhere is no checkpoint, but what is left of one.
        if entry.startswith(".") or not os.path.exists(path):
            continue
        if entry.endswith(_SUFFIX):
            yield name
        elif os.path.isdir(path):
            yield from _below(directory, name, above | {here})


#: Key of a checkpoint below which stands which job wrote it.
STAMP = "lightning_sm_job"
#: Holds the weights as ``on_train_end`` left them, where callbacks change them there. No training goes on from it.
FINAL_WEIGHTS = "final-weights.ckpt"
#: Key of a checkpoint that was saved while a validation had put other weights into the model.
REPLACED_WEIGHTS = "lightning_sm_replaced_weights"


@dataclass(frozen=True)
class Candidate:
    """A checkpoint in the job's checkpoint directory.

    Args:
        name: Its path below the directory.
        size: Its bytes; of a folder those of all files in it.
        epoch: The epoch that it says.
        global_step: The optimizer steps that it says.
        batches: The batches that were trained, which go further than the steps where gradients are accumulated.
        epochs_done: The epochs that were trained to their end: validation comes before it.
        is_folder: Whether it is a folder of shards.
        job: The job that wrote it; ``None`` where it does not say so.
        stopped_by: The limits of the training, where a callback had asked it to stop.
        problem: Why it cannot be used, as far as can be told without reading all of it.
    """

    name: str
    size: int = 0
    epoch: int = 0
    global_step: int = 0
    batches: int = 0
    epochs_done: int = 0
    is_folder: bool = False
    job: Optional[JobIdentity] = None
    stopped_by: Optional[Mapping[str, Any]] = None
    problem: Optional[str] = None

    @property
    def age(self) -> Tuple[int, int, int, int, bool, bool, str]:
        """What sorts checkpoints from old to new. Times of files do not: a restored directory has new ones."""
        is_last = os.path.basename(self.name).startswith("last")
        is_final = self.name == FINAL_WEIGHTS
        return self.global_step, self.batches, self.epochs_done, self.epoch, is_final, is_last, self.name

    def __str__(self) -> str:
        return f"{self.name} (epoch {self.epoch}, step {self.global_step})"

    def digest(self, directory: str, *, check: bool) -> str:
        """Return a SHA-256 of the whole checkpoint below ``directory``.

        Args:
            directory: This host's checkpoint directory.
            check: Whether to compare each record with the CRC that was written with it.

        Raises:
            DamagedError: It is not as it was written.
        """
        path = os.path.join(directory, self.name)
        if self.is_folder:
            return check_and_digest_folder(path, check=check)
        return check_and_digest(path, check=check)


def list_candidates(directory: str) -> List[Candidate]:
    """Return the checkpoints below a directory, the newest first, those with a problem last."""
    found = [_read(directory, name) for name in checkpoint_names(directory)]
    return sorted(found, key=lambda candidate: (candidate.problem is None, candidate.age), reverse=True)


def own_first(candidates: Sequence[Candidate], job: JobIdentity) -> List[Candidate]:
    """Return the checkpoints that the job wrote itself, then those that do not say who did, then those of other jobs.

    In between they stay in their order.
    """
    ranks = {True: 0, None: 1, False: 2}
    return sorted(candidates, key=lambda each: ranks[None if each.job is None else each.job.is_same_job(job)])


def _read(directory: str, name: str) -> Candidate:
    path = os.path.join(directory, name)
    is_folder = os.path.isdir(path)
    try:
        size = folder_size(path) if is_folder else os.path.getsize(path)
        if is_folder and not os.path.isfile(os.path.join(path, META)):
            raise DamagedError(f"it is not complete: {META} is missing")
        return _described(read_contents(os.path.join(path, META) if is_folder else path), name, size, is_folder)
    except (DamagedError, OSError) as error:
        return Candidate(name, is_folder=is_folder, problem=str(error))


def _described(contents: Dict[Any, Any], name: str, size: int, is_folder: bool) -> Candidate:
    epoch, step = contents.get("epoch"), contents.get("global_step")
    if not isinstance(epoch, int) or not isinstance(step, int):
        raise DamagedError("it is no checkpoint of Lightning's: it tells no epoch and step")
    if not isinstance(contents.get("pytorch-lightning_version"), str):
        raise DamagedError("it is no checkpoint of Lightning's: it tells no version of Lightning")
    if not is_folder and "optimizer_states" not in contents:
        raise DamagedError("it holds weights only (save_weights_only), from which no training can go on")
    if contents.get(REPLACED_WEIGHTS):
        raise DamagedError("it was saved while a validation had put other weights into the model")
    fit_loop = _entries_below(contents, "loops", "fit_loop")
    batches = _entries_below(fit_loop, "epoch_loop.batch_progress", "total").get("processed")
    epochs = _entries_below(fit_loop, "epoch_progress", "current").get("processed")
    return Candidate(
        name=name,
        size=size,
        epoch=epoch,
        global_step=step,
        batches=batches if isinstance(batches, int) else 0,
        epochs_done=epochs if isinstance(epochs, int) else 0,
        is_folder=is_folder,
        job=JobIdentity.from_plain(contents.get(STAMP)),
        stopped_by=_entries_below(contents, STAMP).get("stopped_by"),
    )


def _entries_below(contents: Any, *keys: str) -> Dict[Any, Any]:
    for key in keys:
        contents = contents.get(key) if isinstance(contents, dict) else None
    return contents if isinstance(contents, dict) else {}
