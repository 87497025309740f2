"""A network as slow as the one that is asked for, by the kernel's own traffic control."""

from __future__ import annotations

from typing import List, Tuple

from ._request import Link

__all__ = ["Command", "shaping_commands"]

Command = Tuple[str, ...]


def shaping_commands(link: Link, device: str) -> Tuple[Command, ...]:
    """The ``tc`` commands that shape what leaves ``device``."""
    commands: List[Command] = []
    parent: Command = ("root",)
    if link.latency_ms is not None:
        delay = f"{link.latency_ms:g}ms"
        # The limit is in packets: the default of 1000 would drop what a fast link has under way.
        commands.append(
            ("tc", "qdisc", "add", "dev", device, *parent, "handle", "1:", "netem", "delay", delay, "limit", "100000")
        )
        parent = ("parent", "1:1")
    if link.bits_per_second is not None:
        # A bucket of 10 ms, and never less than a few full packets (64 KiB with segmentation offload).
        burst = max(link.bits_per_second // 8 // 100, 65536)
        rate = f"{link.bits_per_second}bit"
        commands.append(
            ("tc", "qdisc", "add", "dev", device, *parent, "handle", "10:", "tbf", "rate", rate)
            + ("burst", str(burst), "latency", "100ms")
        )
    return tuple(commands)
