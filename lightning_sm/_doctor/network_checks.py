"""Checks of the network between the job's hosts: names, the main host and its port, the interface."""

import errno
import os
import socket
import threading
import time
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._doctor.finding import Check, Finding, Machine, Status

__all__ = ["CHECKS"]

# A name server that does not answer delays each look-up by several seconds.
_NAME_TIMEOUT = 5.0
_CONNECT_TIMEOUT = 2.0
# A host answers, or refuses, as soon as its network is up; its neighbour may be a moment ahead.
_CONNECT_FOR = 6.0
_SHOWN = 4


def _addresses(hosts: Sequence[str], timeout: float) -> Dict[str, Tuple[Optional[str], str]]:
    """Return for each host its address, or ``None`` and why there is none."""
    found: Dict[str, Tuple[Optional[str], str]] = {}

    def resolve(host: str) -> None:
        try:
            found[host] = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]), ""
        except (OSError, UnicodeError) as error:
            found[host] = None, str(error)

    threads = [threading.Thread(target=resolve, args=(host,), daemon=True) for host in hosts]
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {host: found.get(host, (None, f"no answer within {timeout:.0f} s")) for host in hosts}


def _names_of_hosts(machine: Machine) -> Iterator[Finding]:
    """The names of all hosts resolve, and not to this host itself (error)."""
    hosts, check = machine.job.world_hosts, "names of hosts"
    if not machine.is_here or len(hosts) < 2:
        return
    found = _addresses(hosts, _NAME_TIMEOUT)
    missing = [f"{host} ({why})" for host, (address, why) in found.items() if address is None]
    if missing:
        yield Finding(
            check,
            Status.WARNING,
            f"{len(missing)} of {len(hosts)} do not resolve yet: {_listed(missing)}",
            "A host that has not started has no name; look for its log stream. The training waits for the main host.",
        )
        return
    loopback = [host for host, (address, _) in found.items() if _is_loopback(address)]
    others = [host for host in loopback if host != machine.job.current_host]
    if others:
        yield Finding(
            check,
            Status.ERROR,
            f"{_listed(others)} resolve(s) to loopback, so that this host would connect to itself",
            "Remove the names from /etc/hosts.",
        )
        return
    yield Finding(check, Status.OK, _listed([f"{host} {address}" for host, (address, _) in found.items()]))


def _is_loopback(address: Optional[str]) -> bool:
    return address is not None and (address.startswith("127.") or address == "::1")


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _main_port(machine: Machine) -> Iterator[Finding]:
    """The main host answers (error if not), and its port is free there (error if not) or torchrun listens."""
    topology, check = machine.topology, "main port"
    if topology is None or not machine.is_here or topology.main_address is None or topology.main_port is None:
        return
    where = f"{topology.main_address}:{topology.main_port}"
    source = topology.sources.get("main_port", "default")
    # Without it, global rank 0 itself listens there later.
    has_agent = machine.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if topology.node_rank == 0 and not has_agent:
        yield _own_port(where, topology.main_port, source)
        if _addresses([topology.main_address], _NAME_TIMEOUT)[topology.main_address][0] is None:
            yield Finding(
                check,
                Status.WARNING,
                f"{topology.main_address} (by {topology.sources.get('main_address', 'default')}) does not resolve on "
                "this main host itself, and processes of one training wait for it",
                "Add the name to /etc/hosts, or set MASTER_ADDR to an address.",
            )
        return
    answer = _knock(topology.main_address, topology.main_port)
    if answer is None:
        by = "torchrun's store" if has_agent else "the main host's training, or another program,"
        yield Finding(check, Status.OK, f"{where}: {by} listens")
    elif answer == errno.ECONNREFUSED:
        if has_agent:
            yield Finding(
                check,
                Status.WARNING,
                f"{where} refuses: torchrun should listen there",
                "Compare MASTER_ADDR and MASTER_PORT with torchrun's --master_addr and --master_port.",
            )
        else:
            yield Finding(check, Status.OK, f"{where}: the host answers; nothing listens before the training")
    elif answer == socket.EAI_NONAME:
        yield Finding(
            check,
            Status.WARNING,
            f"{topology.main_address} (by {topology.sources.get('main_address', 'default')}) does not resolve yet",
            "Look for the log stream of that host: it may not have started.",
        )
    else:
        yield Finding(
            check,
            Status.ERROR,
            f"{where} does not answer ({os.strerror(answer)}): packets between the hosts are dropped",
            "Allow all traffic between members of the job's security group, in both directions.",
        )


def _own_port(where: str, port: int, source: str) -> Finding:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return Finding(
                    "main port",
                    Status.ERROR,
                    f"port {port} (by {source}) of this main host is in use by another program",
                    "End that program, unless it is this job's training; or set another MASTER_PORT on every host.",
                )
            raise
    return Finding("main port", Status.OK, f"{where} (by {source}) is free on this main host")


def _knock(host: str, port: int) -> Optional[int]:
    """Connect; return ``None`` if something listens, else the error number of the last attempt."""
    address, _ = _addresses([host], _NAME_TIMEOUT)[host]
    if address is None:
        return socket.EAI_NONAME
    deadline, number = time.monotonic() + _CONNECT_FOR, errno.ETIMEDOUT
    while True:
        try:
            socket.create_connection((address, port), _CONNECT_TIMEOUT).close()
            return None
        except ConnectionRefusedError:
            return errno.ECONNREFUSED
        except OSError as error:
            number = error.errno or errno.ETIMEDOUT
        if time.monotonic() >= deadline:
            return number
        time.sleep(0.2)


def _interface(machine: Machine) -> Iterator[Finding]:
    """The network interface that SageMaker names exists."""
    named, check = machine.job.network_interface_name, "network interface"
    if not machine.is_here or named is None:
        return
    present: List[str] = []
    try:
        present = sorted(os.listdir(machine.path("/sys/class/net")))
    except OSError:
        return
    if named in present:
        yield Finding(check, Status.OK, named)
    else:
        yield Finding(
            check,
            Status.WARNING,
            f"resourceconfig.json names {named}, but this host has {', '.join(present) or 'none'}",
            f"Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to one that exists; SDK v3's local mode names {named}."
            if named == "ethwe"
            else "Set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to one that exists.",
        )


CHECKS: Tuple[Check, ...] = (_names_of_hosts, _main_port, _interface)
