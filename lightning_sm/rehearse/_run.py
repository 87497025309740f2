"""From a request to its summary: checks, the stage in its namespaces, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Dict, Iterator, Optional, Sequence, Tuple

from ._checks import check_entry_point, check_port, check_software
from ._container_files import pack_source
from ._differences import differences
from ._drivers_v3 import write_drivers
from ._errors import RehearsalError
from ._isolation import Isolation, choose
from ._outcome import Outcome
from ._plan import Plan, make_plan
from ._processes import end_all_with
from ._python import make_python
from ._request import RehearsalRequest
from ._s3 import send_results
from ._summary import Summary
from ._tree import Tree

__all__ = ["check", "new_tree", "rehearse", "stage_command", "terminable"]

# A stage that is told to stop kills its hosts and is gone within a second or two.
_PATIENCE = 20.0


def check(request: RehearsalRequest, wanted: str) -> Isolation:
    """Everything that can be found wrong before anything is started, and the isolation to use.

    Raises:
        RehearsalError: It would fail; the message says why.
    """
    check_entry_point(request)
    check_software(request)
    isolation = choose(request, wanted)
    if isolation.name == "loopback":
        check_port()
    return isolation


def rehearse(
    request: RehearsalRequest, isolation: Isolation, tree: Tree, *, stream: str = "stdout", keep: bool = False
) -> Summary:
    """Play the request and tell how it went. ``tree`` is an empty folder, gone afterwards unless it is to be kept.

    Raises:
        RehearsalError: The stage could not be set up.
    """
    try:
        tree.shared.mkdir(parents=True, exist_ok=True)
        if request.code is not None and request.sdk == "v2":
            pack_source(request.code, tree.archive)
        elif request.code is not None:
            write_drivers(tree.drivers, request)
        notes = make_python(request, tree)
        plan = make_plan(request, isolation.name, os.environ, tree, stream)
        outcome = _play(plan, isolation, tree)
        collected = _deliver(tree, request.output_dir)
        if request.output_dir is None:
            collected = send_results(request, tree)
    finally:
        # Whatever a stage that was killed could not end or remove.
        end_all_with(str(tree.root))
        if keep:
            shutil.rmtree(tree.keys, ignore_errors=True)
            shutil.rmtree(tree.python, ignore_errors=True)
        else:
            tree.remove()
    return Summary(
        job_name=request.job_name,
        isolation=isolation.name,
        distribution=request.distribution,
        sdk=request.sdk,
        outcome=outcome,
        warnings=(*outcome.warnings, *notes, *differences(request, isolation.name)),
        collected=collected,
        kept=str(tree.root) if keep else None,
    )


def new_tree() -> Tree:
    """An empty folder for one rehearsal."""
    return Tree(Path(tempfile.mkdtemp(prefix="lightning-sm-rehearsal-")).resolve())


def stage_command(isolation: Isolation, tree: Tree) -> Tuple[str, ...]:
    """The command that is the stage."""
    inside = (sys.executable, "-m", "lightning_sm.rehearse._stage", str(tree.root))
    if not isolation.namespaces:
        return inside
    return ("unshare", *isolation.namespaces, "--mount-proc", "--kill-child", *inside)


def _play(plan: Plan, isolation: Isolation, tree: Tree) -> Outcome:
    tree.write("plan", plan)
    sys.stdout.flush()
    stage = subprocess.Popen(
        stage_command(isolation, tree),
        stdin=subprocess.PIPE,
        # A session of its own: Ctrl-C is for this process, which then asks the stage to stop.
        start_new_session=True,
        env=_stage_environment(),
    )
    assert stage.stdin is not None
    try:
        stage.wait()
    except KeyboardInterrupt:
        _stop(stage)
    except BaseException:
        stage.kill()
        stage.wait()
        raise
    finally:
        with contextlib.suppress(OSError):
            stage.stdin.close()
    result: Dict[str, object] = tree.read("result") or {}
    outcome = result.get("outcome")
    if isinstance(outcome, Outcome):
        return outcome
    raise RehearsalError(str(result.get("error") or f"The stage was killed (it ended with {stage.returncode})."))


def _stop(stage: subprocess.Popen[bytes]) -> None:
    assert stage.stdin is not None
    with contextlib.suppress(OSError):
        stage.stdin.write(b"s")
        stage.stdin.flush()
    try:
        stage.wait(timeout=_PATIENCE)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        stage.kill()
        stage.wait()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP stop the rehearsal as Ctrl-C does. Only the main thread may change that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stage_environment() -> Dict[str, str]:
    # The stage runs this very package, wherever this process found it.
    package = str(Path(__file__).resolve().parents[2])
    known: Sequence[str] = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known), "PATH": path}


def _deliver(tree: Tree, output_dir: Optional[Path]) -> Optional[str]:
    if output_dir is None or not tree.collected.is_dir():
        return None
    output_dir.mkdir(parents=True, exist_ok=True)
    for path in sorted(tree.collected.rglob("*")):
        if path.is_file():
            target = output_dir / path.relative_to(tree.collected)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    return str(output_dir)
