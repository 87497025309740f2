"""When a job has to be done: ``sagemaker.max_runtime``, counted from the start of the container."""

import os
import time
from dataclasses import dataclass
from typing import Callable

from lightning_sm._duration import read_duration
from lightning_sm._job import TrainingJob
from lightning_sm.errors import JobConfigError

__all__ = ["Deadline", "read_deadline", "seconds_running"]

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
