"""The process under which a whole rehearsal lives. In namespaces it is process 1: all of them end with it.

Its standard input is a pipe from the command that started it: a byte means stop, its end means that it is gone.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from ._attempt import run_attempt
from ._checkpoints import fetch, send
from ._collect import collect
from ._container import run_all
from ._container_files import checkpoint_path
from ._distributions import MPIRUN
from ._errors import RehearsalError
from ._furnish import make_key
from ._logs import LogLine
from ._netns import stage_commands
from ._outcome import Attempt, Outcome
from ._plan import Plan
from ._processes import adopt_orphans, end_all_with
from ._tree import Tree

__all__ = ["main", "play"]


def play(plan: Plan, tree: Tree, stop: threading.Event) -> Outcome:
    """Set up the stage, run the job, once more after a spot interruption, and collect what it left."""
    if plan.namespaced:
        run_all(stage_commands())
    if plan.request.distribution in MPIRUN:
        make_key(tree.keys)
    limits = plan.request.limits
    started = time.monotonic()
    bucket = _bucket(plan, tree)
    interrupt_at = None if limits.interrupt_after is None else started + limits.interrupt_after
    attempts: List[Attempt] = []
    while True:
        before = {host: fetch(bucket, _checkpoints(plan, tree, host)) for host in plan.request.hosts} if bucket else {}
        attempt = run_attempt(
            plan, tree, _say(plan), stop, deadline=started + limits.timeout, interrupt_at=interrupt_at
        )
        attempts.append(attempt)
        if bucket is not None:
            for host, files in before.items():
                send(_checkpoints(plan, tree, host), files, bucket)
        if attempt.ended_by != "interruption":
            break
        _say(plan)(LogLine("rehearsal", None, "Spot interruption: all hosts are gone; the job starts again."))
        shutil.rmtree(tree.host_folders)
        interrupt_at = None
    uploads, warnings = collect(plan, tree, bucket)
    return Outcome(tuple(attempts), uploads, (*warnings, *_unsaved(plan, tree, bucket)))


def _bucket(plan: Plan, tree: Tree) -> Optional[Path]:
    """The folder that stands for the checkpoints' S3 prefix, if the job has one."""
    if not plan.request.has_checkpoints:
        return None
    bucket = plan.request.checkpoint_dir or tree.collected / "checkpoints"
    bucket.mkdir(parents=True, exist_ok=True)
    return bucket


def _checkpoints(plan: Plan, tree: Tree, host: str) -> Path:
    return Path(checkpoint_path(plan.request, str(tree.ml(host))))


def _unsaved(plan: Plan, tree: Tree, bucket: Optional[Path]) -> Tuple[str, ...]:
    if bucket is None and any(any(_checkpoints(plan, tree, host).glob("*")) for host in plan.request.hosts):
        return (
            f"Files in {plan.request.checkpoint_path} are lost with the job: it has no checkpoint configuration "
            "(checkpoint_s3_uri; here --checkpoint-dir).",
        )
    return ()


def _say(plan: Plan) -> _Voice:
    return _Voice(sys.stderr.fileno() if plan.stream == "stderr" else sys.stdout.fileno())


class _Voice:
    """Writes whole lines at once, and goes quiet when nobody listens any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __call__(self, line: LogLine) -> None:
        rest = f"{line}\n".encode()
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            pass


def _watch(stop: threading.Event, orphaned: threading.Event) -> None:
    while os.read(0, 1):
        stop.set()
    orphaned.set()
    stop.set()


def main(argv: Sequence[str]) -> int:
    """Play the rehearsal whose folder is given, and leave the outcome, or the error, in it."""
    tree = Tree(Path(argv[0]))
    plan: Plan = tree.read("plan")
    stop, orphaned = threading.Event(), threading.Event()
    adopt_orphans()
    threading.Thread(target=_watch, args=(stop, orphaned), daemon=True).start()
    result: Dict[str, object] = {}
    try:
        result["outcome"] = play(plan, tree, stop)
    except (RehearsalError, OSError) as error:
        result["error"] = str(error)
    end_all_with(str(tree.root))
    if orphaned.is_set():
        # Whoever started this is gone, so nobody else will.
        tree.remove()
    else:
        tree.write("result", result)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
