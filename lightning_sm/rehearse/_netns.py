"""The network of a namespaced stage, as the commands that make it: a bridge or a switch, an ``eth0`` on each host."""

from __future__ import annotations

import re
from typing import Dict, Sequence, Tuple

from ._request import Link
from ._shaping import Command, shaping_commands

__all__ = ["INTERFACE", "addresses", "host_commands", "hosts_file", "port_name", "stage_commands"]

#: What SageMaker calls the interface.
INTERFACE = "eth0"

# Known only inside the stage's own network namespace, so it can be the same for every rehearsal.
_BRIDGE = "stage"


def addresses(hosts: Sequence[str]) -> Dict[str, str]:
    """An address for each host, in a network that exists only on the stage."""
    return {host: f"10.0.{k // 200}.{k % 200 + 2}" for k, host in enumerate(hosts)}


def stage_commands() -> Tuple[Command, ...]:
    """What makes the bridge, run once inside the stage's namespaces."""
    return (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "add", _BRIDGE, "type", "bridge"),
        ("ip", "link", "set", _BRIDGE, "up"),
    )


def port_name(host: str) -> str:
    """What the stage calls its end of the host's line, in a name that the kernel takes."""
    return "p" + re.sub(r"\W", "", host)[-13:]


def host_commands(host: str, address: str, link: Link, process: int) -> Tuple[Command, ...]:
    """What connects one host, run by ``process`` in its network namespace while the stage is process 1."""
    port = port_name(host)
    on_stage = ("nsenter", "--net=/proc/1/ns/net")
    line: Tuple[Command, ...] = (
        ("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", "1"),
        (*on_stage, "ip", "link", "set", port, "master", _BRIDGE, "up"),
    )
    if link.latency_ms is not None:
        # The stage has made the device; its switch keeps the other end wherever the device goes.
        line = (
            (*on_stage, "ip", "link", "set", port, "netns", str(process)),
            ("ip", "link", "set", port, "name", INTERFACE),
        )
    return (
        ("ip", "link", "set", "lo", "up"),
        *line,
        ("ip", "address", "add", f"{address}/16", "dev", INTERFACE),
        ("ip", "link", "set", INTERFACE, "up"),
        *shaping_commands(link, INTERFACE),
    )


def hosts_file(known: Dict[str, str]) -> str:
    """``/etc/hosts`` with these names."""
    return "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in known.items())
