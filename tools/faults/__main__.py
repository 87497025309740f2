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
from tools.faults.plan import (
    DAMAGES,
    FOLDER_DAMAGES,
    KILLS,
    KNOWN,
    LIBRARY,
    SHARDED_SETUPS,
    WHERES,
    draw,
    draw_sharded,
)
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
    tables = [_by_kill(verdicts), _by_setup(verdicts)]
    if chosen.strategies:
        tables.insert(0, _by_strategy(verdicts))
    print("\n\n".join(["", *tables, ""]))
    ends = ", ".join(
        f"{sum(_end(verdict) == end for verdict in verdicts)} {end}" for end in ("equal", "known", "failed")
    )
    print(f"{ends} in {time.monotonic() - started:.0f} s")
    return 1 if failed or not verdicts else 0


def _faults(chosen, mounts):
    if not chosen.strategies:
        setups = chosen.setup or sorted(LIBRARY)
        return [draw(seed, setups, mounts=mounts) for seed in range(chosen.seed, chosen.seed + chosen.runs)]
    runs = chosen.runs * len(chosen.strategies)
    setups = chosen.setup or SHARDED_SETUPS
    seeds = range(chosen.seed, chosen.seed + runs)
    return [draw_sharded(seed, chosen.strategies, setups, mounts=mounts) for seed in seeds]


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


def _table(heads, rows):
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (heads, ["---"] * len(heads), *rows))


def _by_kill(verdicts):
    """Counts by what ended the job: how often, amid what, what then happened to its newest save, and the end."""
    rows = []
    for kill in KILLS:
        group = [verdict for verdict in verdicts if verdict.fault.kill == kill]
        moments = [moment.where for verdict in group for moment in verdict.fault.moments]
        two = sum(verdict.fault.hosts * verdict.fault.processes > 1 for verdict in group)
        damages = [sum(verdict.fault.damage == damage for verdict in group) for damage in DAMAGES[1:]]
        steps, seconds = _most(group, "steps"), _most(group, "seconds")
        cells = [kill, len(group), two, _several(group), sum(verdict.times for verdict in group)]
        rows.append([*cells, *map(moments.count, WHERES), *damages, *_ends(group), steps, f"{seconds:.1f}"])
    heads = ["ended by", "runs", "of two processes", "of several fits", "times", *(f"in {where}" for where in WHERES)]
    return _table([*heads, *DAMAGES[1:], "equal end", "known limit", "most steps lost", "most seconds lost"], rows)


def _several(group):
    return sum(verdict.fault.setup in PROGRAMS for verdict in group)


def _by_strategy(verdicts):
    """Counts by strategy, a column each."""
    kinds = sorted({verdict.fault.strategy for verdict in verdicts}, key=list(KINDS).index)
    groups = {kind: [verdict for verdict in verdicts if verdict.fault.strategy == kind] for kind in kinds}

    def row(head, count):
        return [head, *(count(group) for group in groups.values())]

    def of(**wanted):
        return lambda group: sum(
            all(getattr(verdict.fault, name) == value for name, value in wanted.items()) for verdict in group
        )

    damages = dict.fromkeys((*DAMAGES[1:], *FOLDER_DAMAGES[1:]))
    rows = [row("runs", len), row("of two hosts", of(hosts=2)), row("saved in the background", of(background=True))]
    rows += [row("of several fits", _several)]
    rows += [row("interruptions", lambda group: sum(verdict.times for verdict in group))]
    rows += [row(f"ended by {kill}", of(kill=kill)) for kill in KILLS]
    rows += [row(damage, of(damage=damage)) for damage in damages]
    rows += [row("equal end", lambda group: _ends(group)[0])]
    for what, form in (("steps", "{}"), ("seconds", "{:.1f}")):
        rows += [row(f"most {what} lost", lambda group, what=what, form=form: form.format(_most(group, what)))]
    return _table(["", *(kind.replace("_", " ") for kind in kinds)], rows)


def _most(group, what):
    return max((getattr(verdict, f"lost_{what}") for verdict in group if verdict.problem is None), default=0)


def _by_setup(verdicts):
    """Counts by what was trained, with the limit that runs with another end have met."""
    rows = []
    for name in sorted({verdict.fault.setup for verdict in verdicts}):
        group = [verdict for verdict in verdicts if verdict.fault.setup == name]
        two = sum(verdict.fault.hosts * verdict.fault.processes > 1 for verdict in group)
        times, replayed = (sum(getattr(verdict, what) for verdict in group) for what in ("times", "replayed"))
        equal, known = _ends(group)
        limit = f"{known}: {KNOWN[name]}" if known else known
        rows.append([name.replace("_", " "), len(group), two, times, replayed, equal, limit])
    heads = ["set-up", "runs", "of two processes", "times", "fits replayed", "equal end", "known limit"]
    return _table(heads, rows)


def _ends(group):
    ends = [_end(verdict) for verdict in group]
    return f"{ends.count('equal')} of {len(group)}", ends.count("known")


if __name__ == "__main__":
    sys.exit(main())
