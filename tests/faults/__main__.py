"""Interrupts and damages a training job many times, and prints what became of it.

``python -m tests.faults --runs 100`` takes about 20 seconds a run on two cores.
"""

import argparse
import concurrent.futures
import sys
import time

from tests.faults.campaign import can_mount, play, reference
from tests.faults.plan import DAMAGES, KILLS, draw


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
    """Counts by what ended the job: how often, what then happened to its newest checkpoint, and what became of it."""
    heads = ["ended by", "runs", "times", *DAMAGES, "equal weights", "most steps lost", "most seconds lost"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for kill in KILLS:
        group = [verdict for verdict in verdicts if verdict.fault.kill == kill]
        good = [verdict for verdict in group if verdict.problem is None]
        times = sum(len(verdict.fault.moments) for verdict in group)
        damages = [sum(verdict.fault.damage == damage for verdict in group) for damage in DAMAGES]
        steps, seconds = (max((getattr(v, f"lost_{what}") for v in good), default=0) for what in ("steps", "seconds"))
        cells = [kill, len(group), times, *damages, f"{len(good)} of {len(group)}", steps, f"{seconds:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(["", *lines])


if __name__ == "__main__":
    sys.exit(main())
