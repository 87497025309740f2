"""``Choice``: the checkpoint that all ranks go on from, and what became of each other one."""

import os
import textwrap
from dataclasses import dataclass
from typing import Any, Collection, Iterator, Optional, Sequence, Tuple

from lightning_sm._checkpoint.candidates import Candidate, list_candidates, own_first
from lightning_sm._checkpoint.contents import META, DamagedError, load_with_code, why_not_weights_only
from lightning_sm._checkpoint.identity import JobIdentity
from lightning_sm._lightning.collectives import all_true, broadcast
from lightning_sm._logging import log

__all__ = ["Choice", "Rejected", "choose"]

_SHOWN = 8


@dataclass(frozen=True)
class Rejected:
    """A checkpoint that was not taken.

    Args:
        name: Its path below the checkpoint directory.
        reason: Why.
        is_whole: Whether its bytes are as they were written, so that the program must have changed.
    """

    name: str
    reason: str
    is_whole: bool = False

    def __str__(self) -> str:
        return f"Rejected {self.name}: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """What all ranks agreed on.

    Args:
        candidate: The newest checkpoint that is whole, loads, and is the same on every host; ``None`` if there is none.
        untrusted: Why it cannot be loaded with ``weights_only=True``; ``None`` if it can.
        rejected: The others that were looked at.
        other_job: Why none is taken, where the newest that could be is another job's.
    """

    candidate: Optional[Candidate] = None
    untrusted: Optional[str] = None
    rejected: Tuple[Rejected, ...] = ()
    other_job: Optional[str] = None

    def __str__(self) -> str:
        chosen = "No checkpoint to resume from" if self.candidate is None else f"Resuming from {self.candidate}"
        return "; ".join([chosen, *map(str, self.rejected)])

    @property
    def unloadable(self) -> Tuple[Rejected, ...]:
        """Checkpoints that are whole and yet do not load."""
        return tuple(rejected for rejected in self.rejected if rejected.is_whole)


@dataclass(frozen=True)
class _Offer:
    """What rank zero found, as each host compares it. Without a candidate it is the end."""

    candidate: Optional[Candidate] = None
    digest: str = ""
    untrusted: Optional[str] = None
    rejected: Tuple[Rejected, ...] = ()
    other_job: Optional[str] = None


def choose(
    trainer: Any,
    directory: str,
    job: JobIdentity = JobIdentity(),  # noqa: B008 - it is frozen
    *,
    of_any_job: bool = False,
    weights_only: bool = False,
    without: Collection[str] = (),
) -> Choice:
    """Choose the newest checkpoint that is whole, loads and is the same file on every host. Every rank must call it.

    Rank zero reads the checkpoints; the first process of each other host reads those that rank zero would take. The
    job's own go before those that do not say whose they are, and these before those of other jobs.

    Args:
        trainer: The trainer, whose process group exists.
        directory: The checkpoint directory, which has the same path on every host.
        job: This job, as rank zero knows it.
        of_any_job: Whether a checkpoint that another job wrote may be taken.
        weights_only: Whether a checkpoint is taken only if it loads with ``weights_only=True``, which runs no code.
        without: Names of checkpoints that are left out.
    """
    candidates: Tuple[Candidate, ...] = ()
    if trainer.is_global_zero:
        listed = own_first(list_candidates(directory), job)
        candidates = tuple(each for each in listed if each.name not in without)
    offers = _offers(directory, candidates, None if of_any_job else job, weights_only)
    lacking: Tuple[Rejected, ...] = ()
    while True:
        offer = broadcast(trainer, next(offers, _Offer()))
        if offer.other_job is not None:
            return Choice(None, None, (*offer.rejected, *lacking), offer.other_job)
        if offer.candidate is None or all_true(trainer, _is_here(trainer, directory, offer)):
            return Choice(offer.candidate, offer.untrusted, (*offer.rejected, *lacking))
        lacking += (Rejected(offer.candidate.name, "not every host has this very file"),)


def _offers(
    directory: str, candidates: Sequence[Candidate], job: Optional[JobIdentity], weights_only: bool
) -> Iterator[_Offer]:
    """Yield the checkpoints that load, in their order, and in the end one that only says what was rejected."""
    rejected = [Rejected(each.name, each.problem) for each in candidates if each.problem is not None]
    for candidate in (each for each in candidates if each.problem is None):
        if job is not None and candidate.job is not None and not candidate.job.is_same_job(job):
            yield _Offer(rejected=tuple(rejected), other_job=_whose(candidate, job))
            return
        try:
            digest = candidate.digest(directory, check=True)
        except (DamagedError, OSError) as error:
            rejected.append(Rejected(candidate.name, str(error)))
            continue
        path = os.path.join(directory, candidate.name, META if candidate.is_folder else "").rstrip("/")
        untrusted = why_not_weights_only(path)
        reason = None if untrusted is None else _why_not_with_code(candidate.name, path, untrusted, weights_only)
        if reason is None:
            yield _Offer(candidate, digest, untrusted, tuple(rejected))
        else:
            rejected.append(Rejected(candidate.name, reason, is_whole=True))
    yield _Offer(rejected=tuple(rejected))


def _why_not_with_code(name: str, path: str, untrusted: str, weights_only: bool) -> Optional[str]:
    """Load a checkpoint that needs code, if that may be, and say why not if it cannot be."""
    if weights_only:
        return f"it runs code when it is loaded ({untrusted}), which sagemaker.resume_weights_only forbids"
    log.warning(
        "%s is loaded with weights_only=False, which runs code that it names (%s). It is trusted because it is in the "
        "job's own checkpoint directory.",
        name,
        textwrap.shorten(untrusted, 600, placeholder=" …"),
    )
    try:
        load_with_code(path)
    except Exception as error:  # a class of the project's may raise anything
        return f"it does not load ({type(error).__name__}: {' '.join(str(error).split())})"
    return None


def _whose(candidate: Candidate, job: JobIdentity) -> str:
    assert candidate.job is not None
    text = f"{candidate} was written by {candidate.job}, and this is {job}"
    differences = candidate.job.differences(job)
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return f"{text}; they differ in {', '.join(differences[:_SHOWN])}{more}" if differences else text


def _is_here(trainer: Any, directory: str, offer: _Offer) -> bool:
    """Whether this host has the very file. Its first process looks; rank zero has done so."""
    if trainer.local_rank != 0 or trainer.is_global_zero or offer.candidate is None:
        return True
    candidate = offer.candidate
    path = os.path.join(directory, candidate.name)
    if not os.path.exists(path):
        problem = "this host does not have it"
    else:
        try:
            same = candidate.digest(directory, check=False) == offer.digest
            problem = "" if same else "this host has another version of it"
        except OSError as error:
            problem = f"this host cannot read it ({error})"
    if problem:
        log.warning("Rejected %s on global_rank %d: %s", candidate.name, trainer.global_rank, problem)
    return not problem
