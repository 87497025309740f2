"""Makes what ends the program the job's failure reason."""

import atexit
import os
import sys
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Iterator, Optional, Tuple, Type

from lightning_sm._failure._ending import ends_well, is_good_code, watch_ending
from lightning_sm._failure._file import withdraw_unconfirmed, write_failure
from lightning_sm._failure._reason import Reason, message_of
from lightning_sm._failure._secondary import looks_secondary, peer_host
from lightning_sm._failure._secrets import Masker
from lightning_sm._failure._watching import current_monitor, watch_failures
from lightning_sm._lightning.collectives import destroy_at_exit
from lightning_sm._logging import log
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import HyperparameterError, LightningSMError

__all__ = ["failure_reported", "read_job", "report", "report_exit", "report_uncaught", "report_usage_errors"]

# Longer than it takes the monitor to notice that a rank, or the server, is gone.
_ROOT_SECONDS = 8.0

_is_watching = False
# What was written of an error that the program may yet catch: by which process, of which job.
_unconfirmed: Optional[Tuple[int, TrainingJob, Reason]] = None


def read_job() -> TrainingJob:
    """Read the job. Where its files are broken, that is the failure reason; so is from now on what ends the program.

    From here on all ranks hear of it, too, as others would wait for half an hour for a rank that does not join them.

    Raises:
        JobConfigError: A file or variable of the job is broken.
    """
    report_uncaught()
    with failure_reported(_unread_job()):
        job = TrainingJob.resolve()
    with suppress(LightningSMError):  # whoever needs the topology gets the error
        watch_failures(job, Topology.resolve(job=job))
    return job


@contextmanager
def failure_reported(job: TrainingJob) -> Iterator[None]:
    """Write each of our own errors that leaves the block as the job's failure reason, unless the program catches it."""
    try:
        yield
    except LightningSMError as error:
        rank, host, _ = _place(job)
        _write_unconfirmed(job, Reason.of(error, rank=rank, host=host, mask=Masker(job)))
        raise


def report_uncaught() -> None:
    """From now on, an exception that ends this program is the job's failure reason, unless another rank failed before.

    The toolkit's own reason is the log from the first line on that names an exception. Not in a fork's child, whose end
    is not the program's. A stop by Ctrl-C or SIGTERM is no failure.
    """
    global _is_watching
    if _is_watching:
        return
    _is_watching = True
    watch_ending()
    before, pid = sys.excepthook, os.getpid()

    def report_and_print(kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]) -> None:
        try:
            if os.getpid() == pid and not isinstance(error, KeyboardInterrupt):
                report(error)
        except Exception:  # the program's own error must be printed, whatever happens here
            log.exception("The failure could not be reported.")
        before(kind, error, trace)

    sys.excepthook = report_and_print


def report_exit(error: BaseException) -> None:
    """Report a ``sys.exit`` within a fit, unless its code means no failure or the program catches it.

    The interpreter shows it to nobody.
    """
    if isinstance(error, SystemExit) and not is_good_code(error.code):
        found = _find_reason(error)
        if found is not None:
            _write_unconfirmed(*found)


def _write_unconfirmed(job: TrainingJob, reason: Reason) -> None:
    """Write what is a failure if the program ends with it; other ranks hear of it only then."""
    global _unconfirmed
    write_failure(job, str(reason), is_final=False)
    if _unconfirmed is None:
        # Handlers run in reverse order: the others should hear of it before this rank's group is destroyed.
        destroy_at_exit()
        atexit.register(_confirm)
    _unconfirmed = (os.getpid(), job, reason)


def _confirm() -> None:
    global _unconfirmed
    unconfirmed, _unconfirmed = _unconfirmed, None
    if unconfirmed is None or unconfirmed[0] != os.getpid():
        return
    _, job, reason = unconfirmed
    if ends_well():
        withdraw_unconfirmed(job)
        return
    monitor = current_monitor()
    if monitor is not None:
        monitor.publish(reason)


def report_usage_errors() -> None:
    """From now on, the error with which an ``argparse`` parser ends this program is the job's failure reason.

    ``sys.exit`` is shown to nobody, and the toolkit's own reason has an empty ``ErrorMessage``.
    """
    import argparse

    before, pid = argparse.ArgumentParser.exit, os.getpid()

    def leave(self: argparse.ArgumentParser, status: int = 0, message: Optional[str] = None) -> Any:
        try:
            before(self, status, message)
        except SystemExit as error:
            if error.code in (None, 0) or os.getpid() != pid:
                raise
            # jsonargparse, and parsers with an error() of their own, print the message by themselves.
            caller = sys._getframe(1)
            said = message or (caller.f_locals.get("message") if caller.f_code.co_name == "error" else None)
            raise _UsageExit(error.code, str(said or f"exit code {error.code}")) from None

    argparse.ArgumentParser.exit = leave  # type: ignore[method-assign]


class _UsageExit(SystemExit):
    """The end of a program whose arguments were refused. It is one only if nobody catches it.

    The interpreter then asks for ``code``, from no Python function.
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
                        f"The script's own parser ended the program: {self._message}",
                        hint="SageMaker passes each hyperparameter as --name value: one that is not in the script's "
                        "parser, or is a flag without a value there (store_true), cannot be passed.",
                    )
                )
            except Exception:  # the program ends as it would without this
                log.exception("The failure could not be reported.")
        return self.args[0]


def report(error: BaseException) -> None:
    """Write why this process fails into the failure file, and tell the other ranks.

    Where the error looks as if another rank's end brought it about, that rank's failure is reported.
    """
    global _unconfirmed
    found = _find_reason(error)
    if found is None:
        return
    job, reason = found
    _unconfirmed = None
    # Before anybody hears of it: hearing of it, a launcher kills this process.
    write_failure(job, str(reason))
    monitor = current_monitor()
    if monitor is not None:
        monitor.publish(reason)


def _find_reason(error: BaseException) -> Optional[Tuple[TrainingJob, Reason]]:
    """Return the job and why it fails, or ``None`` where that is nobody's concern."""
    job = _unread_job()
    with suppress(LightningSMError):
        job = TrainingJob.resolve()
    if not job.in_container or _will_be_restarted():
        return None
    rank, host, world_size = _place(job)
    reason = Reason.of(error, rank=rank, host=host, mask=Masker(job))
    monitor = current_monitor()
    if world_size > 1 and (looks_secondary(error) or looks_secondary(_root(error))):
        first = None if monitor is None else monitor.wait_for_first(_ROOT_SECONDS)
        if first is None:
            peer = peer_host(message_of(error), job.hosts)
            named = "" if peer is None else f" ({peer})"
            reason = Reason(f"Lost contact with other ranks{named}: {reason.cause}", rank, host, reason.frames)
        else:
            reason = first
    return job, reason


def _unread_job() -> TrainingJob:
    base = os.environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    output = os.environ.get("SM_OUTPUT_DIR") or os.path.join(base, "output")
    # Only a container has something to read, so an error comes from one.
    return TrainingJob(in_container=True, failure_file=os.path.join(output, "failure"))


def _place(job: TrainingJob) -> Tuple[Optional[int], Optional[str], int]:
    """Global rank, host and world size, as far as they are known."""
    monitor = current_monitor()
    # Where Lightning starts the processes, only the monitor was told.
    if monitor is not None:
        return monitor.process.rank, monitor.process.host, monitor.world_size
    with suppress(LightningSMError):
        topology = Topology.resolve(job=job)
        return topology.global_rank, job.current_host, topology.world_size or topology.num_nodes
    return None, job.current_host, 1


def _root(error: BaseException) -> BaseException:
    return error.__cause__ or error.__context__ or error


def _will_be_restarted() -> bool:
    """Whether torchrun starts its workers again after this failure; SageMaker's toolkit never asks it to."""
    done, most = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
    return done.isdigit() and most.isdigit() and int(done) < int(most)
