"""A network no faster than the one that is asked for, by the kernel's own traffic control."""

from __future__ import annotations

from typing import Tuple

from ._request import Link

__all__ = ["Command", "shaping_commands"]

Command = Tuple[str, ...]


def shaping_commands(link: Link, device: str) -> Tuple[Command, ...]:
    """The ``tc`` commands that shape what leaves ``device``. Latency is not among them: that is the switch's part."""
    if link.bits_per_second is None:
        return ()
    # A bucket of 10 ms, and never less than a few full packets (64 KiB with segmentation offload).
    burst = max(link.bits_per_second // 8 // 100, 65536)
    rate = f"{link.bits_per_second}bit"
    return (
        ("tc", "qdisc", "add", "dev", device, "root", "handle", "10:", "tbf", "rate", rate)
        + ("burst", str(burst), "latency", "100ms"),
    )
