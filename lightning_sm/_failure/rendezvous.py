"""Where the failure server of a job listens: an address that all hosts know before a process group exists."""

import hashlib
import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Iterator, List, Optional, Tuple

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology

__all__ = ["Address", "interface_address", "job_address", "listen"]

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

    It reads ``TORCHELASTIC_RESTART_COUNT``, which torchrun sets and which tells apart the attempts of workers that it
    restarts; 0 where it is absent.

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
        "attempt": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
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
