"""Seconds to make and write a report of a million points, and its size.

Run ``python benchmarks/report_time.py [--pairs N]``.

Ours thins the points, draws the curves and writes the page. The reference writes the same points as CSV. Both have them
in memory before: 20 metrics with 50,000 points each, recorded without thinning.
"""

import csv
import json
import math
import os
import sys
import tempfile
import time
from typing import List

from _pairs import compare, last_number, parser

_METRICS, _STEPS = 20, 50_000


def _values(metric: int) -> List[float]:
    return [math.exp(-step / 20_000) + math.sin(step * metric) * 0.1 for step in range(_STEPS)]


def _write_report(path: str) -> float:
    from lightning_sm import TrainingJob
    from lightning_sm._observe.history import Attempt, History
    from lightning_sm._observe.report import Outcome, Report
    from lightning_sm._observe.report_writer import ReportWriter

    history = History()
    history.add_attempt(Attempt(0.0))
    for number in range(_METRICS):
        for step, value in enumerate(_values(number)):
            history.add(f"metric_{number}", step, value)
    report = Report(Outcome.COMPLETED, history=history, steps=_STEPS)
    started = time.perf_counter()
    ReportWriter(path, report, TrainingJob()).complete()
    return time.perf_counter() - started


def _write_csv(path: str) -> float:
    columns = [range(_STEPS), *(_values(number) for number in range(_METRICS))]
    started = time.perf_counter()
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(zip(*columns))
    return time.perf_counter() - started


def _measure(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "written")
        seconds = _write_report(path) if kind == "report" else _write_csv(path)
    print(seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        _measure(sys.argv[2])
    else:
        given = parser(__doc__).parse_args()
        here = os.path.abspath(__file__)
        with tempfile.TemporaryDirectory() as work:
            target = os.path.join(work, "report.html")
            _write_report(target)
            print(json.dumps({"bytes_of_the_report": os.path.getsize(target)}))
        commands = ([sys.executable, here, "worker", kind] for kind in ("report", "csv"))
        ours, reference = commands
        compare(ours, reference, measure=last_number, unit="s", pairs=given.pairs)
