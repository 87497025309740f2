"""Interrupts and damages training jobs many times, and prints what became of them.

``python -m tools.faults --runs 300 --jobs 2`` takes about 16 minutes on two cores. With ``--strategies`` all runs have
two processes under sharded strategies, and ``--runs`` counts those of each.
"""

import argparse
import concurrent.futures
import queue
import sys
import threading
import time

from lightning_sm._lightning import installed_namespaces
from tests.helpers.sharded import KINDS
from tools import ROOT
from tools.faults.campaign import DIFFERS, can_mount, play, reference
from tools.faults.plan import DAMAGES, KILLS, KNOWN, LIBRARY, SHARD_DAMAGES, SHARDED_SETUPS, WHERES, draw
from tools.faults.programs import PROGRAMS
from tools.faults.server import Server


def main(arguments=None):
    """Play the runs; return 0 if none ended otherwise than the README says."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="how many faults")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each further one has the next")
    parser.add_argument("--jobs", type=int, default=1, help="how many at the same time")
    parser.add_argument("--again", action="store_true", help="play once more what failed; only a second time counts")
    parser.add_argument("--setup", action="append", choices=sorted(LIBRARY), help="only this one, or these")
    parser.add_argument("--strategies", nargs="+", choices=list(KINDS), help="sharded strategies that take turns")
    chosen = parser.parse_args(arguments)
    mounts = can_mount()
    if not mounts:
        print("Without the right to mount there is no full disk and no read-only directory.")
    faults = _faults(chosen, mounts)
    started = time.monotonic()
    verdicts = []
    player = _Player(chosen.jobs, sharded=bool(chosen.strategies))
    with player, concurrent.futures.ThreadPoolExecutor(chosen.jobs) as pool:
        for verdict in pool.map(player.play, faults):
            verdicts.append(verdict)
            print(_line(verdict), flush=True)
        failed = [verdict for verdict in verdicts if _end(verdict) == "failed"]
        if chosen.again:
            for verdict in failed:
                print(f"FAILED first: {_line(verdict).splitlines()[0]}", flush=True)
            failed = [again for again in pool.map(player.play, [v.fault for v in failed]) if _end(again) == "failed"]
            print("".join(f"FAILED again: {_line(verdict)}\n" for verdict in failed), end="", flush=True)
    print(f"\n{_table(verdicts, 'strategy' if chosen.strategies else 'kill')}\n")
    for name in sorted({verdict.fault.setup for verdict in verdicts if _end(verdict) == "known"}):
        print(f"known limit: {name}: {KNOWN[name]}")
    ends = ", ".join(
        f"{sum(_end(verdict) == end for verdict in verdicts)} {end}" for end in ("equal", "known", "failed")
    )
    print(f"{ends} in {time.monotonic() - started:.0f} s")
    return 1 if failed or not verdicts else 0


def _faults(chosen, mounts):
    strategies = chosen.strategies or ()
    setups = chosen.setup or (SHARDED_SETUPS if strategies else sorted(LIBRARY))
    seeds = range(chosen.seed, chosen.seed + chosen.runs * max(1, len(strategies)))
    return [draw(seed, setups, mounts=mounts, strategies=strategies) for seed in seeds]


class _Player:
    """Plays faults, each with a server of its own, and each set-up once in each world without any."""

    def __init__(self, jobs, *, sharded):
        self._servers = queue.Queue()
        modules = ("tools.faults.late_imports",) if sharded else ()
        for _ in range(jobs):
            self._servers.put(Server(installed_namespaces()[0].name, ROOT, modules))
        self._lock = threading.Lock()
        self._expected = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        while not self._servers.empty():
            self._servers.get().end()

    def play(self, fault):
        server = self._servers.get()
        try:
            # Two ranks of a sharded strategy compute the same wherever they are.
            world = (1, 2, fault.strategy) if fault.strategy else (fault.hosts, fault.processes)
            return play(server, fault, self._reference(server, fault.setup, *world))
        finally:
            self._servers.put(server)

    def _reference(self, server, *world):
        with self._lock:
            lock = self._expected.setdefault(world, [threading.Lock()])
        with lock[0]:
            if len(lock) == 1:
                lock.append(reference(server, *world))
            return lock[1]


def _end(verdict):
    if verdict.problem is None:
        return "equal"
    return "known" if DIFFERS in verdict.problem and verdict.fault.setup in KNOWN else "failed"


def _line(verdict):
    end = verdict.problem or f"lost {verdict.lost_steps} steps, {verdict.lost_seconds:.2f} s"
    return f"seed {verdict.fault.seed}: {verdict.fault}: {end}"


def _table(verdicts, by):
    """Counts of runs, with a column for each strategy, or for each thing that has ended the jobs."""
    order = list(KINDS) if by == "strategy" else list(KILLS)
    groups = [[each for each in verdicts if getattr(each.fault, by) == value] for value in order]
    columns = [(value, group) for value, group in zip(order, groups) if group]

    def row(head, count):
        cells = [count(group) for _, group in columns]
        return [head, *cells] if any(cells) else []

    def of(is_one):
        return lambda group: sum(is_one(verdict.fault) for verdict in group)

    def most(what):
        return lambda group: max((getattr(each, what) for each in group if each.problem is None), default=0)

    rows = [
        row("runs", len),
        row("of two processes", of(lambda fault: fault.hosts * fault.processes > 1)),
        row("of two hosts", of(lambda fault: fault.hosts == 2)),
        row("of several fits", of(lambda fault: fault.setup in PROGRAMS)),
        row("saved in the background", of(lambda fault: fault.background)),
        row("interruptions", lambda group: sum(verdict.times for verdict in group)),
        row("fits replayed", lambda group: sum(verdict.replayed for verdict in group)),
        *(row(f"ended by {kill}", of(lambda fault, kill=kill: fault.kill == kill)) for kill in KILLS if by != "kill"),
        *(
            row(f"in {where}", of(lambda fault, where=where: any(each.where == where for each in fault.moments)))
            for where in WHERES
        ),
        *(
            row(damage, of(lambda fault, damage=damage: fault.damage == damage))
            for damage in (*DAMAGES[1:], *SHARD_DAMAGES)
        ),
        row("equal end", lambda group: sum(_end(verdict) == "equal" for verdict in group)),
        row("known limit", lambda group: sum(_end(verdict) == "known" for verdict in group)),
        row("most steps lost", most("lost_steps")),
        row("most seconds lost", lambda group: f"{most('lost_seconds')(group):.1f}"),
    ]
    heads = ["", *(value.replace("_", " ") for value, _ in columns)]
    lines = [heads, ["---"] * len(heads), *filter(None, rows)]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
