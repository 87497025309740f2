"""``choose_checkpoint``: all ranks agree on the newest usable checkpoint to resume from."""

import os
import textwrap
from dataclasses import dataclass
from enum import Enum
from typing import Collection, Iterator, Optional, Sequence, Tuple

from lightning_sm._checkpoint.candidates import Candidate, JobIdentity, list_candidates, sort_by_job
from lightning_sm._checkpoint.integrity import META_FILE, CorruptedError, load_unrestricted, weights_only_error
from lightning_sm._lightning.collectives import all_true, broadcast
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["Choice", "Rejected", "ResumeMode", "choose_checkpoint"]

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
    """A checkpoint that rank 0 proposes to the other hosts; without a candidate it is the last proposal."""

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
) -> Choice:
    """Choose the newest checkpoint that is intact, loads and is the same file on every host. Every rank must call it.

    Global rank 0 checks the candidates and broadcasts those that are usable; local rank 0 of each other host compares
    their digests with its own files. The job's own checkpoints are preferred to those without an identity, and these
    to those of other jobs.

    Args:
        trainer: The trainer, whose process group exists.
        directory: The checkpoint directory, which has the same path on every host.
        job: The identity of this job; that of global rank 0 is used.
        allow_other_jobs: Whether to accept a checkpoint that another job wrote.
        weights_only: Whether to reject checkpoints that do not load with ``weights_only=True``, which runs no code.
        exclude: Names of checkpoints to ignore.
    """
    candidates: Tuple[Candidate, ...] = ()
    if trainer.is_global_zero:
        listed = sort_by_job(list_candidates(directory), job)
        candidates = tuple(each for each in listed if each.name not in exclude)
    proposals = _proposals(directory, candidates, None if allow_other_jobs else job, weights_only)
    lacking: Tuple[Rejected, ...] = ()
    while True:
        proposal = broadcast(trainer, next(proposals, _Proposal()))
        if proposal.other_job is not None:
            return Choice(None, None, (*proposal.rejected, *lacking), proposal.other_job)
        if proposal.candidate is None or all_true(trainer, _is_here(trainer, directory, proposal)):
            return Choice(proposal.candidate, proposal.weights_only_error, (*proposal.rejected, *lacking))
        lacking += (Rejected(proposal.candidate.name, "not every host has the same file"),)


def _proposals(
    directory: str, candidates: Sequence[Candidate], job: Optional[JobIdentity], weights_only: bool
) -> Iterator[_Proposal]:
    """Yield a proposal for each usable candidate in turn, and at the end one that holds only what was rejected."""
    rejected = [Rejected(each.name, each.problem) for each in candidates if each.problem is not None]
    for candidate in (each for each in candidates if each.problem is None):
        if job is not None and candidate.job is not None and not candidate.job.is_same_job(job):
            yield _Proposal(rejected=tuple(rejected), other_job=_describe_jobs(candidate, job))
            return
        try:
            digest = candidate.digest(directory, check=True)
        except (CorruptedError, OSError) as error:
            rejected.append(Rejected(candidate.name, str(error)))
            continue
        path = os.path.join(directory, candidate.name, META_FILE if candidate.is_folder else "").rstrip("/")
        restricted_error = weights_only_error(path)
        reason = None if restricted_error is None else _load_error(candidate.name, path, restricted_error, weights_only)
        if reason is None:
            yield _Proposal(candidate, digest, restricted_error, tuple(rejected))
        else:
            rejected.append(Rejected(candidate.name, reason, is_intact=True))
    yield _Proposal(rejected=tuple(rejected))


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


def _is_here(trainer: Trainer, directory: str, proposal: _Proposal) -> bool:
    """Whether this host has the same file. Local rank 0 of each host but the main one compares the digest."""
    if trainer.local_rank != 0 or trainer.is_global_zero or proposal.candidate is None:
        return True
    candidate = proposal.candidate
    path = os.path.join(directory, candidate.name)
    if not os.path.exists(path):
        problem = "this host does not have it"
    else:
        try:
            same = candidate.digest(directory, check=False) == proposal.digest
            problem = "" if same else "this host has another version of it"
        except OSError as error:
            problem = f"this host cannot read it ({error})"
    if problem:
        log.warning("Rejected %s on global_rank %d: %s", candidate.name, trainer.global_rank, problem)
    return not problem
