"""Messages between processes: one JSON object per line over TCP, none of which is trusted."""

import json
import os
import socket
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from lightning_sm._failure._reason import Reason, printable

__all__ = ["Connection", "Message", "Phase", "Process", "early_exit_of", "loss_of", "read_phase"]

# A fork's child, such as a data loader's worker, would keep connections open that end with its parent.
_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()

Message = Dict[str, Any]

# A reason's texts have 1,024 characters each at most, which JSON may write as six bytes each.
LONGEST_LINE = 32 * 1024
_LONGEST_NAME = 255
_MOST_PROCESSES = 1 << 20
# How long sending and receiving may take.
_SECONDS = 1.0
# A dead host is noticed after about two minutes, and no firewall forgets a connection that is quiet for hours.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8))


class Phase:
    """How far a process is. Only one that others wait for is missed when it is gone."""

    STARTING = "starting"
    JOINING = "joining"
    TRAINING = "training"
    IDLE = "idle"
    ALL = (STARTING, JOINING, TRAINING, IDLE)


@dataclass(frozen=True)
class Process:
    """A process of the job.

    Args:
        node_rank: The place of its host among the hosts that train together.
        local_rank: Its place on that host.
        host: That host's name.
        rank: Its global rank, where it is known yet.
        pid: Its process id, which tells it from a program that started it and has the same ranks.
    """

    node_rank: int
    local_rank: int
    host: Optional[str] = None
    rank: Optional[int] = None
    pid: int = 0

    @property
    def place(self) -> Tuple[int, int]:
        """Which of the job's processes it is; a restarted one has the same place."""
        return self.node_rank, self.local_rank

    def __str__(self) -> str:
        rank = "A rank" if self.rank is None else f"Rank {self.rank}"
        return rank if self.host is None else f"{rank} on {self.host}"

    @classmethod
    def from_message(cls, message: Mapping[str, Any], num_nodes: int) -> "Optional[Process]":
        """Return the process that a message tells of, or ``None`` where it can be none of a job of that many hosts."""
        node_rank, local_rank = (_count(message.get(name)) for name in ("node_rank", "local_rank"))
        if node_rank is None or local_rank is None or node_rank >= num_nodes:
            return None
        host = message.get("host")
        host = printable(host[:_LONGEST_NAME]) if isinstance(host, str) else None
        return cls(node_rank, local_rank, host, _count(message.get("rank")), _count(message.get("pid"), 1 << 31) or 0)


def loss_of(process: Process) -> Reason:
    """Return the reason when a process is gone without a word."""
    how = (
        "was killed: it ended without an exception (SIGKILL, often out of memory, or a crash of native code, or its "
        "host went away)"
    )
    return Reason(f"{process} {how}", process.rank, process.host, is_loss=True)


def early_exit_of(process: Process) -> Reason:
    """Return the reason when a process ended by itself while others still waited for it."""
    cause = f"{process} ended before it had joined the other ranks, without an exception"
    return Reason(cause, process.rank, process.host, is_loss=True)


class Connection:
    """One end of a connection. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lock = threading.Lock()
        self._rest = b""
        _open.add(self)
        connection.settimeout(_SECONDS)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        """For ``select``."""
        return self.socket.fileno()

    def send(self, kind: str, **content: Any) -> bool:
        """Send a message, and return whether it went out."""
        try:
            with self._lock:
                self.socket.sendall(json.dumps({"kind": kind, **content}).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> Optional[List[Message]]:
        """Return the messages that are there now, or ``None`` once the other end is gone or talks nonsense."""
        try:
            content = self.socket.recv(4096)
        except socket.timeout:
            return []
        except OSError:
            return None
        lines = (self._rest + content).split(b"\n")
        self._rest = lines.pop()
        if not content or len(self._rest) > LONGEST_LINE:
            return None
        messages = [_read(line) for line in lines]
        return None if None in messages else [message for message in messages if message is not None]

    def hang_up(self) -> None:
        """End the connection, whoever waits for something from it."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def read_phase(message: Mapping[str, Any]) -> str:
    """Return the phase that a message tells; one that there is not counts as idle, in which nobody is missed."""
    phase = message.get("phase")
    return phase if isinstance(phase, str) and phase in Phase.ALL else Phase.IDLE


def _count(value: Any, limit: int = _MOST_PROCESSES) -> Optional[int]:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if is_count else None


def _close_in_child() -> None:
    for connection in list(_open):
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)


def _read(line: bytes) -> Optional[Message]:
    if len(line) > LONGEST_LINE:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
