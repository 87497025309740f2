"""The failure monitor of this process: there is at most one."""

import atexit
import functools
import os
import sys
from typing import Optional

from lightning_sm._failure._connection import Process
from lightning_sm._failure._file import withdraw_failure, write_failure
from lightning_sm._failure._guard import Guard
from lightning_sm._failure._kills import with_kills
from lightning_sm._failure._monitor import FailureMonitor
from lightning_sm._failure._reason import Reason
from lightning_sm._failure._rendezvous import Address, job_address
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = ["current_monitor", "is_started_by_rank", "set_joining", "set_training", "stop_watching", "watch_failures"]

_monitor: Optional[FailureMonitor] = None
_pid: Optional[int] = None
# Tells what a rank starts that a process with its ranks is there already.
_PLACE = "LIGHTNING_SM_WATCHED"


def watch_failures(job: TrainingJob, topology: Topology) -> None:
    """From now on, hear of the failures of other ranks, and let them hear of this one's. Only the first call counts.

    It is called as early as the job is read, because others wait for a rank that fails before it has joined them.
    Outside a container, or alone, there is nothing to watch, and a process that ``multiprocessing`` started is no rank.

    Args:
        job: The job.
        topology: The world that the launcher made.
    """
    # Where Lightning starts the processes of a host, the first learns only from the trainer how many there are.
    has_others = topology.num_nodes > 1 or (topology.world_size or 1) > 1 or topology.local_rank > 0
    if has_others and not _is_spawned():
        _watch(job, topology)


def set_joining(job: TrainingJob, topology: Topology, *, rank: int, world_size: int) -> None:
    """Tell the other ranks that this one is about to join the process group.

    Args:
        job: The job.
        topology: The world that the launcher made.
        rank: This process's global rank.
        world_size: How many processes train together.
    """
    if world_size > 1:
        _watch(job, topology, rank)
        monitor = current_monitor()
        if monitor is not None:
            monitor.set_joining(rank, world_size)


def is_started_by_rank(topology: Topology) -> bool:
    """Whether a rank started this process for something else than to be a rank."""
    return _is_spawned() or os.environ.get(_PLACE) == _place(topology)


def current_monitor() -> Optional[FailureMonitor]:
    """Return the monitor of this process; the child of a fork has none."""
    return _monitor if _pid == os.getpid() else None


def set_training(is_training: bool) -> None:
    """Tell the other ranks whether this one is training: only then is its end without a word a failure."""
    monitor = current_monitor()
    if monitor is not None:
        monitor.set_training(is_training)


def stop_watching() -> None:
    """Leave the other ranks, which is no failure. So ends every program, but for one that is killed."""
    global _monitor, _pid
    monitor = current_monitor()
    _monitor, _pid = None, None
    if monitor is not None:
        os.environ.pop(_PLACE, None)
        monitor.stop()


def _watch(job: TrainingJob, topology: Topology, rank: Optional[int] = None) -> None:
    global _monitor, _pid
    if job.failure_file is None or current_monitor() is not None:
        return
    address = job_address(job, topology)
    is_main = topology.is_rank_zero if rank is None else rank == 0
    # Of processes that a strategy spawned, all have read the topology of the one that did.
    local_rank = rank if rank is not None and _is_spawned() else topology.local_rank
    process = Process(topology.node_rank, local_rank, job.current_host, topology.global_rank, os.getpid())
    _pid = os.getpid()
    _monitor = FailureMonitor(
        process,
        topology.world_size or topology.num_nodes,
        address,
        functools.partial(_tell_job, job),
        functools.partial(_take_back_from_job, job),
        start_guard=functools.partial(_start_guard, job, address if is_main else None),
        has_joined=_has_joined,
    )
    os.environ[_PLACE] = _place(topology)
    atexit.register(stop_watching)
    _monitor.start()


def _place(topology: Topology) -> str:
    return f"{topology.node_rank}.{topology.local_rank}"


def _is_spawned() -> bool:
    """Whether ``multiprocessing`` started this process."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _start_guard(job: TrainingJob, server: Optional[Address]) -> Optional[Guard]:
    try:
        return Guard(job.failure_file or "", job.current_host, server)
    except OSError as error:
        log.warning("No guard could be started beside this rank: %s", error)
        return None


def _has_joined() -> bool:
    distributed = sys.modules.get("torch.distributed")
    # While it is being imported, parts of it are not there yet.
    is_initialized = getattr(distributed, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())


def _tell_job(job: TrainingJob, reason: Reason) -> None:
    """Make another rank's failure this host's failure reason."""
    reason = with_kills(reason, job.current_host)
    # Before the log: the launcher may be about to kill this process too.
    write_failure(job, str(reason))
    log.error("Another rank failed: %s", reason)


def _take_back_from_job(job: TrainingJob, reason: Reason) -> None:
    """Remove what :func:`_tell_job` wrote: it turned out to be no failure."""
    log.warning("That was no failure; rank %s is still there.", reason.rank)
    withdraw_failure(job, reason.cause)
