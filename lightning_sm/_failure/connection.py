"""How the processes of a job reach its failure server, and the messages that they exchange.

The address is known on all hosts before a process group exists. A message is one JSON object per line over TCP,
validated when received.
"""

import hashlib
import json
import os
import socket
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._failure.reason import FailureReason, escape_unprintable
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = [
    "Address",
    "interface_address",
    "job_address",
    "listen",
    "MAX_LINE",
    "Connection",
    "Message",
    "MessageKind",
    "Phase",
    "ProcessInfo",
    "decode_message",
    "early_exit_reason",
    "loss_reason",
    "read_phase",
]

# Ports next to that of the process group, of which the first is almost always free.
_NUM_PORTS = 4
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Address:
    """Where the failure server of a job listens, and how it recognises the job's processes.

    Args:
        host: The name or address of global rank 0's host.
        ports: The ports to try, in this order.
        token: Keeps other jobs and programs apart. It is derived from what all hosts of the job know, and is not secret
            from those who can read the job's description.
        num_nodes: The number of hosts that train together.
        interface: The network interface through which the hosts reach each other, such as ``eth0``.
    """

    host: str
    ports: Tuple[int, ...]
    token: str
    num_nodes: int = 1
    interface: Optional[str] = None


def job_address(job: TrainingJob, topology: Topology) -> Address:
    """Return the address of the job's failure server, which is the same on every host.

    >>> job_address(TrainingJob(), Topology("torchrun", main_address="algo-1", main_port=7777)).ports
    (7778, 7779, 7780, 7781)

    Args:
        job: The job.
        topology: The world that the launcher created.
    """
    port = topology.main_port or 0
    step = 1 if port + _NUM_PORTS < 1 << 16 else -1
    identity = {
        "hosts": sorted(job.world_hosts),
        "job": {name: str(value) for name, value in sorted(job.hyperparameters.reserved.items())},
        "port": port,
    }
    return Address(
        topology.main_address or "127.0.0.1",
        tuple(port + step * (number + 1) for number in range(_NUM_PORTS)),
        hashlib.sha256(json.dumps(identity).encode()).hexdigest(),
        topology.num_nodes,
        job.network_interface_name,
    )


def listen(address: Address) -> Optional[socket.socket]:
    """Return a socket that listens at the local address by which other hosts know this one, or ``None``.

    If the host's name resolves to loopback here, as with a common ``/etc/hosts``, it listens at the address of the
    job's network interface.
    """
    for family, ip_address in _local_addresses(address):
        for port in address.ports:
            with suppress(OSError):
                return socket.create_server((ip_address, port), family=family, backlog=1024)
    return None


def interface_address(name: Optional[str]) -> Optional[str]:
    """Return the IPv4 address of a network interface (SIOCGIFADDR of netdevice(7)), or ``None``."""
    if not name:
        return None
    with suppress(ImportError, OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        request = name.encode("ascii")[:15].ljust(256, b"\0")
        return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    return None


def _local_addresses(address: Address) -> Iterator[Tuple[socket.AddressFamily, str]]:
    found: List[Tuple[socket.AddressFamily, str]] = []
    with suppress(OSError, UnicodeError):
        for family, *_, socket_address in socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM):
            found.append((family, str(socket_address[0])))
    resolves_to_loopback = bool(found) and all(_is_loopback(ip_address) for _, ip_address in found)
    is_named_loopback = address.host == "localhost" or _is_loopback(address.host)
    by_interface = interface_address(address.interface)
    if by_interface is not None and resolves_to_loopback and address.num_nodes > 1 and not is_named_loopback:
        yield socket.AF_INET, by_interface
    yield from found
    if by_interface is not None and not resolves_to_loopback:
        yield socket.AF_INET, by_interface


def _is_loopback(ip_address: str) -> bool:
    return ip_address.startswith("127.") or ip_address == "::1"


Message = Dict[str, Any]

# A reason's texts have at most 1,024 characters each, which JSON may encode as six bytes per character.
MAX_LINE = 32 * 1024
_MAX_HOST_NAME = 255
_MAX_PROCESSES = 1 << 20
_MAX_PID = 1 << 31
_IO_TIMEOUT = 1.0
# Detects a dead host after about two minutes, and keeps firewalls from dropping a connection that is idle for hours.
_KEEP_ALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 8))


class Phase(str, Enum):
    """What a process is doing. Its sudden exit is a failure only in a phase in which other ranks wait for it."""

    STARTING = "starting"
    JOINING = "joining"  # waits for the others in init_process_group
    TRAINING = "training"  # is a member of the process group
    IDLE = "idle"  # outside of the trainer's calls, or leaving


class MessageKind(str, Enum):
    """The field ``kind`` of each message."""

    # From a process to the server.
    HELLO = "hello"  # token, node_rank, local_rank, host, rank, pid, phase
    STATE = "state"  # phase, rank
    LEAVE = "leave"  # exits without a failure
    ACKNOWLEDGE = "acknowledge"  # has received FAILED
    WHO = "who"  # local_size: asks who has joined
    # From the server to a process.
    WELCOME = "welcome"  # main_phase
    MAIN_PHASE = "main_phase"  # main_phase: the phase of the process beside which the server runs
    ALL_ACKNOWLEDGED = "all_acknowledged"
    RENDEZVOUS = "rendezvous"  # joined, starting, hosts: the answer to WHO
    RETRACT = "retract"  # the failure sent before was not one
    CLOSED = "closed"
    # In both directions.
    FAILED = "failed"  # reason


@dataclass(frozen=True)
class ProcessInfo:
    """A process of the job.

    Args:
        node_rank: The index of its host among the hosts that train together.
        local_rank: Its index on that host.
        host: That host's name.
        rank: Its global rank, if known yet.
        pid: Its process id, which tells it from a launching process with the same ranks.
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

    @classmethod
    def from_message(cls, message: Mapping[str, Any], num_nodes: int) -> "Optional[ProcessInfo]":
        """Validate the process in a message; return ``None`` if a job of ``num_nodes`` hosts cannot contain it."""
        node_rank, local_rank = (_count(message.get(name)) for name in ("node_rank", "local_rank"))
        if node_rank is None or local_rank is None or node_rank >= num_nodes:
            return None
        host = message.get("host")
        host = escape_unprintable(host[:_MAX_HOST_NAME]) if isinstance(host, str) else None
        pid = _count(message.get("pid"), _MAX_PID) or 0
        return cls(node_rank, local_rank, host, _count(message.get("rank")), pid)


def loss_reason(process: ProcessInfo) -> FailureReason:
    """Return the reason for a process that exited without reporting anything.

    >>> str(loss_reason(ProcessInfo(1, 0, "algo-2", 1)))[:56]
    'Rank 1 on algo-2 was killed: it exited without an except'
    """
    how = (
        "was killed: it exited without an exception (SIGKILL, often out of memory; a crash in native code; or its host "
        "was lost)"
    )
    return FailureReason(f"{process} {how}", process.rank, process.host, is_loss=True)


def early_exit_reason(process: ProcessInfo) -> FailureReason:
    """Return the reason for a process that exited normally while others waited for it to join the process group."""
    cause = f"{process} exited without an exception before it joined the process group"
    return FailureReason(cause, process.rank, process.host, is_loss=True)


class Connection:
    """One end of a connection. Any thread may send; one thread receives.

    Args:
        connection: The connected socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lock = threading.Lock()
        self._partial_line = b""
        _open_connections.add(self)
        connection.settimeout(_IO_TIMEOUT)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def fileno(self) -> int:
        """The socket's file descriptor, for ``select``."""
        return self.socket.fileno()

    def send(self, kind: MessageKind, **content: Any) -> bool:
        """Send a message, and return whether it was written to the socket."""
        try:
            with self._lock:
                self.socket.sendall(json.dumps({"kind": kind, **content}).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> Optional[List[Message]]:
        """Return the messages received so far; ``None`` if the connection is closed or the data is not a message."""
        try:
            content = self.socket.recv(4096)
        except socket.timeout:
            return []
        except OSError:
            return None
        lines = (self._partial_line + content).split(b"\n")
        self._partial_line = lines.pop()
        if not content or len(self._partial_line) > MAX_LINE:
            return None
        messages = [decode_message(line) for line in lines]
        return None if None in messages else [message for message in messages if message is not None]

    def shutdown(self) -> None:
        """Shut the connection down in both directions, which ends every blocked ``receive``."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def decode_message(line: bytes) -> Optional[Message]:
    """Decode one line; return ``None`` if it is not a JSON object or is too long or too deeply nested.

    >>> decode_message(b'{"kind": "leave"}'), decode_message(b"GET / HTTP/1.1")
    ({'kind': 'leave'}, None)
    """
    if len(line) > MAX_LINE:
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def read_phase(message: Mapping[str, Any], name: str = "phase") -> Phase:
    """Return the phase in a message; an unknown one counts as idle, in which no other rank waits for the process."""
    try:
        return Phase(message.get(name))
    except ValueError:
        return Phase.IDLE


def _count(value: Any, limit: int = _MAX_PROCESSES) -> Optional[int]:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    return value if is_count else None


# The child of a fork, such as a data loader's worker, must not keep the parent's connections open.
_open_connections: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _close_in_child() -> None:
    for connection in list(_open_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_in_child)
