"""Where the ranks of a job meet to tell each other of failures: known to all before a process group exists."""

import hashlib
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = ["Address", "job_address", "listen"]

# Ports beside that of the process group, the first of which is nearly always free.
_PORTS = 4


@dataclass(frozen=True)
class Address:
    """Where the failure server of a job listens, and by what it knows the job's processes.

    Args:
        host: The name or address of global rank 0's host.
        ports: The ports to try, in this order.
        token: Keeps other jobs and other programs apart. It is derived from what all hosts of the job know, and is no
            secret from somebody who can read the job's description.
        num_nodes: How many hosts train together.
        interface: The network interface through which the hosts reach each other, such as ``eth0``.
    """

    host: str
    ports: Tuple[int, ...]
    token: str
    num_nodes: int = 1
    interface: Optional[str] = None


def job_address(job: TrainingJob, topology: Topology) -> Address:
    """Return where the ranks of this world meet to tell each other of failures: known before a process group exists.

    It reads ``TORCHELASTIC_RESTART_COUNT``, which tells apart the attempts of a torchrun that restarts its workers.
    """
    port = topology.main_port or 0
    step = 1 if port + _PORTS < 1 << 16 else -1
    known = {
        "hosts": sorted(job.world_hosts),
        "job": {name: str(value) for name, value in sorted(job.hyperparameters.reserved.items())},
        "port": port,
        "attempt": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    }
    return Address(
        topology.main_address or "127.0.0.1",
        tuple(port + step * (number + 1) for number in range(_PORTS)),
        hashlib.sha256(json.dumps(known).encode()).hexdigest(),
        topology.num_nodes,
        job.network_interface_name,
    )


def listen(address: Address) -> Optional[socket.socket]:
    """Return a socket that listens at the address of this host by which the others know it, or ``None``.

    Where that name means this host's loopback, as in a usual ``/etc/hosts``, it is the address of the job's interface.
    """
    for family, place in _own_addresses(address):
        for port in address.ports:
            with suppress(OSError):
                return socket.create_server((place, port), family=family, backlog=1024)
    return None


def _own_addresses(address: Address) -> Iterator[Tuple[socket.AddressFamily, str]]:
    found: List[Tuple[socket.AddressFamily, str]] = []
    with suppress(OSError, UnicodeError):
        for family, *_, place in socket.getaddrinfo(address.host, None, type=socket.SOCK_STREAM):
            found.append((family, str(place[0])))
    is_loopback = bool(found) and all(_is_loopback(place) for _, place in found)
    by_interface = _interface_address(address.interface)
    if by_interface is not None and is_loopback and address.num_nodes > 1 and not _means_loopback(address.host):
        yield socket.AF_INET, by_interface
    yield from found
    if by_interface is not None and not is_loopback:
        yield socket.AF_INET, by_interface


def _means_loopback(host: str) -> bool:
    return host == "localhost" or _is_loopback(host)


def _is_loopback(place: str) -> bool:
    return place.startswith("127.") or place == "::1"


def _interface_address(name: Optional[str]) -> Optional[str]:
    """Ask the kernel for an interface's address: SIOCGIFADDR of netdevice(7)."""
    if not name:
        return None
    with suppress(ImportError, OSError, UnicodeError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        import fcntl

        asked = fcntl.ioctl(probe.fileno(), 0x8915, name.encode("ascii")[:15].ljust(256, b"\0"))
        return socket.inet_ntoa(asked[20:24])
    return None
