"""The failure monitor of this process, of which there is at most one."""

import atexit
import os
import sys
import threading
from typing import Callable, Optional, Set

from lightning_sm._failure.address import job_address
from lightning_sm._failure.messages import GuardSettings, ProcessInfo, RendezvousState
from lightning_sm._failure.monitor import FailureMonitor
from lightning_sm._failure.speaker import forget, speak_as_rank, speaks_for_job
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = [
    "ask_who_has_joined",
    "before_forced_exit",
    "current_monitor",
    "is_group_initialized",
    "set_joining",
    "set_training",
    "stop_watching",
    "watch_failures",
]

_monitor: Optional[FailureMonitor] = None
# Called before a process is ended that is blocked after the failure of another rank, and for how long at most.
_before_forced_exit: Set[Callable[[], None]] = set()
_FORCED_EXIT_TIMEOUT = 5.0


def watch_failures(job: TrainingJob, topology: Topology) -> None:
    """From now on, receive failures of other ranks and send them this one's. Only the first call has an effect.

    Call it as soon as the job is known, because other ranks wait for one that fails before it has joined them. It has
    no effect outside a container, in a world of one process, and in processes that do not speak for the job.

    Args:
        job: The job.
        topology: The world that the launcher created.
    """
    # Where Lightning starts the processes of a host, the first one learns their number from the trainer.
    has_others = topology.num_nodes > 1 or (topology.world_size or 1) > 1 or topology.local_rank > 0
    if has_others and speaks_for_job():
        _start_monitor(job, topology, topology.is_rank_zero)


def set_joining(job: TrainingJob, topology: Topology, *, rank: int, world_size: int) -> None:
    """Tell the other ranks that this one is about to join the process group.

    Args:
        job: The job.
        topology: The world that the launcher created.
        rank: This process's global rank.
        world_size: The number of processes that train together.
    """
    if world_size > 1 and speak_as_rank():
        _start_monitor(job, topology, rank == 0)
        monitor = current_monitor()
        if monitor is not None:
            monitor.set_joining(rank)


def ask_who_has_joined(local_size: int) -> Optional[RendezvousState]:
    """Return which ranks have joined the process group, as the failure server knows it; ``None`` if it is unknown.

    Args:
        local_size: Processes of each host.
    """
    monitor = current_monitor()
    return None if monitor is None else monitor.ask_who_has_joined(local_size)


def set_training(is_training: bool, *, is_failing: bool = False) -> None:
    """Tell the other ranks whether this one is training; only then is its sudden exit a failure.

    Args:
        is_training: Whether it is.
        is_failing: Whether an exception is about to leave the trainer's call.
    """
    monitor = current_monitor()
    if monitor is not None:
        monitor.set_training(is_training, is_failing=is_failing)


def stop_watching() -> None:
    """Leave the other ranks without a failure. It runs at exit; only a process that is killed leaves without it."""
    global _monitor
    monitor, _monitor = current_monitor(), None
    forget()
    if monitor is not None:
        monitor.stop()


def before_forced_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` in a thread if this process has to be ended while its main thread is blocked.

    Args:
        function: Called without arguments; after five seconds the process ends in any case.

    Returns:
        A function that undoes this; it may be called again.
    """
    _before_forced_exit.add(function)
    return lambda: _before_forced_exit.discard(function)


def _exit_blocked(code: int) -> None:
    def run() -> None:
        for function in tuple(_before_forced_exit):
            function()
        # Here, as it may fail, where nobody reads them any more; the process ends in any case.
        sys.stdout.flush()
        sys.stderr.flush()

    thread = threading.Thread(target=run, name="lightning-sm-forced-exit", daemon=True)
    thread.start()
    thread.join(_FORCED_EXIT_TIMEOUT)
    os._exit(code)


def current_monitor() -> Optional[FailureMonitor]:
    """Return the monitor of this process; ``None`` before it is started and in the child of a fork."""
    return _monitor if _monitor is not None and _monitor.settings.process.pid == os.getpid() else None


def _start_monitor(job: TrainingJob, topology: Topology, is_main: bool) -> None:
    global _monitor
    if job.failure_file is None or current_monitor() is not None:
        return
    process = ProcessInfo(topology.node_rank, topology.local_rank, job.current_host, topology.global_rank, os.getpid())
    settings = GuardSettings(process, job_address(job, topology), job.failure_file, is_main)
    _monitor = FailureMonitor(settings, has_joined=is_group_initialized, exit_process=_exit_blocked)
    atexit.register(stop_watching)
    _monitor.start()


def is_group_initialized() -> bool:
    """Whether this process is a member of a process group of torch, which is not imported to find out."""
    distributed = sys.modules.get("torch.distributed")
    # The attribute is missing while another thread imports the module.
    is_initialized = getattr(distributed, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())
