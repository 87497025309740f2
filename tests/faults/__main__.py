"""Interrupts and damages a training job many times, and prints what became of it.

``python -m tests.faults --runs 100`` takes about 20 seconds a run on two cores.
"""

import argparse
import collections
import concurrent.futures
import sys
import time

from tests.faults.campaign import can_mount, play, reference
from tests.faults.plan import draw


def main(arguments=None):
    """Play the runs; return 0 if nothing was lost in any."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many faults")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each further one has the next")
    parser.add_argument("--jobs", type=int, default=1, help="how many at the same time")
    chosen = parser.parse_args(arguments)
    mounts = can_mount()
    if not mounts:
        print("Without the right to mount there is no full disk and no read-only directory.")
    faults = [draw(seed, mounts=mounts) for seed in range(chosen.seed, chosen.seed + chosen.runs)]
    started = time.monotonic()
    worlds = sorted({(fault.hosts, fault.processes) for fault in faults})
    expected = {world: reference(*world) for world in worlds}
    verdicts = []
    with concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for verdict in pool.map(lambda fault: play(fault, expected[fault.hosts, fault.processes]), faults):
            verdicts.append(verdict)
            print(_line(verdict), flush=True)
    print(_table(verdicts))
    failed = [verdict for verdict in verdicts if verdict.problem]
    print(f"{len(verdicts) - len(failed)} passed, {len(failed)} failed in {time.monotonic() - started:.0f} s")
    return 1 if failed or not verdicts else 0


def _line(verdict):
    end = verdict.problem or f"lost {verdict.lost_steps} steps, {verdict.lost_seconds:.2f} s"
    return f"seed {verdict.fault.seed}: {verdict.fault}: {end}"


def _table(verdicts):
    """Counts by what ended the job and what happened to the newest checkpoint."""
    rows = collections.defaultdict(list)
    for verdict in verdicts:
        rows[verdict.fault.kill, verdict.fault.damage].append(verdict)
    lines = ["", "| ended by | newest checkpoint | runs | resumed, equal weights | most steps lost | seconds |"]
    lines.append("|---|---|---|---|---|---|")
    for (kill, damage), group in sorted(rows.items()):
        good = [verdict for verdict in group if verdict.problem is None]
        steps, seconds = (max((getattr(v, f"lost_{what}") for v in good), default=0) for what in ("steps", "seconds"))
        lines.append(f"| {kill} | {damage} | {len(group)} | {len(good)} | {steps} | {seconds:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
