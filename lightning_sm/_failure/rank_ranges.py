"""``RankRanges``: a set of ranks as ranges; ``RendezvousState``: which ranks have started and which have joined."""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from lightning_sm._failure.reason import escape_unprintable

__all__ = ["RankRanges", "RendezvousState"]

_MAX_SHOWN = 8
# A message has at most 32 KiB: two sets of ranges, each of two numbers of up to 7 digits, and the names of hosts.
_MAX_RANGES = 500
_MAX_NAMES_LENGTH = 8192
_MAX_RANK = 1 << 20


@dataclass(frozen=True)
class RankRanges:
    """A set of ranks, as ascending ranges that neither overlap nor touch.

    >>> ranks = RankRanges.of([0, 1, 2, 3, 9])
    >>> print(ranks, ranks.count, ranks.complement(12))
    0-3, 9 5 4-8, 10-11

    Args:
        ranges: The first and the last rank of each range.
    """

    ranges: Tuple[Tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranks: Iterable[int]) -> "RankRanges":
        """Make ranges of ranks."""
        found: List[Tuple[int, int]] = []
        for rank in sorted(set(ranks)):
            if found and found[-1][1] == rank - 1:
                found[-1] = found[-1][0], rank
            else:
                found.append((rank, rank))
        return cls(tuple(found))

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return sum(last - first + 1 for first, last in self.ranges)

    def complement(self, world_size: int) -> "RankRanges":
        """Return the other ranks of a world."""
        found, following = [], 0
        for first, last in (*self.ranges, (world_size, world_size)):
            if first > following and following < world_size:
                found.append((following, min(first, world_size) - 1))
            following = last + 1
        return RankRanges(tuple(found))

    def intersection(self, other: "RankRanges") -> "RankRanges":
        """Return the ranks that are in both."""
        pairs = ((max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges if a <= d and c <= b)
        return RankRanges(tuple(pairs))

    def __str__(self) -> str:
        shown = [str(first) if first == last else f"{first}-{last}" for first, last in self.ranges[:_MAX_SHOWN]]
        rest = RankRanges(self.ranges[_MAX_SHOWN:]).count
        return ", ".join(shown) + (f" and {rest} more" if rest else "")


@dataclass(frozen=True)
class RendezvousState:
    """Which ranks the failure server of a job knows.

    Args:
        joined: Ranks that are in the rendezvous, or have been.
        starting: Ranks that have started and are not in it yet.
        hosts: Hosts of which a process has started; empty if they are too many for a message.
    """

    joined: RankRanges = field(default_factory=RankRanges)
    starting: RankRanges = field(default_factory=RankRanges)
    hosts: Tuple[str, ...] = ()

    def to_message(self) -> Dict[str, Any]:
        """Return a dict that can be sent to another process as JSON, cut to the size of a message."""
        is_short = len(json.dumps(self.hosts)) <= _MAX_NAMES_LENGTH
        return {
            "joined": self.joined.ranges[:_MAX_RANGES],
            "starting": self.starting.ranges[:_MAX_RANGES],
            "hosts": list(self.hosts) if is_short else [],
        }

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> "Optional[RendezvousState]":
        """Validate what :meth:`to_message` of another process made; return ``None`` if it is not a state."""
        joined, starting = (_read_ranges(message.get(name)) for name in ("joined", "starting"))
        hosts = message.get("hosts")
        if joined is None or starting is None or not isinstance(hosts, list):
            return None
        return cls(joined, starting, tuple(escape_unprintable(name) for name in hosts if isinstance(name, str)))


def _read_ranges(value: Any) -> Optional[RankRanges]:
    if not isinstance(value, list):
        return None
    found: List[Tuple[int, int]] = []
    for pair in value[:_MAX_RANGES]:
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(rank) is int for rank in pair)):
            return None
        first, last = pair
        if not (found[-1][1] + 1 if found else -1) < first <= last < _MAX_RANK:
            return None
        found.append((first, last))
    return RankRanges(tuple(found))
