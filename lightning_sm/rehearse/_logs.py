"""Log lines as they arrive: which host and rank they came from, and what they say about the topology."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Optional

__all__ = ["TOPOLOGY_MARKER", "LogLine", "read_line", "topologies_in"]

#: A program tells the rehearsal how it sees itself by printing this, followed by a JSON object, anywhere in a line:
#: ``print("lightning_sm topology: " + json.dumps({"global_rank": 0, "world_size": 2}))``. It shows up in the summary.
#: In one piece: images run Python unbuffered, and the toolkit then makes a line of each argument of ``print``.
TOPOLOGY_MARKER = "lightning_sm topology:"

# mpirun's --tag-output as the toolkit rewrites it, then as mpirun writes it, then torch's own prefix of tracebacks.
_RANKS = (
    re.compile(r"^\[\d+,mpirank:(?P<rank>\d+),(?P<host>algo-\d+)\](?:<std(?:out|err)>:)?\s?(?P<text>.*)$"),
    re.compile(r"^\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:\s?(?P<text>.*)$"),
    re.compile(r"^\[rank(?P<rank>\d+)\]:(?P<text>.*)$"),
)


@dataclass(frozen=True)
class LogLine:
    """One line. ``host`` is where it was written, which under mpirun is not where it was read."""

    host: str
    rank: Optional[int]
    text: str

    def __str__(self) -> str:
        where = self.host if self.rank is None else f"{self.host} rank {self.rank}"
        return f"[{where}] {self.text}"


def read_line(host: str, raw: str) -> LogLine:
    """What a raw line of ``host``'s container is."""
    text = raw.rstrip("\r\n")
    for pattern in _RANKS:
        match = pattern.match(text)
        if match is not None:
            found = match.groupdict()
            return LogLine(found.get("host") or host, int(found["rank"]), found["text"])
    return LogLine(host, None, text)


def topologies_in(text: str) -> Iterator[Dict[str, Any]]:
    """Each topology that a line tells. The toolkit glues lines together now and then, so there may be several."""
    for part in text.split(TOPOLOGY_MARKER)[1:]:
        try:
            value, _ = json.JSONDecoder().raw_decode(part.lstrip())
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value
