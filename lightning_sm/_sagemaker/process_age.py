"""How long ago a process started, such as process 1 of the container: proc(5)."""

import os
from pathlib import Path
from typing import Optional

__all__ = ["process_age"]


def process_age(pid: int, root: Path = Path("/")) -> Optional[float]:
    """Return how many seconds ago a process started; ``None`` if ``/proc`` does not tell.

    Args:
        pid: The process id.
        root: The directory below which ``/proc`` is read.
    """
    try:
        # Field 22 is the start time in clock ticks since boot. The name, in parentheses, may contain anything.
        ticks = float((root / f"proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        uptime = float((root / "proc/uptime").read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return uptime - ticks / os.sysconf("SC_CLK_TCK")
