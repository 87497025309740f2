"""Waits for the host at which all ranks meet, and looks whether its port is free."""

import errno
import socket
import time
from typing import Optional, Set

from lightning_sm._log import log
from lightning_sm.errors import TopologyError

__all__ = ["refuse_busy_port", "wait_for_name"]

_POLL_SECONDS = 2.0

# Found free in this process. Its own store may listen there from then on, also after its group is gone.
_free_ports: Set[int] = set()


def refuse_busy_port(port: int, source: Optional[str]) -> None:
    """Say that something else listens at the port before torch does, in words that reach the failure reason.

    Args:
        port: The port.
        source: Who named it.

    Raises:
        TopologyError: The port is in use on this host.
    """
    if port in _free_ports:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise TopologyError(
                    f"Port {port} (by {source}), at which all ranks meet, is in use on rank zero's host.",
                    hint="End the program that listens there, or give every host another MASTER_PORT.",
                ) from error
    _free_ports.add(port)


def wait_for_name(address: str, source: Optional[str], timeout: float) -> None:
    """Wait until the host's name resolves: SageMaker starts hosts one by one.

    Args:
        address: The name or address.
        source: Who named it.
        timeout: Seconds to wait at most.

    Raises:
        TopologyError: It did not resolve in time, or can never be a name.
    """
    started, told = time.monotonic(), False
    while True:
        try:
            socket.getaddrinfo(address, None)
            return
        except UnicodeError as error:
            # Such as "algo-1..local" or a label of more than 63 characters: no waiting makes it a name.
            raise TopologyError(
                f"The main host {address!r} (by {source}) is no host name: {error}.",
                hint="Set MASTER_ADDR to a host name or an address.",
            ) from error
        except OSError as error:
            waited = time.monotonic() - started
            if waited >= timeout:
                raise TopologyError(
                    f"The main host {address!r} (by {source}) did not resolve within {waited:.0f} seconds: {error}.",
                    hint="Look whether that host started; its log stream carries its name.",
                ) from error
        if not told:
            log.warning("Waiting up to %.0f s until the main host %s resolves.", timeout, address)
            told = True
        time.sleep(min(_POLL_SECONDS, max(0.0, timeout - waited)))
