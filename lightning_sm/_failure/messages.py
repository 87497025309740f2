"""What the processes of a job tell each other about failures, and how: one JSON object a line, validated by who reads.

A rank trusts its guard, and that its rank; the server and the guards, between hosts, trust no message.
"""

import asyncio
import json
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Any, Collection, Dict, Mapping, Optional, Tuple

from lightning_sm._failure.address import Address
from lightning_sm._failure.failure_file import MAX_LENGTH, escape_unprintable

__all__ = [
    "Delays",
    "GuardSettings",
    "Kind",
    "Message",
    "Phase",
    "ProcessInfo",
    "RendezvousState",
    "early_exit_reason",
    "encode",
    "keep_alive",
    "loss_reason",
    "read_count",
    "read_phase",
    "read_reason",
    "receive",
    "send",
]

Message = Dict[str, Any]

_MAX_HOST_NAME = 255
_MAX_PROCESSES = 1 << 20
_MAX_PID = 1 << 31
# Detects a dead host after about two minutes, and keeps firewalls from dropping a connection that is idle for hours.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8))


class Phase(str, Enum):
    """What a rank is doing. Its sudden exit is a failure only in a phase in which other ranks wait for it."""

    STARTING = "starting"
    JOINING = "joining"  # waits for the others in init_process_group
    TRAINING = "training"  # is a member of the process group
    IDLE = "idle"  # outside of the trainer's calls, or leaving


class Kind(str, Enum):
    """The field ``kind`` of each message. A rank speaks to its guard, and that to the server, and back."""

    # From a rank to its guard.
    SETTINGS = "settings"  # the fields of GuardSettings
    WHO = "who"  # local_size: asks the guard that runs the server who has joined
    LEAVE = "leave"  # exits without a failure, or has reported it
    # From a rank to its guard, and from that to the server.
    STATE = "state"  # phase, rank, reason: the failure of this rank, if it has failed
    # From a guard to the server.
    HELLO = "hello"  # token, and the fields of ProcessInfo
    EXIT = "exit"  # is_lost: its rank has exited
    ACKNOWLEDGE = "acknowledge"  # the failure is written on this host
    # From the server to a guard.
    WELCOME = "welcome"
    CLOSED = "closed"
    # From the server to a guard, and from that to its rank.
    FAILED = "failed"  # reason: the first failure
    KNOWN = "known"  # every host has written this rank's failure
    # From a guard to its rank.
    RENDEZVOUS = "rendezvous"  # the fields of RendezvousState: the answer to WHO


@dataclass(frozen=True)
class ProcessInfo:
    """A rank of the job.

    Args:
        node_rank: The index of its host among the hosts that train together.
        local_rank: Its index on that host.
        host: That host's name.
        rank: Its global rank, if known yet.
        pid: Its process id, which tells it from another process that had or has the same ranks.
    """

    node_rank: int
    local_rank: int
    host: Optional[str] = None
    rank: Optional[int] = None
    pid: int = 0

    @property
    def slot(self) -> Tuple[int, int]:
        """Node rank and local rank, which a restarted process keeps."""
        return self.node_rank, self.local_rank

    def __str__(self) -> str:
        rank = "A rank" if self.rank is None else f"Rank {self.rank}"
        return rank if self.host is None else f"{rank} on {self.host}"

    def rank_among(self, local_size: int) -> int:
        """Its global rank; Lightning's own processes know theirs only when they join the process group."""
        return self.node_rank * local_size + self.local_rank if self.rank is None else self.rank

    @classmethod
    def from_message(cls, message: Mapping[str, Any], num_nodes: int) -> "Optional[ProcessInfo]":
        """Validate the process in a message; return ``None`` if a job of ``num_nodes`` hosts cannot contain it."""
        node_rank, local_rank = read_count(message.get("node_rank"), num_nodes), read_count(message.get("local_rank"))
        if node_rank is None or local_rank is None:
            return None
        host = message.get("host")
        host = escape_unprintable(host[:_MAX_HOST_NAME]) if isinstance(host, str) else None
        pid = read_count(message.get("pid"), _MAX_PID) or 0
        return cls(node_rank, local_rank, host, read_count(message.get("rank")), pid)


@dataclass(frozen=True)
class Delays:
    """Seconds until the end of a rank, or of a connection, counts as a failure for which others wait.

    Args:
        reconnect: For a connection between hosts: then the other host is lost.
        early_loss: For a rank that was killed before it joined the process group. SIGTERM, which stops a job, ends all
            ranks within that time.
        early_exit: For a rank that exited by itself before that. A job may be a script of several programs.
    """

    reconnect: float = 5.0
    early_loss: float = 5.0
    early_exit: float = 60.0


@dataclass(frozen=True)
class GuardSettings:
    """What a rank tells its guard first.

    Args:
        process: The rank.
        address: Where the failure server listens.
        failure_file: The failure file of the job on this host.
        is_main: Whether the server runs in this guard.
        delays: When an end counts as a failure.
    """

    process: ProcessInfo
    address: Address
    failure_file: str
    is_main: bool = False
    delays: Delays = Delays()

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "GuardSettings":
        """Read ``dataclasses.asdict`` of the settings that came as JSON."""
        process, address, delays = message["process"], message["address"], message["delays"]
        address = Address(**{**address, "ports": tuple(address["ports"])})
        return cls(ProcessInfo(**process), address, message["failure_file"], message["is_main"], Delays(**delays))


@dataclass(frozen=True)
class RendezvousState:
    """Which ranks the failure server of a job knows.

    Args:
        joined: Ranks that are in the rendezvous, or have been.
        starting: Ranks that have started and are not in it yet.
        hosts: Hosts of which a process has started.
    """

    joined: Collection[int] = ()
    starting: Collection[int] = ()
    hosts: Collection[str] = ()


def loss_reason(process: ProcessInfo) -> str:
    """Return the reason for a process that exited without reporting anything.

    >>> loss_reason(ProcessInfo(1, 0, "algo-2", 1))[:56]
    'Rank 1 on algo-2 was killed: it exited without an except'
    """
    return (
        f"{process} was killed: it exited without an exception (SIGKILL, often out of memory; a crash in native code; "
        "or its host was lost)"
    )


def early_exit_reason(process: ProcessInfo) -> str:
    """Return the reason for a process that exited normally while others waited for it to join the process group."""
    return f"{process} exited without an exception before it joined the process group"


def encode(kind: Kind, **content: Any) -> bytes:
    """Return a message as a line."""
    return json.dumps({"kind": kind, **content}).encode() + b"\n"


async def receive(reader: asyncio.StreamReader) -> Optional[Message]:
    """Return the next message; ``None`` if the connection has ended or what comes is not a message."""
    try:
        message = json.loads(await reader.readline())
    except (OSError, ValueError, RecursionError):  # ValueError: a line that is longer than the reader's limit, too
        return None
    return message if isinstance(message, dict) else None


def send(writer: Optional[asyncio.StreamWriter], kind: Kind, **content: Any) -> None:
    """Send a message as soon as possible. Without a connection, or to one that has ended, nothing is sent."""
    if writer is not None and not writer.is_closing():
        writer.write(encode(kind, **content))


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Notice the loss of the other host, also while nothing is sent."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def read_phase(message: Mapping[str, Any]) -> Phase:
    """Return the phase in a message; an unknown one counts as idle, in which no other rank waits for the process."""
    try:
        return Phase(message.get("phase"))
    except ValueError:
        return Phase.IDLE


def read_reason(message: Mapping[str, Any]) -> Optional[str]:
    """Return the failure reason in a message, of one line; ``None`` if there is none."""
    reason = message.get("reason")
    if not isinstance(reason, str):
        return None
    return escape_unprintable(" ".join(reason[:MAX_LENGTH].split()))[:MAX_LENGTH] or None


def read_count(value: Any, limit: int = _MAX_PROCESSES) -> Optional[int]:
    """Return ``value`` if it is an integer from 0 to below ``limit``, else ``None``."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if is_count else None
