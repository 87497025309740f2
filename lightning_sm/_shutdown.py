"""Stopping a fit in time: the deadline of ``sagemaker.max_runtime``, SIGTERM, and the checkpoint of the stop."""

import math
import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Callable, List, Optional, Sequence

from lightning_sm._duration import duration_of_option
from lightning_sm._lightning.collectives import all_true, broadcast
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._lightning.trainer_hooks import set_restored_handler
from lightning_sm._sagemaker.exit_codes import STOPPED
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.process_age import process_age

__all__ = [
    "Deadline",
    "SigtermHandler",
    "have_equal_batches",
    "read_deadline",
]

# Seconds: as long as SageMaker waits between SIGTERM, which it sends at its own limit, and SIGKILL.
_MAX_RESERVE = 120.0


@dataclass(frozen=True)
class Deadline:
    """When a job must have ended.

    >>> deadline = Deadline(seconds=3600, started=0, clock=lambda: 3470)
    >>> deadline.is_near(save_seconds=1), deadline.is_near(save_seconds=10)
    (False, True)

    Args:
        seconds: How long the job may run.
        started: When it started, by ``clock``.
        clock: Returns the time in seconds.
    """

    seconds: float
    started: float
    clock: Callable[[], float] = time.monotonic

    def is_near(self, save_seconds: float) -> bool:
        """Whether it is time to stop: 5 % before the deadline, at most 120 seconds, plus the time of two saves.

        The second one is for the export of the model, which follows the checkpoint.

        Args:
            save_seconds: How long the slowest checkpoint so far took.
        """
        margin = min(0.05 * self.seconds, _MAX_RESERVE) + 2 * save_seconds
        return self.clock() - self.started >= self.seconds - margin


def read_deadline(text: object, job: TrainingJob) -> Deadline:
    """Return the deadline for a value of ``sagemaker.max_runtime``.

    In a container it counts from the start of process 1, otherwise from the start of this process. It reads ``/proc``;
    without ``/proc`` it counts from now.

    Args:
        text: A duration, such as ``23h30m``.
        job: The job.

    Raises:
        OptionError: The text is not a duration.
    """
    seconds = duration_of_option("max_runtime", text)
    # Where the base directory has been moved, such as in a rehearsal, process 1 is the machine's.
    is_in_container = job.in_container and not os.environ.get("SAGEMAKER_BASE_DIR")
    age = process_age(1 if is_in_container else os.getpid())
    return Deadline(seconds, time.monotonic() - (age or 0.0))


def have_equal_batches(trainer: Trainer, num_batches: Sequence[float]) -> bool:
    """Whether all ranks have the same, finite numbers of batches. Collective: every rank must call it.

    Only then may ranks call a collective after each batch: otherwise one of them would call it more often and block.

    Args:
        trainer: The trainer.
        num_batches: This rank's number of batches of each data loader.
    """
    if trainer.world_size == 1:
        return True
    counts = [float(count) for count in num_batches]
    return all_true(trainer, counts == broadcast(trainer, counts) and math.inf not in counts)


class SigtermHandler:
    """Handles SIGTERM from :meth:`install` to :meth:`restore`, in place of Lightning.

    Since 2.0 Lightning leaves the training at the next batch without a checkpoint and ends the program with 0, as if
    the job had succeeded (``trainer/connectors/signal_connector.py``, ``SIGTERMException``). A handler that the project
    has installed is still called.
    """

    def __init__(self) -> None:
        self.received = False
        self._previous: Any = None
        self._exits_at_once = False
        self._is_installed = False

    def install(self, *, exits_at_once: bool) -> None:
        """Handle the signal from now on, and protect processes that are forked from now on.

        The first call notes the handler that is there, before Lightning's. Outside the main thread, which alone may
        install handlers, the signal is not handled.

        Args:
            exits_at_once: Whether the signal ends the program at once, because there is nothing to save; otherwise it
                only sets ``received``.
        """
        self._exits_at_once = exits_at_once
        if self not in _protecting:
            self._previous = signal.getsignal(signal.SIGTERM)
            _protecting.append(self)
        if threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGTERM, self._handle)
        self._is_installed = True

    def keep_installed(self, trainer: Trainer) -> None:
        """Keep handling the signal when Lightning restores handlers at the end of the fit, until :meth:`restore`."""
        if self._is_installed:
            set_restored_handler(trainer, signal.SIGTERM, self._handle)

    def restore(self, trainer: Trainer) -> None:
        """Restore the handler from before the fit, and make Lightning restore the same one."""
        if self._is_installed:
            # None is a handler that was not installed from Python and cannot be restored.
            previous = signal.SIG_DFL if self._previous is None else self._previous
            set_restored_handler(trainer, signal.SIGTERM, previous)
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, previous)
        self._is_installed = False
        if self in _protecting:
            _protecting.remove(self)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = True
        if callable(self._previous):
            self._previous(number, frame)
        if self._exits_at_once:
            raise SystemExit(STOPPED)


# Those that protect forked processes.
_protecting: List[SigtermHandler] = []


def _leave_process_group() -> None:
    """Keep a forked child, such as a data loader's worker, alive until the rank has saved its checkpoint.

    Launchers signal a rank's whole process group (``torch/distributed/elastic``, ``SubprocessHandler.close``), and the
    death of a worker ends the training, so the child leaves the group. It also resets the inherited handler, with which
    nobody could terminate it.
    """
    if not _protecting:
        return
    if any(signal.getsignal(signal.SIGTERM) == handler._handle for handler in _protecting):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _protecting.clear()
    with suppress(OSError):
        os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_process_group)
