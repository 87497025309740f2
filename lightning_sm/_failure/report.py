"""Reports the error that ends the program as the job's failure reason.

An error that the program may still catch is written to the failure file at once and confirmed at exit: it is sent to
the other ranks then, or withdrawn if the program exits successfully.
"""

import atexit
import dis
import os
import sys
import threading
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Iterator, NoReturn, Optional, Tuple, Type

from lightning_sm._failure.failure_file import Redactor, withdraw_unconfirmed, write_failure
from lightning_sm._failure.process import current_monitor, watch_failures
from lightning_sm._failure.reason import FailureReason, find_peer_host, is_lost_peer_error, message_of
from lightning_sm._logging import log
from lightning_sm._sagemaker.exit_codes import SUCCESS, is_success
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import HyperparameterError, LightningSMError

__all__ = [
    "describe_failure",
    "failure_reported",
    "read_job",
    "report",
    "report_exit",
    "report_uncaught",
    "report_usage_errors",
]

# Longer than the monitor needs to notice the loss of a rank or of the server.
_FIRST_FAILURE_TIMEOUT = 8.0

_is_installed = False
_job: Optional[TrainingJob] = None
# The error that the program may still catch: the process that wrote it, the job, the reason.
_unconfirmed: Optional[Tuple[int, TrainingJob, FailureReason]] = None
_outermost_frame: Optional[FrameType] = None
# The argument of the last call of sys.exit.
_exit_code: Optional[Tuple[Any]] = None


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
    report_uncaught(job)
    with suppress(LightningSMError):  # raised again by whoever needs the topology
        watch_failures(job, Topology.resolve(job=job))
    return job


@contextmanager
def failure_reported(job: TrainingJob) -> Iterator[None]:
    """Report each ``LightningSMError`` that leaves the block as the failure reason, unless the program catches it.

    Args:
        job: The job; outside a container nothing is reported.
    """
    try:
        yield
    except LightningSMError as error:
        rank, host, _ = _location(job)
        _write_unconfirmed(job, FailureReason.from_exception(error, rank=rank, host=host, redact=Redactor(job)))
        raise


def describe_failure(error: BaseException, job: TrainingJob) -> str:
    """Return the reason for an error as text, without secrets. Nothing is written or sent.

    Args:
        error: The error.
        job: The job.
    """
    rank, host, _ = _location(job)
    return str(FailureReason.from_exception(error, rank=rank, host=host, redact=Redactor(job)))


def report_uncaught(job: Optional[TrainingJob] = None) -> None:
    """From now on, report the exception that ends this program, or the failure of another rank that caused it.

    It is installed once as ``sys.excepthook``. Exceptions in the child of a fork are not reported, nor is a stop by
    Ctrl-C or SIGTERM.

    Args:
        job: The job, if it has been read already; otherwise it is read when an exception is reported.
    """
    global _is_installed, _job
    _job = _job if job is None else job
    if _is_installed:
        return
    _is_installed = True
    _record_exit()
    previous, pid = sys.excepthook, os.getpid()

    def report_and_print(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        try:
            if os.getpid() == pid and not isinstance(error, KeyboardInterrupt):
                report(error)
        except Exception:  # the program's own error must be printed in any case
            log.exception("The failure could not be reported.")
        previous(kind, error, trace)

    sys.excepthook = report_and_print


def report_exit(error: BaseException, job: Optional[TrainingJob] = None) -> None:
    """Report a ``SystemExit`` raised within a fit, unless its code means success or the program catches it.

    The interpreter passes it to no hook.

    Args:
        error: The exception; any other than ``SystemExit`` is ignored.
        job: The job, if it has been read already.
    """
    if isinstance(error, SystemExit) and not is_success(error.code):
        found = _find_reason(error, job)
        if found is not None:
            _write_unconfirmed(*found)


def report_usage_errors() -> None:
    """From now on, report the error with which an ``argparse`` parser ends this program.

    The interpreter passes a ``SystemExit`` to no hook, and the toolkit's own reason has an empty ``ErrorMessage``.
    """
    import argparse

    original, pid = argparse.ArgumentParser.exit, os.getpid()

    def exit_parser(self: argparse.ArgumentParser, status: int = 0, message: Optional[str] = None) -> Any:
        try:
            original(self, status, message)
        except SystemExit as error:
            if error.code in (None, SUCCESS) or os.getpid() != pid:
                raise
            # jsonargparse, and parsers that override error(), print the message themselves.
            caller = sys._getframe(1)
            printed = message or (caller.f_locals.get("message") if caller.f_code.co_name == "error" else None)
            raise _UsageExit(error.code, str(printed or f"exit code {error.code}")) from None

    argparse.ArgumentParser.exit = exit_parser  # type: ignore[method-assign]


class _UsageExit(SystemExit):
    """The exit of a parser that refused its arguments, which is reported only if the program does not catch it.

    Then the interpreter itself reads ``code``, not a Python function.
    """

    def __init__(self, code: Any, message: str) -> None:
        super().__init__(code)
        self._message = message

    @property
    def code(self) -> Any:  # type: ignore[override]
        if sys._getframe().f_back is None:
            try:
                report(
                    HyperparameterError(
                        f"The script's argument parser exited with an error: {self._message}",
                        hint="SageMaker passes each hyperparameter as --name value. Add missing names to the parser; "
                        "flags without a value (action='store_true') cannot be hyperparameters.",
                    )
                )
            except Exception:  # the program exits as it would without this
                log.exception("The failure could not be reported.")
        return self.args[0]


def report(error: BaseException) -> None:
    """Write the reason for an error that ends this process to the failure file, and send it to the other ranks.

    For an error that follows from the loss of another rank, that rank's failure is written.

    Args:
        error: The error.
    """
    global _unconfirmed
    found = _find_reason(error, _job)
    if found is None:
        return
    job, reason = found
    _unconfirmed = None
    # Before the other ranks receive it: their exit makes the launcher kill this process.
    write_failure(job, str(reason))
    monitor = current_monitor()
    if monitor is not None:
        monitor.publish(reason)


def _write_unconfirmed(job: TrainingJob, reason: FailureReason) -> None:
    """Write the reason now, and send it to the other ranks only if the program exits because of it."""
    global _unconfirmed
    write_failure(job, str(reason), is_final=False)
    if _unconfirmed is None:
        if "torch.distributed" in sys.modules:
            from lightning_sm._lightning.collectives import destroy_at_exit

            # Registered first, so run last: this rank's group must exist until the other ranks know the reason.
            destroy_at_exit()
        atexit.register(_confirm)
    _unconfirmed = (os.getpid(), job, reason)


def _confirm() -> None:
    global _unconfirmed
    unconfirmed, _unconfirmed = _unconfirmed, None
    if unconfirmed is None or unconfirmed[0] != os.getpid():
        return
    _, job, reason = unconfirmed
    if _exited_successfully():
        withdraw_unconfirmed(job)
        return
    monitor = current_monitor()
    if monitor is not None:
        monitor.publish(reason)


def _find_reason(error: BaseException, job: Optional[TrainingJob]) -> Optional[Tuple[TrainingJob, FailureReason]]:
    """Return the job and the reason to report, or ``None`` outside a container."""
    if job is None:
        job = _fallback_job()
        with suppress(LightningSMError):
            job = TrainingJob.resolve()
    if not job.in_container:
        return None
    rank, host, world_size = _location(job)
    reason = FailureReason.from_exception(error, rank=rank, host=host, redact=Redactor(job))
    monitor = current_monitor()
    root = error.__cause__ or error.__context__ or error
    if world_size > 1 and (is_lost_peer_error(error) or is_lost_peer_error(root)):
        first = None if monitor is None else monitor.wait_for_failure(_FIRST_FAILURE_TIMEOUT)
        if first is None:
            peer = find_peer_host(message_of(error), job.hosts)
            ranks = "other ranks" if peer is None else f"other ranks ({peer})"
            reason = FailureReason(f"Lost the connection to {ranks}: {reason.cause}", rank, host, reason.frames)
        else:
            reason = first
    return job, reason


def _fallback_job() -> TrainingJob:
    """What is known of a job whose files cannot be read; outside a container there are none, and reading succeeds."""
    base = os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    output = os.environ.get("SM_OUTPUT_DIR") or os.path.join(base, "output")
    return TrainingJob(in_container=True, failure_file=os.path.join(output, "failure"))


def _location(job: TrainingJob) -> Tuple[Optional[int], Optional[str], int]:
    """Global rank, host and world size, as far as they are known."""
    monitor = current_monitor()
    # Where Lightning starts the processes, only the monitor knows the rank.
    if monitor is not None:
        return monitor.process.rank, monitor.process.host, monitor.world_size
    with suppress(LightningSMError):
        topology = Topology.resolve(job=job)
        return topology.global_rank, job.current_host, topology.world_size or topology.num_nodes
    return None, job.current_host, 1


def _record_exit() -> None:
    """Record what :func:`_exited_successfully` needs: the interpreter tells no hook, nor ``atexit``, the exit code."""
    global _outermost_frame
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_back is not None:
        frame = frame.f_back
    _outermost_frame = frame
    original = sys.exit

    def record_and_exit(status: Any = None, /) -> NoReturn:
        global _exit_code
        _exit_code = (status,)
        original(status)

    sys.exit = record_and_exit


def _exited_successfully() -> bool:
    """Whether the program ran to its last line, or was left by ``sys.exit`` with a code that means success.

    An unknown code, such as of a ``SystemExit`` that did not come from ``sys.exit``, counts as a failure.
    """
    if _outermost_frame is None:
        return False
    # A frame that an exception has left stands at the instruction that raised it, not at a return.
    code = _outermost_frame.f_code.co_code
    last = dis.opname[code[_outermost_frame.f_lasti]] if _outermost_frame.f_lasti >= 0 else ""
    return last.startswith("RETURN") or (_exit_code is not None and is_success(_exit_code[0]))
