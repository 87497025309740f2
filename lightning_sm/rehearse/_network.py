"""The network of namespaced hosts, as commands of ``ip`` and ``tc``: a bridge, and an ``eth0`` on each host."""

import re
from typing import Optional, Tuple

__all__ = [
    "BRIDGE_COMMANDS",
    "INTERFACE",
    "Command",
    "host_commands",
    "shaping_commands",
]

Command = Tuple[str, ...]

#: The network interface of a host, as SageMaker calls it.
INTERFACE = "eth0"

# Exists only in the rehearsal's own network namespace, so it can be the same for every rehearsal.
_BRIDGE = "bridge0"

#: The commands that create the bridge, run once in the namespaces of the rehearsal.
BRIDGE_COMMANDS = (
    ("ip", "link", "set", "lo", "up"),
    ("ip", "link", "add", _BRIDGE, "type", "bridge"),
    ("ip", "link", "set", _BRIDGE, "up"),
)


def host_commands(
    host: str, address: str, *, latency: Optional[float] = None, bandwidth: Optional[int] = None
) -> Tuple[Command, ...]:
    """Return the commands that connect one host, run in its network namespace while the holder is process 1."""
    # The port on the bridge: the kernel takes names of 15 characters at most.
    port = "p" + re.sub(r"\W", "", host)[-13:]
    return (
        ("ip", "link", "set", "lo", "up"),
        ("ip", "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", "1"),
        ("nsenter", "--net=/proc/1/ns/net", "ip", "link", "set", port, "master", _BRIDGE, "up"),
        ("ip", "address", "add", f"{address}/16", "dev", INTERFACE),
        ("ip", "link", "set", INTERFACE, "up"),
        *shaping_commands(latency, bandwidth),
    )


def shaping_commands(latency: Optional[float], bandwidth: Optional[int]) -> Tuple[Command, ...]:
    """Return the ``tc`` commands that delay and limit what leaves a host."""
    add = ("tc", "qdisc", "add", "dev", INTERFACE)
    commands = []
    parent: Command = ("root",)
    if latency is not None:
        # The limit is in packets: the default of 1000 would drop what a fast link has under way.
        netem = ("netem", "delay", f"{latency * 1000:g}ms", "limit", "100000")
        commands.append((*add, *parent, "handle", "1:", *netem))
        parent = ("parent", "1:1")
    if bandwidth is not None:
        # A bucket of 10 ms, and never less than a few full packets (64 KiB with segmentation offload).
        burst = max(bandwidth // 8 // 100, 65536)
        tbf = ("tbf", "rate", f"{bandwidth}bit", "burst", str(burst), "latency", "100ms")
        commands.append((*add, *parent, "handle", "10:", *tbf))
    return tuple(commands)
