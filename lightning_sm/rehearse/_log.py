"""The topology, world or error that a line of a job's log tells of."""

import json
import re
from typing import Any, Dict, Iterator, Optional, Sequence

__all__ = [
    "TOPOLOGY_MARKER",
    "USAGE_ERROR",
    "find_error_line",
    "find_topologies",
    "find_worlds",
]

#: A program shows its topology in the summary by printing this text, followed by a JSON object, anywhere in a line:
#: ``print("lightning_sm topology: " + json.dumps({"global_rank": 0, "world_size": 2}))``. Print it as one string:
#: images run Python unbuffered, and the toolkit then makes a line of each argument of ``print``.
TOPOLOGY_MARKER = "lightning_sm topology:"

#: The line of a parser's usage error: with argparse after the program's name, with jsonargparse alone.
USAGE_ERROR = re.compile(r"(?:\S+: )?error: ")

# Lightning's line for each rank that joins a process group.
_MEMBER = re.compile(r"GLOBAL_RANK: \d+, MEMBER: \d+/(\d+)")

# What the toolkit writes about a failure without knowing its cause.
_TOOLKIT = re.compile(r"sagemaker-training-toolkit|^(?:ExecuteUserScriptError|ExitCode|ErrorMessage|Command) ?")
_ERROR = re.compile(r"(?i)\w*error\b|\w*exception\b|\bkilled\b|\bfatal\b|no such file|not found")


def find_error_line(texts: Sequence[str]) -> Optional[str]:
    """Return the log line that best explains a failure.

    It is the last usage error of a parser, whose text may go on with lines that name errors of their own, else the
    last line that names an error, else the last.
    """
    own = [text.strip() for text in texts if text.strip() and not _TOOLKIT.search(text)]
    usage = [text for text in own if USAGE_ERROR.match(text)]
    if usage:
        return usage[-1]
    return next((text for text in reversed(own) if _ERROR.search(text)), own[-1] if own else None)


def find_topologies(text: str) -> Iterator[Dict[str, Any]]:
    """Return each topology in a line. There may be several, since the toolkit sometimes joins lines."""
    for part in text.split(TOPOLOGY_MARKER)[1:]:
        try:
            value, _ = json.JSONDecoder().raw_decode(part.lstrip())
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def find_worlds(text: str) -> Iterator[int]:
    """Return the size of each process group that a line tells of: Lightning's own lines, and topologies."""
    for size in _MEMBER.findall(text):
        yield int(size)
    for topology in find_topologies(text):
        if isinstance(topology.get("world_size"), int):
            yield topology["world_size"]
