"""Runs a rehearsal: checks, source archive, the containers' Python, the job, results.

Nothing is left running or on disk.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Iterator, Optional, TextIO, Tuple

from lightning_sm.launch import pack_source
from lightning_sm.rehearse._checks import TITLES, check_folders, check_software, choose_isolation
from lightning_sm.rehearse._comparison import compare_software, compare_worlds, differences
from lightning_sm.rehearse._holder import hold
from lightning_sm.rehearse._host import kill_marked
from lightning_sm.rehearse._job import run_job
from lightning_sm.rehearse._outcome import Outcome
from lightning_sm.rehearse._plan import RehearsalFolder, create_plan
from lightning_sm.rehearse._python_env import create_python_env
from lightning_sm.rehearse._request import Isolation, RehearsalRequest
from lightning_sm.rehearse._storage import deliver_results, download_inputs

__all__ = ["rehearse"]


def rehearse(request: RehearsalRequest, *, log_to_stderr: bool = False) -> Outcome:
    """Run a training job on this machine with SageMaker's container software, and return how it ended.

    The job's log lines go to this process's standard output while it runs. SIGTERM and SIGHUP end the rehearsal as
    Ctrl-C does, if this is called in the main thread: once the hosts have started, the outcome is a stopped job.

    It reads this process's environment: ``PATH``; the proxy, certificate, ``AWS_…`` and ``PIP_…`` variables, which the
    containers get; ``AWS_ENDPOINT_URL`` for ``s3://`` folders of a request; ``TMPDIR`` for its temporary folder.

    Args:
        request: The job, from :func:`create_request` or :func:`request_from_body`.
        log_to_stderr: Write the job's log lines to the standard error.

    Raises:
        RehearsalError: The request cannot be rehearsed on this machine, or a host could not be set up. A job that fails
            is an outcome and not an error.
        LaunchError: The source folder cannot be packed.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came before the hosts had started.

    Example::

        outcome = rehearse(create_request("train.py", hosts=2, distribution="torch_distributed"))
        assert outcome.exit_code == 0, outcome.failure_reason
        print(outcome.as_text())
    """
    stream = sys.stderr if log_to_stderr else sys.stdout
    # Around everything, so that a second signal does not leave files behind.
    with _interrupt_on_sigterm():
        check_folders(request)
        folder = RehearsalFolder(Path(tempfile.mkdtemp(prefix="lightning-sm-rehearsal-")).resolve())
        try:
            request = download_inputs(request, folder)
            check_software(request)
            isolation = choose_isolation(request)
            print(f"isolation: {TITLES[isolation]}", file=stream, flush=True)
            with hold(isolation, folder) as enter:
                return _run(request, isolation, folder, enter, stream)
        finally:
            # Also where the holder was killed.
            kill_marked(str(folder.root))
            folder.remove()


def _run(
    request: RehearsalRequest, isolation: Isolation, folder: RehearsalFolder, enter: Tuple[str, ...], stream: TextIO
) -> Outcome:
    folder.archive.parent.mkdir(parents=True, exist_ok=True)
    source_dir = request.options.source_dir
    if source_dir is not None and request.sdk == "v2":
        packed = pack_source(Path(source_dir), folder.archive, allowed=request.options.allow_files)
        print(f"Source of {source_dir}: {packed}", file=stream, flush=True)
    notes = create_python_env(request, folder)
    plan = create_plan(request, isolation, os.environ, folder, enter)
    outcome = run_job(plan, stream)
    return dataclasses.replace(
        outcome,
        warnings=(*outcome.warnings, *notes, compare_software(request, folder), *differences(request, isolation)),
        problems=tuple(filter(None, [compare_worlds(plan.request, outcome)])),
        collected=deliver_results(request, folder),
    )


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP. Only the main thread may set a handler."""
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
