"""The watch of this process: there is at most one."""

import atexit
import functools
import os
from typing import Optional

from lightning_sm._failure._file import withdraw_failure, write_failure
from lightning_sm._failure._guard import Guard
from lightning_sm._failure._hub import Hub
from lightning_sm._failure._kills import with_kills
from lightning_sm._failure._meeting import meet
from lightning_sm._failure._reason import Reason
from lightning_sm._failure._watch import Watch
from lightning_sm._job import TrainingJob
from lightning_sm._log import log

__all__ = ["current_watch", "set_training", "stop_watching", "tell_job", "watch_failures"]

_watch: Optional[Watch] = None
_hub: Optional[Hub] = None
_guard: Optional[Guard] = None
_pid: Optional[int] = None


def watch_failures(job: TrainingJob, *, rank: int, world_size: int, address: str, port: int) -> None:
    """From now on, hear of the failures of other ranks, and let them hear of this one's. Only the first call counts.

    Outside a container, or alone, there is nothing to watch.

    Args:
        job: The job.
        rank: This process's global rank.
        world_size: How many processes train together.
        address: Where they meet: the host of global rank 0.
        port: The port there.
    """
    global _watch, _hub, _pid
    if job.failure_file is None or world_size < 2 or current_watch() is not None:
        return
    _pid = os.getpid()
    _hub = Hub() if rank == 0 else None
    joined = functools.partial(_start_guard, job.failure_file, rank, job.current_host or "")
    find = functools.partial(meet, address=address, port=port, host=job.current_host, hub=_hub, joined=joined)
    tell, take_back = functools.partial(tell_job, job), functools.partial(take_back_from_job, job)
    _watch = Watch(rank, world_size, job.current_host, find, tell, take_back)
    atexit.register(stop_watching)
    _watch.start()


def current_watch() -> Optional[Watch]:
    """Return the watch of this process; the child of a fork has none."""
    return _watch if _pid == os.getpid() else None


def set_training(is_training: bool) -> None:
    """Tell the other ranks whether this one is training: only then is its end without a word a failure.

    A graceful stop calls it too, because a rank that is killed while it stops is no failure.
    """
    watch = current_watch()
    if watch is not None:
        watch.set_training(is_training)
        if _guard is not None:
            _guard.set_training(is_training)


def tell_job(job: TrainingJob, reason: Reason) -> None:
    """Make another rank's failure this host's failure reason."""
    reason = with_kills(reason, job.current_host)
    # Before the log: the launcher may be about to kill this process too.
    write_failure(job, str(reason))
    log.error("Another rank failed: %s", reason)


def take_back_from_job(job: TrainingJob, reason: Reason) -> None:
    """Remove what :func:`tell_job` wrote: the rank that seemed lost is back."""
    log.warning("Rank %s is back: only its connection was lost.", reason.rank)
    withdraw_failure(job, reason.cause)


def _start_guard(failure_file: str, rank: int, host: str) -> None:
    global _guard
    watch = current_watch()
    if watch is None:
        return
    try:
        guard = Guard(failure_file, rank, host)
    except OSError as error:
        log.debug("No guard could be started beside this rank: %s", error)
        return
    guard.set_training(watch.is_training)
    _guard = guard


def stop_watching() -> None:
    """Leave the other ranks, which is no failure. So ends every program, but for one that is killed."""
    global _watch, _hub, _guard, _pid
    watch, hub, guard = current_watch(), _hub, _guard
    _watch, _hub, _guard, _pid = None, None, None, None
    if watch is not None:
        if guard is not None:
            guard.dismiss()
        watch.stop()
        if hub is not None:
            hub.close()
