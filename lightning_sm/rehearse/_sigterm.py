"""SIGTERM for a container, as StopTrainingJob and a container engine's ``stop`` send it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Dict, Optional

__all__ = ["send_sigterm"]


def send_sigterm(host: int, *, is_namespaced: bool) -> str:
    """Send SIGTERM to process 1 of a container, and tell what becomes of it.

    The kernel drops a signal for which process 1 of a namespace has no handler. A container without a process namespace
    is given the same treatment.

    Args:
        host: The process that was started for the host, by its number on the stage.
        is_namespaced: Whether process 1 is below it, and not itself.
    """
    process = _process_one(host) if is_namespaced else host
    if process is None:
        return "it has no process 1 yet, so SIGTERM reached nothing"
    is_heard = _catches_sigterm(process)
    if is_namespaced or is_heard:
        os.kill(process, signal.SIGTERM)
    if is_heard:
        return "SIGTERM was sent to process 1"
    return "process 1 has no handler for SIGTERM, so nothing hears it"


def _process_one(host: int) -> Optional[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            status = _status(int(folder.name))
            if status.get("PPid") == str(host) and status.get("NSpid", "").split()[-1:] == ["1"]:
                return int(folder.name)
    return None


def _catches_sigterm(process: int) -> bool:
    return bool(int(_status(process).get("SigCgt", "0"), 16) >> (signal.SIGTERM - 1) & 1)


def _status(process: int) -> Dict[str, str]:
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
