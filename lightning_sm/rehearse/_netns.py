"""The network of a namespaced stage, as the commands that make it: a bridge, and an ``eth0`` on each host."""

from __future__ import annotations

import re
from typing import Dict, Sequence, Tuple

from ._request import Link
from ._shaping import Command, shaping_commands

__all__ = ["INTERFACE", "addresses", "host_commands", "hosts_file", "stage_commands"]

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


def host_commands(host: str, address: str, link: Link) -> Tuple[Command, ...]:
    """What connects one host, run inside its network namespace while the stage is process 1."""
    port = "p" + re.sub(r"\W", "", host)[-13:]
    return (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", "1"),
        ("nsenter", "--net=/proc/1/ns/net", "ip", "link", "set", port, "master", _BRIDGE, "up"),
        ("ip", "address", "add", f"{address}/16", "dev", INTERFACE),
        ("ip", "link", "set", INTERFACE, "up"),
        *shaping_commands(link, INTERFACE),
    )


def hosts_file(known: Dict[str, str]) -> str:
    """``/etc/hosts`` with these names."""
    return "127.0.0.1 localhost\n" + "".join(f"{address} {host}\n" for host, address in known.items())
