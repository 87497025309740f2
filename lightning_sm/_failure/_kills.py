"""How many processes of this container the kernel killed because memory ran out."""

import os
import re
from dataclasses import replace
from typing import Optional

from lightning_sm._failure._reason import Reason

__all__ = ["count_kills", "with_kills"]

# cgroup v2, then v1: https://docs.kernel.org/admin-guide/cgroup-v2.html, memory.events; cgroup-v1/memory.html,
# memory.oom_control. A container sees its own group there.
_FILES = ("memory.events", os.path.join("memory", "memory.oom_control"))
_COUNT = re.compile(r"^oom_kill\s+(\d+)\s*$", re.MULTILINE)


def count_kills(root: str = "/sys/fs/cgroup") -> Optional[int]:
    """Return the count, or ``None`` where the kernel does not tell.

    Args:
        root: Where the control groups are mounted.
    """
    for name in _FILES:
        try:
            with open(os.path.join(root, name), encoding="ascii", errors="replace") as file:
                found = _COUNT.search(file.read())
        except OSError:
            continue
        if found is not None:
            return int(found.group(1))
    return None


def with_kills(reason: Reason, host: Optional[str]) -> Reason:
    """Add to the loss of a rank what the kernel tells of it, where it was on this host, whose name is ``host``."""
    kills = count_kills() if reason.is_loss and reason.host == host else None
    if not kills:
        return reason
    return replace(reason, cause=f"{reason.cause}; this container's memory.events counts {kills} oom kills")
