"""Which host and rank wrote a line of a job's log."""

import re
from dataclasses import dataclass
from typing import Iterator, Optional, Sequence

__all__ = ["LogLine", "parse_lines"]

# mpirun's --tag-output as the toolkit rewrites it, then as mpirun writes it, then torch's own prefix of tracebacks.
_RANKS = (
    re.compile(r"^\[\d+,mpirank:(?P<rank>\d+),algo-(?P<number>\d+)\](?:<std(?:out|err)>:)?\s?(?P<text>.*)$"),
    re.compile(r"^\[\d+,(?P<rank>\d+)\]<std(?:out|err)>:\s?(?P<text>.*)$"),
    re.compile(r"^\[rank(?P<rank>\d+)\]:(?P<text>.*)$"),
)

# Before each of the first two: with unbuffered output, a line and its end are two writes.
_TAG = re.compile(r"(?=\[\d+,(?:mpirank:\d+,algo-)?\d+\]<std(?:out|err)>:)")


@dataclass(frozen=True)
class LogLine:
    """One line. ``host`` is where it was written, which under mpirun is not where it was read."""

    host: str
    rank: Optional[int]
    text: str

    def __str__(self) -> str:
        origin = self.host if self.rank is None else f"{self.host} rank {self.rank}"
        return f"[{origin}] {self.text}"


def parse_lines(host: str, raw: str, mpi_hosts: Sequence[str] = ()) -> Iterator[LogLine]:
    """Return the lines in a raw line of ``host``'s container: several, where mpirun joined those of several ranks.

    The toolkit names the host of a rank ``algo-N`` by counting, whatever the hosts are called; ``mpi_hosts`` are those
    that it counted.
    """
    parts = _TAG.split(raw.rstrip("\r\n"))
    for part in parts:
        if part or len(parts) == 1:
            yield _parse(host, part, mpi_hosts)


def _parse(host: str, text: str, mpi_hosts: Sequence[str]) -> LogLine:
    for pattern in _RANKS:
        match = pattern.match(text)
        if match is not None:
            found = match.groupdict()
            number = int(found.get("number") or 0)
            origin = mpi_hosts[number - 1] if 0 < number <= len(mpi_hosts) else host
            return LogLine(origin, int(found["rank"]), found["text"])
    return LogLine(host, None, text)
