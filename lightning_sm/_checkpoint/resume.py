"""``choose_checkpoint``: all ranks agree on the newest usable checkpoint to resume from."""

import os
import textwrap
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._checkpoint.broadcast_files import complete_folder
from lightning_sm._checkpoint.candidates import (
    Candidate,
    JobIdentity,
    list_candidates,
    read_candidate,
    sort_by_job,
    sorted_candidates,
)
from lightning_sm._checkpoint.folders import ShardedFolder, code_in_folder, has_manifest
from lightning_sm._checkpoint.integrity import CorruptedError, load_unrestricted, weights_only_error
from lightning_sm._checkpoint.storage import is_remote
from lightning_sm._checkpoint.transfers import fetch_for_all
from lightning_sm._lightning.collectives import all_true, any_true, broadcast, gather_objects
from lightning_sm._lightning.loadable import load_problem
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = [
    "Choice",
    "Rejected",
    "ResumeMode",
    "check_given",
    "choose_checkpoint",
    "describe_world_change",
    "list_for_all",
]

_MAX_DIFFERENCES = 8


class ResumeMode(str, Enum):
    """The values of ``sagemaker.resume``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    REQUIRE = "require"

    @classmethod
    def parse(cls, value: object) -> "ResumeMode":
        """Return the member with this value.

        Raises:
            CheckpointError: There is none.
        """
        try:
            return cls(value)
        except ValueError as error:
            choices = ", ".join(mode.value for mode in cls)
            raise CheckpointError(f"sagemaker.resume is {value!r}.", hint=f"Choose one of {choices}.") from error


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that cannot be used.

    Args:
        name: Its path relative to the checkpoint directory.
        reason: Why it cannot be used.
        is_intact: Whether its bytes are as they were written, so that the program must have changed.
    """

    name: str
    reason: str
    is_intact: bool = False

    def __str__(self) -> str:
        return f"Rejected {self.name}: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """The checkpoint that all ranks agreed on.

    Args:
        candidate: The newest that is intact, loads, and is the same on every host; ``None`` if there is none.
        weights_only_error: Why it cannot be loaded with ``weights_only=True``; ``None`` if it can.
        rejected: The newer ones that cannot be used.
        other_job: If the newest usable one was written by another job, a sentence that says so.
    """

    candidate: Optional[Candidate] = None
    weights_only_error: Optional[str] = None
    rejected: Tuple[Rejected, ...] = ()
    other_job: Optional[str] = None

    def __str__(self) -> str:
        chosen = "No checkpoint to resume from" if self.candidate is None else f"Resuming from {self.candidate}"
        return "; ".join([chosen, *map(str, self.rejected)])

    @property
    def unloadable(self) -> Tuple[Rejected, ...]:
        """The rejected checkpoints that are intact and still do not load."""
        return tuple(rejected for rejected in self.rejected if rejected.is_intact)


@dataclass(frozen=True)
class _Proposal:
    """A checkpoint that rank 0 proposes to the other hosts; without a candidate it is the last proposal.

    The digest is that of a file, or of a folder without a manifest.
    """

    candidate: Optional[Candidate] = None
    digest: str = ""
    weights_only_error: Optional[str] = None
    rejected: Tuple[Rejected, ...] = ()
    other_job: Optional[str] = None


def choose_checkpoint(
    trainer: Trainer,
    directory: str,
    job: JobIdentity = JobIdentity(),  # noqa: B008 - it is frozen
    *,
    allow_other_jobs: bool = False,
    weights_only: bool = False,
    exclude: Collection[str] = (),
    fetch: Callable[[str], None] = lambda name: None,
) -> Choice:
    """Choose the newest checkpoint that is intact, loads and is the same on every host. Every rank must call it.

    Global rank 0 checks files, and folders without a manifest, and broadcasts those that are usable; local rank 0 of
    each other host compares their digests with its own. All ranks check a folder with a manifest together, and hosts
    send each other the files of it that one of them lacks. The job's own checkpoints are preferred to those without an
    identity, and these to those of other jobs.

    Args:
        trainer: The trainer, whose process group exists.
        directory: The checkpoint directory, which has the same path on every host.
        job: The identity of this job; that of global rank 0 is used.
        allow_other_jobs: Whether to accept a checkpoint that another job wrote.
        weights_only: Whether to reject checkpoints that do not load with ``weights_only=True``, which runs no code.
        exclude: Names of checkpoints to ignore.
        fetch: Is called by local rank 0 of each host before the whole of a checkpoint is read there, with its name.

    Raises:
        CheckpointError: The newest one is intact, and the trainer's strategy cannot load it; or a host could not
            receive the files that it lacks.
    """
    listed = sort_by_job(list_for_all(trainer, directory), job)
    candidates = tuple(each for each in listed if each.name not in exclude)
    proposals = _proposals(directory, candidates, None if allow_other_jobs else job, weights_only, fetch)
    lacking: Tuple[Rejected, ...] = ()
    while True:
        proposal = broadcast(trainer, next(proposals, _Proposal()) if trainer.is_global_zero else _Proposal())
        candidate, reasons = proposal.candidate, (*proposal.rejected, *lacking)
        if proposal.other_job is not None or candidate is None:
            return Choice(None, None, reasons, proposal.other_job)
        path = os.path.join(directory, candidate.name)
        if candidate.save_id is not None:
            problem = fetch_for_all(trainer, candidate.name, fetch) or complete_folder(trainer, path)
        else:
            problem = None if all_true(trainer, _is_here(trainer, directory, proposal, fetch)) else _NOT_THE_SAME
        if problem is not None:
            lacking += (Rejected(candidate.name, problem),)
            continue
        _check_loadable(trainer, candidate)
        restricted_error = proposal.weights_only_error
        if candidate.save_id is not None:
            verdict = _verdict(candidate, path, weights_only) if trainer.is_global_zero else (None, None)
            restricted_error, rejected = broadcast(trainer, verdict)
            if rejected is not None:
                lacking += (rejected,)
                continue
        return Choice(candidate, restricted_error, reasons)


_NOT_THE_SAME = "not every host has the same file"


def list_for_all(trainer: Trainer, directory: str) -> List[Candidate]:
    """Return on global rank 0 the checkpoints of all hosts, newest first. Every rank must call it.

    A sharded checkpoint with a manifest is usable if the hosts together have all of its files. Of other checkpoints
    those of the main host are listed. Nothing is returned on other ranks.
    """
    candidates = list_candidates(directory) if trainer.local_rank == 0 or trainer.is_global_zero else []
    if trainer.num_nodes > 1:
        shared = gather_objects(trainer, [each for each in candidates if each.save_id is not None])
        merged = _merge_hosts([candidate for of_host in shared for candidate in of_host])
        candidates = sorted_candidates([*(each for each in candidates if each.save_id is None), *merged])
    return candidates if trainer.is_global_zero else []


def _merge_hosts(candidates: Sequence[Candidate]) -> List[Candidate]:
    found: Dict[Tuple[str, Optional[str]], List[Candidate]] = {}
    for candidate in candidates:
        found.setdefault((candidate.name, candidate.save_id), []).append(candidate)
    return [_merge(parts) for parts in found.values()]


def _merge(parts: Sequence[Candidate]) -> Candidate:
    """Describe a checkpoint by what hosts have together; one that lacks its contents cannot tell the step."""
    missing = set(parts[0].missing).intersection(*(part.missing for part in parts))
    if missing:
        names = ", ".join(sorted(missing)[:3]) + (" …" if len(missing) > 3 else "")
        return replace(parts[0], problem=f"it is incomplete: no host has {names} of its manifest")
    described = [part for part in parts if part.saved_by]
    if not described:
        return parts[0]
    whole_but_wrong = (part for part in described if part.problem and not part.missing)
    return next(whole_but_wrong, replace(described[0], problem=None, missing=()))


def check_given(trainer: Trainer, path: Any, copy: Optional[str] = None) -> None:
    """Check a ``ckpt_path``, and let every host have all files of a sharded one. Every rank must call it.

    Args:
        trainer: The trainer.
        path: The path or URL.
        copy: This host's copy of what is at a URL; without, Lightning reads the URL.

    Raises:
        CheckpointError: It is sharded and not whole, or the trainer's strategy cannot load it.
    """
    given = copy or broadcast(trainer, None if is_remote(path) else os.path.abspath(path))
    if given is None:
        return
    problem = complete_folder(trainer, given) if any_true(trainer, has_manifest(given)) else None
    if problem is not None:
        hint = "Pass another checkpoint, or none: the job then resumes from its newest whole one."
        raise CheckpointError(f"The ckpt_path {path if copy else given} cannot be loaded: {problem}.", hint=hint)
    candidate = broadcast(trainer, read_candidate(*os.path.split(given)) if trainer.is_global_zero else None)
    if candidate is not None and candidate.problem is None:
        _check_loadable(trainer, candidate)


def _check_loadable(trainer: Trainer, candidate: Candidate) -> None:
    found = load_problem(trainer, candidate.saved_by, candidate.world_size)
    if found is not None:
        problem, hint = found
        raise CheckpointError(f"{candidate} cannot be loaded: {problem}.", hint=hint)


def describe_world_change(candidate: Candidate, world_size: int) -> Optional[str]:
    """Return a log line that says what changes with another world size; ``None`` if it is the same or unknown.

    Args:
        candidate: The checkpoint to resume from.
        world_size: The number of processes now.
    """
    if candidate.world_size in (None, world_size):
        return None
    how = "Its shards are distributed anew. " if candidate.is_folder else ""
    return (
        f"{candidate.name} was saved by {candidate.world_size} processes, and this job has {world_size}. {how}What "
        f"differs from the earlier run: an interrupted epoch starts again with its samples in another order, and with "
        f"the same batch size per process each step takes {world_size}/{candidate.world_size} of the samples, so the "
        "learning rate, which follows the steps, changes after another number of samples. HINT: Adjust the batch size "
        "or accumulate_grad_batches to keep the global batch size."
    )


def _proposals(
    directory: str,
    candidates: Sequence[Candidate],
    job: Optional[JobIdentity],
    weights_only: bool,
    fetch: Callable[[str], None],
) -> Iterator[_Proposal]:
    """Yield a proposal for each usable candidate in turn, and at the end one that holds only what was rejected."""
    rejected = [Rejected(each.name, each.problem) for each in candidates if each.problem is not None]
    for candidate in (each for each in candidates if each.problem is None):
        if job is not None and candidate.job is not None and not candidate.job.is_same_job(job):
            yield _Proposal(rejected=tuple(rejected), other_job=_describe_jobs(candidate, job))
            return
        if candidate.save_id is not None:
            yield _Proposal(candidate, rejected=tuple(rejected))
            continue
        try:
            fetch(candidate.name)
            digest = candidate.digest(directory, check=True)
        except (CorruptedError, OSError) as error:
            rejected.append(Rejected(candidate.name, str(error)))
            continue
        restricted_error, problem = _verdict(candidate, os.path.join(directory, candidate.name), weights_only)
        if problem is None:
            yield _Proposal(candidate, digest, restricted_error, tuple(rejected))
        else:
            rejected.append(problem)
    yield _Proposal(rejected=tuple(rejected))


def _verdict(candidate: Candidate, path: str, weights_only: bool) -> Tuple[Optional[str], Optional[Rejected]]:
    """Return why an intact checkpoint does not load with ``weights_only=True``, and why it cannot be used, if so."""
    file, more = path, None
    if candidate.is_folder:
        folder = ShardedFolder.read(path)
        file = folder.contents_path
        more = code_in_folder(folder) if weights_only else None
    error = weights_only_error(file)
    forbidden = error or more
    reason = None if forbidden is None else _load_error(candidate.name, file, forbidden, weights_only)
    return error, None if reason is None else Rejected(candidate.name, reason, is_intact=True)


def _load_error(name: str, path: str, restricted_error: str, weights_only: bool) -> Optional[str]:
    """Load a checkpoint without ``weights_only`` where that is allowed, and return why it cannot be used, if so."""
    if weights_only:
        return f"it runs code when it is loaded ({restricted_error}), which sagemaker.resume_weights_only forbids"
    log.warning(
        "Loading %s with weights_only=False, which runs code that it names (%s). It is trusted because it is in the "
        "job's own checkpoint directory.",
        name,
        textwrap.shorten(restricted_error, 600, placeholder=" …"),
    )
    try:
        load_unrestricted(path)
    except Exception as error:  # classes of the project may raise anything
        return f"it does not load ({type(error).__name__}: {' '.join(str(error).split())})"
    return None


def _describe_jobs(candidate: Candidate, job: JobIdentity) -> str:
    assert candidate.job is not None
    text = f"{candidate} was written by {candidate.job}, and this is {job}"
    differences = candidate.job.differences(job)
    more = f" and {len(differences) - _MAX_DIFFERENCES} more" if len(differences) > _MAX_DIFFERENCES else ""
    return f"{text}; they differ in {', '.join(differences[:_MAX_DIFFERENCES])}{more}" if differences else text


def _is_here(trainer: Trainer, directory: str, proposal: _Proposal, fetch: Callable[[str], None]) -> bool:
    """Whether this host has the same file. Local rank 0 of each host but the main one compares the digest."""
    if trainer.local_rank != 0 or trainer.is_global_zero or proposal.candidate is None:
        return True
    candidate = proposal.candidate
    path = os.path.join(directory, candidate.name)
    if not os.path.exists(path):
        problem = "this host does not have it"
    else:
        try:
            fetch(candidate.name)
            same = candidate.digest(directory, check=False) == proposal.digest
            problem = "" if same else "this host has another version of it"
        except (CorruptedError, OSError) as error:
            problem = f"this host cannot read it ({error})"
    if problem:
        log.warning("Rejected %s on global_rank %d: %s", candidate.name, trainer.global_rank, problem)
    return not problem
