"""When a job has to be done: ``sagemaker.max_runtime``, counted from the start of the container.

Where a validation can be left.

SIGTERM as a request to stop: noted while a model trains, heeded at once while there is nothing to save.

The checkpoint of a fit that is left in its middle.
"""

import glob
import math
import os
import re
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Callable, List, Optional, Sequence

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.async_io import BackgroundCheckpointIOMixin
from lightning_sm._duration import read_duration
from lightning_sm._lightning.collectives import all_true, broadcast
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.trainer_hooks import set_restored_handler
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import STOPPED
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import JobConfigError

__all__ = [
    "Deadline",
    "read_deadline",
    "seconds_running",
    "may_leave_anywhere",
    "StopSignal",
    "save_directory",
    "save_stopped",
]

# Below what SageMaker documents as the time between its SIGTERM and its SIGKILL, which the end of the launcher needs.
_LONGEST_RESERVE = 120.0


@dataclass(frozen=True)
class Deadline:
    """The time that a job has.

    Args:
        seconds: How long it may run.
        started: When it started, by ``clock``.
        clock: Tells the time in seconds.
    """

    seconds: float
    started: float
    clock: Callable[[], float] = time.monotonic

    def margin(self, save_seconds: float) -> float:
        """How long before the end to stop: 5 %, at most 2 minutes, and twice as long as a checkpoint takes.

        Twice, because the model is exported after the checkpoint.

        Args:
            save_seconds: What the longest checkpoint so far took.
        """
        return min(0.05 * self.seconds, _LONGEST_RESERVE) + 2 * save_seconds

    def is_near(self, save_seconds: float) -> bool:
        """Whether it is time to stop."""
        return self.clock() - self.started >= self.seconds - self.margin(save_seconds)


def read_deadline(text: str, job: TrainingJob) -> Deadline:
    """Return the deadline that ``sagemaker.max_runtime`` means.

    It counts from the start of the container's first process, where the job is in a container, else from that of this
    process. It reads ``/proc``; where there is none, the time counts from now.

    Raises:
        JobConfigError: The text is no duration.
    """
    try:
        seconds = read_duration(text)
    except ValueError as error:
        raise JobConfigError(
            f"sagemaker.max_runtime is {text!r}, which cannot be used: {error}.",
            hint="Write a number of seconds, or a duration such as 23h30m.",
        ) from error
    # Where the base directory has been moved, process 1 is not the container's.
    of_container = job.in_container and not os.environ.get("SAGEMAKER_BASE_DIR")
    return Deadline(seconds, time.monotonic() - seconds_running(1 if of_container else os.getpid()))


def seconds_running(process: int) -> float:
    """How long ago a process started; 0 where the system does not tell."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            # The name, in parentheses, may hold anything; the start is the 22nd field, in ticks since the boot.
            ticks = float(file.read().rpartition(")")[2].split()[19])
        with open("/proc/uptime", encoding="utf-8") as file:
            uptime = float(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))


def may_leave_anywhere(trainer: Any, batches: Sequence[float]) -> bool:
    """Whether ranks that look at each of these batches look equally often. Every rank must call it.

    Where a rank has fewer batches, one more look of another would wait for ever, or meet something else.
    """
    if trainer.world_size == 1:
        return True
    counts = [float(count) for count in batches]
    return all_true(trainer, counts == broadcast(trainer, counts) and math.inf not in counts)


class StopSignal:
    """Hears SIGTERM from :meth:`take` on, until :meth:`release`. Before, :meth:`prepare` looks at what is there.

    Lightning's own handling is set aside for that time: since 2.0 it leaves the training at the next batch without a
    checkpoint and ends the program with 0, as if the job had succeeded
    (``trainer/connectors/signal_connector.py``, ``SIGTERMException``). A project's own handler still gets the signal.
    """

    def __init__(self) -> None:
        self.received = False
        self._own_handler: Any = None
        self._at_once = False
        self._is_taken = False

    def prepare(self) -> None:
        """Note a project's own handler before Lightning adds its own, and look after what is forked from now on."""
        self._own_handler = signal.getsignal(signal.SIGTERM)
        _watch_forks(self)

    def take(self, *, at_once: bool) -> None:
        """Hear the signal from now on; a second call only changes how it is answered.

        Only the main thread may install a handler; in another one the signal is left alone.

        Args:
            at_once: Whether to leave the program right away, because there is nothing to save.
        """
        self._at_once = at_once
        if self._is_taken or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGTERM, self._receive)
        self._is_taken = True

    def outlive(self, trainer: Any) -> None:
        """Hear the signal also between the end of Lightning's own handling and :meth:`release`."""
        if self._is_taken:
            set_restored_handler(trainer, signal.SIGTERM, self._receive)

    def release(self, trainer: Any) -> None:
        """Put back the handler that was there before the fit, now and at its end."""
        if self._is_taken:
            # None stands for a handler that was not installed from Python and cannot be put back.
            own = signal.SIG_DFL if self._own_handler is None else self._own_handler
            set_restored_handler(trainer, signal.SIGTERM, own)
            if signal.getsignal(signal.SIGTERM) == self._receive:
                signal.signal(signal.SIGTERM, own)
        self._is_taken = False
        if self in _prepared:
            _prepared.remove(self)

    def _receive(self, number: int, frame: Optional[FrameType]) -> None:
        self.received = True
        if callable(self._own_handler):
            self._own_handler(number, frame)
        if self._at_once:
            raise SystemExit(STOPPED)


_prepared: List[StopSignal] = []
_is_watching = False


def _watch_forks(prepared: StopSignal) -> None:
    global _is_watching
    if prepared not in _prepared:
        _prepared.append(prepared)
    if not _is_watching:
        os.register_at_fork(after_in_child=_leave_in_child)
        _is_watching = True


def _leave_in_child() -> None:
    """Keep a forked child, such as a worker of a data loader, alive until the rank has saved.

    Launchers signal a rank's whole process group (``torch/distributed/elastic``, ``SubprocessHandler.close``), and a
    worker that dies of it takes the training with it. So it leaves the group. The handler is not its own either: with
    it, nobody could terminate the child.
    """
    if not _prepared:
        return
    if any(signal.getsignal(signal.SIGTERM) == prepared._receive for prepared in _prepared):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _prepared.clear()
    with suppress(OSError):
        os.setpgid(0, 0)


_STEP = re.compile(r"stopped-step=(\d+)\.ckpt")


def save_directory(trainer: Any, directory: Optional[str]) -> Optional[str]:
    """Where to save: ``directory``, or that of the first ``ModelCheckpoint``; ``None`` where there is neither."""
    if trainer.fast_dev_run:
        return None
    known = (getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks)
    return directory or next((path for path in known if path), None)


def save_stopped(trainer: Any, directory: str, steps: int) -> str:
    """Save ``stopped-step=N.ckpt`` and then remove older ones. Every rank must call it."""
    path = os.path.join(directory, f"stopped-step={steps}.ckpt")
    _end_background_saves(trainer)
    trainer.save_checkpoint(path)
    strategy_of(trainer).barrier("stopped")
    if trainer.is_global_zero:
        _remove_older(directory, steps)
    return path


def _end_background_saves(trainer: Any) -> None:
    """Wait for what is being saved, so that this checkpoint has been written when its save returns."""
    checkpoint_io = getattr(strategy_of(trainer), "checkpoint_io", None)
    if isinstance(checkpoint_io, BackgroundCheckpointIOMixin):
        try:
            checkpoint_io.finish()
        except Exception as error:  # of an earlier save; this one may succeed
            log.error("%s", error)


def _remove_older(directory: str, steps: int) -> None:
    for path in glob.glob(os.path.join(glob.escape(directory), "stopped-step=*.ckpt")):
        match = _STEP.fullmatch(os.path.basename(path))
        if match and int(match.group(1)) < steps:
            remove(path)
