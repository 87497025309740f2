"""Ending processes for good: those of a container that has no process namespace to end with."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, List, Set

__all__ = ["adopt_orphans", "end_all_with"]

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """On Linux: become the parent of every orphaned descendant, so that it is reaped and stays within reach."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_all_with(marker: str, *, wait: float = 5.0) -> None:
    """Kill every process of ours whose environment names ``marker``, a path that only one rehearsal has.

    A process group is not enough: torchrun gives each worker a session of its own. Where there is no ``/proc``, the
    descendants of this process are ended instead.
    """
    deadline = time.monotonic() + wait
    while True:
        found = _marked(marker) if os.path.isdir("/proc/self") else _descendants(os.getpid())
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        if not found or time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _marked(marker: str) -> List[int]:
    wanted = f"={marker}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                # A zombie's environment is empty, so what was killed already does not come up again.
                if wanted in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def _descendants(parent: int) -> List[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], stdout=subprocess.PIPE, check=False)
    children: Dict[int, Set[int]] = {}
    for line in listed.stdout.decode().splitlines():
        pid, ppid, state = line.split()[:3]
        if not state.startswith("Z"):
            children.setdefault(int(ppid), set()).add(int(pid))
    found: List[int] = []
    todo = [parent]
    while todo:
        below = children.get(todo.pop(), set())
        found += below
        todo += below
    return found
