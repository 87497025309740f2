"""Measures two commands in turn and prints the ratio of what they report."""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Callable, Dict, List, Sequence

__all__ = ["compare", "cpu_seconds", "last_number", "wall_seconds"]

Measure = Callable[[Sequence[str], Dict[str, str]], float]


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


def compare(ours: Sequence[str], theirs: Sequence[str], *, measure: Measure, runs: int, unit: str) -> None:
    """Measure both commands ``runs`` times in turn, after one run of each that does not count, and print the medians.

    Args:
        ours: The command that uses this package.
        theirs: The command that it is compared with.
        measure: Runs a command and returns a number.
        runs: Counted runs of each.
        unit: The unit of the numbers.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYTHONPATH": here}
    # pip compiles what it installs; a checkout is compiled by the run that does not count, if Python may.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    measure(ours, environ), measure(theirs, environ)
    pairs: List[List[float]] = []
    for run in range(runs):
        # The order changes from pair to pair, so that a drift of the machine favours neither.
        first, second = (ours, theirs) if run % 2 == 0 else (theirs, ours)
        one, other = measure(first, environ), measure(second, environ)
        pairs.append([one, other] if run % 2 == 0 else [other, one])
    ratios = [mine / other for mine, other in pairs]
    print(
        json.dumps(
            {
                "unit": unit,
                "runs": runs,
                "ours_median": round(statistics.median(mine for mine, _ in pairs), 5),
                "theirs_median": round(statistics.median(other for _, other in pairs), 5),
                "difference_median": round(statistics.median(mine - other for mine, other in pairs), 5),
                "ratio_median": round(statistics.median(ratios), 4),
                "ratio_min": round(min(ratios), 4),
                "ratio_max": round(max(ratios), 4),
                "python": sys.version.split()[0],
            },
            indent=2,
        )
    )
