"""``Candidate``: a checkpoint that a job might go on from, and what can be told of it without loading it."""

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._resume._contents import read_contents
from lightning_sm._resume._identity import JobIdentity
from lightning_sm._resume._records import DamagedError, check_and_digest
from lightning_sm._resume._search import checkpoint_names
from lightning_sm._resume._sharded import META, check_and_digest_folder, folder_size

__all__ = ["Candidate", "FINAL_WEIGHTS", "REPLACED_WEIGHTS", "STAMP", "list_candidates", "own_first"]

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
    fit_loop = _below(contents, "loops", "fit_loop")
    batches = _below(fit_loop, "epoch_loop.batch_progress", "total").get("processed")
    epochs = _below(fit_loop, "epoch_progress", "current").get("processed")
    return Candidate(
        name=name,
        size=size,
        epoch=epoch,
        global_step=step,
        batches=batches if isinstance(batches, int) else 0,
        epochs_done=epochs if isinstance(epochs, int) else 0,
        is_folder=is_folder,
        job=JobIdentity.from_plain(contents.get(STAMP)),
        stopped_by=_below(contents, STAMP).get("stopped_by"),
    )


def _below(contents: Any, *keys: str) -> Dict[Any, Any]:
    for key in keys:
        contents = contents.get(key) if isinstance(contents, dict) else None
    return contents if isinstance(contents, dict) else {}
