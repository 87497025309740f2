"""Measures two things in turn, shows its progress, and says whether they differ."""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

__all__ = ["Pairs", "compare", "cpu_seconds", "in_turn", "last_number", "parser", "wall_seconds"]

Measure = Callable[[Sequence[str], Dict[str, str]], float]

# A benchmark ends by then, unless --pairs says how many pairs it measures.
_SECONDS = 290.0
# A difference is believed if as many pairs would agree by chance in less than this share of all cases.
_CHANCE = 0.05


@dataclass(frozen=True)
class Pairs:
    """What was measured, in pairs of ours and theirs.

    Example::

        >>> pairs = Pairs("s", ((1.0, 2.0), (1.5, 2.0), (0.9, 2.0), (1.0, 2.0), (1.0, 2.5), (1.0, 2.0)))
        >>> pairs.ratio, pairs.spread, pairs.verdict
        (0.5, (0.4, 0.75), 'faster')

    Args:
        unit: The unit of the numbers; less is better.
        values: Ours and theirs, pair by pair.
    """

    unit: str
    values: Tuple[Tuple[float, float], ...]

    @property
    def ratios(self) -> Tuple[float, ...]:
        """Ours over theirs."""
        return tuple(ours / theirs for ours, theirs in self.values)

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> Tuple[float, float]:
        """The least and the greatest ratio."""
        return min(self.ratios), max(self.ratios)

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower`` by a two-sided sign test at 5 %, else ``cannot tell``; six pairs can decide.

        A sign test supposes nothing of how the times are distributed, which other programs of a machine disturb. Pairs
        without a difference are left out.
        """
        below = sum(ours < theirs for ours, theirs in self.values)
        above = sum(ours > theirs for ours, theirs in self.values)
        count, fewer = below + above, min(below, above)
        chance = 2 * sum(math.comb(count, number) for number in range(fewer + 1)) / 2**count
        if chance >= _CHANCE:
            return "cannot tell"
        return "faster" if below > above else "slower"

    def to_json(self) -> Dict[str, Any]:
        """What is printed."""
        ours, theirs = zip(*self.values)
        return {
            "unit": self.unit,
            "pairs": len(self.values),
            "ours_median": round(statistics.median(ours), 5),
            "theirs_median": round(statistics.median(theirs), 5),
            "difference_median": round(statistics.median(mine - other for mine, other in self.values), 5),
            "ratio": round(self.ratio, 4),
            "spread": [round(each, 4) for each in self.spread],
            "verdict": self.verdict,
            "load": [round(each, 1) for each in os.getloadavg()],
            "python": sys.version.split()[0],
        }


def wall_seconds(command: Sequence[str], environ: Dict[str, str]) -> float:
    """Run a command in a new folder and return how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        subprocess.run(
            command, env=environ, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return time.perf_counter() - started


def cpu_seconds(command: Sequence[str], environ: Dict[str, str]) -> float:
    """Run a command in a new folder and return its CPU time, which other programs on the machine disturb less."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_seconds(command, environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def last_number(command: Sequence[str], environ: Dict[str, str]) -> float:
    """Run a command and return the number that stands on the last line of its output."""
    done = subprocess.run(
        command, env=environ, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    return float(done.stdout.strip().splitlines()[-1])


def parser(doc: Optional[str]) -> argparse.ArgumentParser:
    """Return the parser of a benchmark's arguments, all of which take ``--pairs N``.

    Args:
        doc: The docstring of the script.
    """
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--pairs", type=int, metavar="N", help="measure so many pairs, however long it takes")
    return found


def compare(
    ours: Sequence[str],
    theirs: Sequence[str],
    *,
    measure: Measure,
    **options: Any,
) -> Pairs:
    """Measure two commands in turn.

    Args:
        ours: The command that uses this package.
        theirs: The command that it is compared with.
        measure: Runs a command and returns a number.
        **options: Those of :func:`in_turn`.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": here}
    # pip compiles what it installs; a checkout is compiled by the run that does not count, if Python may.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return in_turn(lambda: measure(ours, environ), lambda: measure(theirs, environ), **options)


def in_turn(
    ours: Callable[[], float],
    theirs: Callable[[], float],
    *,
    unit: str,
    pairs: Optional[int] = None,
    default: int = 9,
    seconds: float = _SECONDS,
) -> Pairs:
    """Measure two things in turn, after one run of each that does not count; print and return what was measured.

    Args:
        ours: Returns a number for what uses this package.
        theirs: Returns one for what it is compared with.
        unit: The unit of the numbers; less is better.
        pairs: How many pairs are measured; ``None`` for ``default``, or as many as fit into ``seconds``.
        default: How many are measured by default.
        seconds: When a measurement ends by default. Another pair begins only if one like the slowest would fit.
    """
    wanted, started = pairs or default, time.monotonic()
    _say(f"one run of each that does not count, then {wanted} pairs")
    ours(), theirs()
    slowest = time.monotonic() - started
    values: List[Tuple[float, float]] = []
    for number in range(wanted):
        begun = time.monotonic()
        if pairs is None and values and begun + slowest - started > seconds:
            _say(f"{wanted - number} pairs are left out, as another would end after {seconds:.0f} s; --pairs {wanted}")
            break
        # The order changes from pair to pair, so that a drift of the machine favours neither.
        if number % 2 == 0:
            mine = ours()
            other = theirs()
        else:
            other = theirs()
            mine = ours()
        values.append((mine, other))
        now = time.monotonic()
        slowest = max(slowest, now - begun)
        text = f"pair {number + 1} of {wanted}: {mine:.5g} and {other:.5g} {unit}, ratio {mine / other:.3f}"
        _say(f"{text}, after {now - started:.0f} s")
    found = Pairs(unit, tuple(values))
    print(json.dumps(found.to_json(), indent=2), flush=True)
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
