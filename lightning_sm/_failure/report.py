"""Reports the error that ends the program as the job's failure reason.

An error that the program may still catch is noted, and reported only if the program then ends with a code that means
failure.
"""

import atexit
import dis
import os
import sys
import threading
import traceback
from _sitebuiltins import Quitter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Iterator, NoReturn, Optional, Tuple

from lightning_sm._failure.failure_file import write_failure
from lightning_sm._failure.process import current_monitor, stop_watching, watch_failures
from lightning_sm._failure.reason import FailureReason, is_lost_peer_error
from lightning_sm._failure.redact import Redactor
from lightning_sm._failure.speaker import speaks_for_job
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import is_success
from lightning_sm._sagemaker.in_job import is_in_job
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import HyperparameterError, LightningSMError

__all__ = [
    "describe_failure",
    "failure_reported",
    "forget_exit",
    "read_job",
    "report",
    "report_exit",
    "report_noted",
    "report_uncaught",
]

# Longer than the monitor needs to notice the loss of a rank or of the server.
_FIRST_FAILURE_TIMEOUT = 12.0

_is_installed = False
_noted: Optional["_Noted"] = None
# The argument of the last call of sys.exit or exit.
_exit_code: Optional[Tuple[Any]] = None


@dataclass(frozen=True)
class _Noted:
    """The last error that the program may still catch, and the frame in which the program began."""

    job: TrainingJob
    reason: str
    is_exit: bool
    outermost: Optional[FrameType]


def read_job() -> TrainingJob:
    """Read the job, and from now on report failures of this process and receive those of other ranks.

    It is called early: before the ranks have joined, others would wait for half an hour for a rank that fails.
    :meth:`TrainingJob.resolve <lightning_sm.TrainingJob.resolve>` lists what is read.

    Raises:
        JobConfigError: A file or variable of the job is broken; this is reported as the failure reason.
    """
    report_uncaught()
    with failure_reported(_fallback_job()):
        job = TrainingJob.resolve()
    with suppress(LightningSMError):  # raised again by whoever needs the topology
        watch_failures(job, Topology.resolve(job=job))
    return job


@contextmanager
def failure_reported(job: TrainingJob) -> Iterator[None]:
    """Note each ``LightningSMError`` that leaves the block: the reason if the program catches it and ends with failure.

    Args:
        job: The job; outside a container nothing is reported.
    """
    try:
        yield
    except LightningSMError as error:
        _note(error, job)
        raise


def describe_failure(error: BaseException, job: TrainingJob) -> str:
    """Return the reason for an error as text, without secrets. Nothing is written or sent.

    Args:
        error: The error.
        job: The job.
    """
    return str(_describe(error, job)[0])


def report_uncaught() -> None:
    """From now on, report the error that ends this program, or the failure of another rank that caused it.

    These are an uncaught exception, and the error that is being handled or was noted when ``sys.exit``, ``exit``,
    ``quit`` or ``os._exit`` is called with a code that means failure; else the message that is given instead of a code;
    also what an ``argparse`` parser finds in the arguments. A stop by Ctrl-C or SIGTERM is none. Only the first call
    has an effect.
    """
    global _is_installed
    # Whether this process speaks is decided now, before it starts others.
    if _is_installed or not is_in_job(os.environ) or not speaks_for_job():
        return
    _is_installed = True
    exit_program, exit_at_once, quit_program = sys.exit, os._exit, Quitter.__call__

    def report_before_hook(event: str, values: Tuple[Any, ...]) -> None:
        if event == "sys.excepthook" and not isinstance(values[2], KeyboardInterrupt):
            with _never_raising():
                report(values[2])

    @_never_raising()
    def note(status: Any, caller: FrameType) -> None:
        # In another thread it ends that thread.
        if threading.current_thread() is threading.main_thread():
            _note_exit(status, caller)

    def note_and_exit(status: Any = None, /) -> NoReturn:
        note(status, sys._getframe(1))
        exit_program(status)

    def note_and_quit(self: Quitter, code: Any = None) -> NoReturn:
        note(code, sys._getframe(1))
        quit_program(self, code)

    def report_and_exit_at_once(status: int) -> NoReturn:
        with _never_raising():
            _note_exit(status, sys._getframe(1))
            if is_success(status):
                stop_watching()
            else:
                report_noted()
        exit_at_once(status)

    sys.exit, os._exit = note_and_exit, report_and_exit_at_once
    # exit() and quit(), which are not sys.exit.
    Quitter.__call__ = note_and_quit  # type: ignore[method-assign]
    # The interpreter raises the event before it calls the hook, which libraries that print tracebacks replace.
    sys.addaudithook(report_before_hook)


@contextmanager
def _never_raising() -> Iterator[None]:
    """Log an error of reporting: the program ends as it would without this."""
    try:
        yield
    except Exception:
        log.exception("The failure could not be reported.")


def _note_exit(status: Any, caller: FrameType) -> None:
    """Note why the program exits: the error that it handles, its message, or what the parser says that calls this."""
    global _exit_code
    error = sys.exc_info()[1]
    _exit_code = (status,)
    if is_success(status):
        return
    usage = _usage_error(caller, status)
    if usage is not None and not isinstance(error, LightningSMError):
        _note(usage, None)
    elif isinstance(error, Exception):
        _note(error, None)
    elif not isinstance(status, int):
        _note(SystemExit(status), None)


def _usage_error(caller: FrameType, status: Any) -> Optional[HyperparameterError]:
    """Return the error of an ``argparse`` parser whose method ``exit`` is the caller of ``sys.exit``."""
    argparse = sys.modules.get("argparse")
    if argparse is None or caller.f_code is not argparse.ArgumentParser.exit.__code__:
        return None
    parser, message, error_method = caller.f_locals["self"], caller.f_locals["message"], caller.f_back
    if not message and error_method is not None and error_method.f_code.co_name == "error":
        # jsonargparse, and parsers that override error(), print the message themselves.
        message = error_method.f_locals.get("message")
    hint = (
        "SageMaker passes each hyperparameter as --name value. Add missing names to the parser; "
        "flags without a value (action='store_true') cannot be hyperparameters."
    )
    is_lightning_cli = any(cls.__name__ == "LightningArgumentParser" for cls in type(parser).__mro__)
    if is_lightning_cli and "lightning_sm.cli" not in sys.modules:
        hint = (
            "Replace LightningCLI by lightning_sm.cli.SageMakerCLI, which takes what SageMaker passes: --name value, "
            "without a subcommand."
        )
    said = message or f"exit code {status}"
    return HyperparameterError(f"The script's argument parser exited with an error: {said}", hint=hint)


def forget_exit() -> None:
    """Forget how the program was last about to exit: it has caught that, as it begins to train."""
    global _exit_code, _noted
    _exit_code = None
    if _noted is not None:
        _noted = replace(_noted, is_exit=False)


def report_exit(error: BaseException) -> None:
    """Note a ``SystemExit`` raised within a fit, unless its code means success.

    The interpreter passes it to no hook.

    Args:
        error: The exception; any other than ``SystemExit`` is ignored.
    """
    if isinstance(error, SystemExit) and not is_success(error.code):
        _note(error, None)


def report(error: BaseException) -> None:
    """Write the reason for an error that ends this process to the failure file, and send it to the other ranks.

    For an error that follows from the loss of another rank, that rank's failure is written.

    Args:
        error: The error.
    """
    global _noted
    found = _find_reason(error, None)
    if found is not None:
        _noted = None
        _publish(*found)


def report_noted() -> None:
    """Report the error that was noted last, if there is one: the program ends with a code that means failure."""
    global _noted
    noted, _noted = _noted, None
    if noted is not None and speaks_for_job():
        _publish(noted.job, noted.reason)


def _publish(job: TrainingJob, reason: str) -> None:
    # Before the other ranks receive it: their exit makes the launcher kill this process.
    write_failure(job.failure_file, reason)
    monitor = current_monitor()
    if monitor is not None:
        monitor.publish(reason)


def _note(error: BaseException, job: Optional[TrainingJob]) -> None:
    global _noted
    found = _find_reason(error, job)
    if found is None:
        return
    if _noted is None:
        if "torch.distributed" in sys.modules:
            from lightning_sm._lightning.collectives import destroy_at_exit

            # Registered first, so run last: this rank's group must exist until the other ranks know the reason.
            destroy_at_exit()
        atexit.register(_report_at_exit)
    _noted = _Noted(*found, isinstance(error, SystemExit), _outermost_frame())


def _outermost_frame() -> Optional[FrameType]:
    frames = list(traceback.walk_stack(sys._current_frames().get(threading.main_thread().ident or 0)))
    return frames[-1][0] if frames else None


def _report_at_exit() -> None:
    if _noted is not None and _has_failed(_noted):
        report_noted()


def _has_failed(noted: _Noted) -> bool:
    """Whether the program was left by an exit with a code that means failure; in doubt it was not.

    The interpreter tells neither a hook nor ``atexit`` the exit code. It is known where the program ran to its last
    line, or called ``sys.exit``. A ``SystemExit`` that was raised otherwise is the noted one, or its code is unknown.
    """
    frame = noted.outermost
    # A frame that an exception has left stands at the instruction that raised it, not at a return.
    if (
        frame is not None
        and frame.f_lasti >= 0
        and dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("RETURN")
    ):
        return False
    return noted.is_exit if _exit_code is None else not is_success(_exit_code[0])


def _find_reason(error: BaseException, job: Optional[TrainingJob]) -> Optional[Tuple[TrainingJob, str]]:
    """Return the job and the reason to report, or ``None`` if there is no job or this process does not speak for it."""
    if job is None:
        job = _fallback_job()
        with suppress(LightningSMError):
            job = TrainingJob.resolve()
    if not (job.in_container and speaks_for_job()):
        return None
    reason, has_others = _describe(error, job)
    root = error.__cause__ or error.__context__ or error
    if has_others and (is_lost_peer_error(error) or is_lost_peer_error(root)):
        monitor = current_monitor()
        first = None if monitor is None else monitor.wait_for_failure(_FIRST_FAILURE_TIMEOUT)
        return job, first or str(replace(reason, cause=f"Lost the connection to other ranks: {reason.cause}"))
    return job, str(reason)


def _describe(error: BaseException, job: TrainingJob) -> Tuple[FailureReason, bool]:
    """Return the reason for an error, and whether there are other ranks."""
    monitor = current_monitor()
    rank, host, has_others = None, job.current_host, monitor is not None
    # Where Lightning starts the processes, only the monitor knows the rank.
    if monitor is not None:
        rank = monitor.settings.process.rank
    else:
        with suppress(LightningSMError):
            topology = Topology.resolve(job=job)
            rank, has_others = topology.global_rank, (topology.world_size or topology.num_nodes) > 1
    try:
        reason = FailureReason.from_exception(error, rank=rank, host=host, redact=Redactor(job))
    except Exception:  # the other ranks must be told in any case
        log.exception("The failure could not be described.")
        reason = FailureReason(type(error).__name__, rank, host)
    return reason, has_others


def _fallback_job() -> TrainingJob:
    """What is known of a job whose files cannot be read."""
    base = os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    output = os.environ.get("SM_OUTPUT_DIR") or os.path.join(base, "output")
    return TrainingJob(in_container=is_in_job(os.environ), failure_file=os.path.join(output, "failure"))
