"""Whether this process speaks for the job: whether its error is the job's, and its end that of a rank.

A program starts other processes: data loaders, tools, evaluations. One that imports this package and fails has not
failed the job if the program goes on.
"""

import os
from typing import Optional, Tuple

from lightning_sm_entry import rank_slot, variables_of

__all__ = ["forget", "speak_as_rank", "speaks_for_job"]

# Set by each process that has decided, for those that it starts: its slot, or _SILENT, and its process id.
_MARK = "LIGHTNING_SM_RANK_PROCESS"
_SILENT = "none"
# What a launcher sets for each rank.
_RANK_VARIABLES = ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "RANK", "LOCAL_RANK")

# This process, and whether it speaks; None: in doubt, until it joins the process group as a rank.
_decision: Optional[Tuple[int, Optional[bool]]] = None


def speaks_for_job() -> bool:
    """Whether the launcher, or Lightning as a launcher, started this process. It is decided once.

    ``LIGHTNING_SM_RANK_PROCESS``, which each process sets for those that it starts, names its launcher and local rank.
    Children of the same rank are silent, such as those of ``multiprocessing`` and of ``subprocess``; Lightning starts
    local ranks with another ``LOCAL_RANK``. Without the variable the parent may be a rank that has not imported this
    package: if it is a Python with the same rank variables (``/proc/PID/environ``), this process is silent until it
    joins the process group.
    """
    global _decision
    if _decision is None or _decision[0] != os.getpid():
        _decision = os.getpid(), _decide()
        slot = _SILENT if _decision[1] is False else rank_slot()
        os.environ[_MARK] = f"{slot} {os.getpid()}"
    return bool(_decision[1])


def speak_as_rank() -> bool:
    """Whether this process speaks now that it joins the process group, which only a rank does."""
    global _decision
    if not speaks_for_job() and _decision == (os.getpid(), None):
        _decision = os.getpid(), True
    return speaks_for_job()


def forget() -> None:
    """Decide anew, and leave no mark for processes that are started from now on."""
    global _decision
    _decision = None
    os.environ.pop(_MARK, None)


def _decide() -> Optional[bool]:
    owner, _, pid = os.environ.get(_MARK, "").rpartition(" ")
    if owner:
        return owner != _SILENT and (pid == str(os.getpid()) or owner != rank_slot())
    return None if _has_parent_of_same_rank() else True


def _has_parent_of_same_rank() -> bool:
    """Whether a Python above this process has its rank. A launcher does not, a shell that a launcher started does."""
    own = {name: os.environ[name] for name in _RANK_VARIABLES if name in os.environ}
    pid = os.getppid() if own else 0
    try:
        while pid > 1 and variables_of(pid, _RANK_VARIABLES) == own:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python"):
                return True
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return False
