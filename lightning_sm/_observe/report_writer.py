"""``ReportWriter``: writes a report, and completes it when the program ends and its failure reason is known."""

import atexit
import os
import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Any, Dict

from lightning_sm._atomic_file import partial_path, remove_on_error, replace_atomically
from lightning_sm._failure import Redactor
from lightning_sm._logging import log
from lightning_sm._observe.page import render
from lightning_sm._observe.report import Outcome, Report
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["ReportWriter", "version_of_file", "warn"]

# The newest writer for each path.
_writers: Dict[str, "ReportWriter"] = {}


class ReportWriter:
    """Writes a report once, and again if the program fails later. It replaces an earlier writer for the same path.

    When the program ends, the report is written if it has not been, so that it never delays what matters more. The
    job's failure file then has the reason of the failure, which may be that of another rank.

    Args:
        path: Where the report is written.
        report: What is known at the end of the fit.
        job: The job.
        known_failure: What :func:`version_of_file` returned for the job's failure file before the fit.
    """

    def __init__(self, path: str, report: Report, job: TrainingJob, known_failure: Any = None) -> None:
        self.path, self.report = path, report
        self._job, self._known = job, known_failure
        self._is_due, self._pid = True, os.getpid()
        if not _writers:
            atexit.register(_complete_all)
        _writers[os.path.realpath(path)] = self

    def complete(self) -> None:
        """Write the report, unless it has been written with all that is known now.

        Raises:
            OSError: It cannot be written.
        """
        failure = None if self.report.outcome is Outcome.STOPPED else self._read_failure()
        if failure:
            is_later = self.report.outcome is Outcome.COMPLETED
            reason = f"After the fit had completed: {failure}" if is_later else failure
            self.report = replace(self.report, outcome=Outcome.FAILED, reason=reason)
            self._is_due = True
        if self._is_due:
            self._is_due = False
            self._write()

    def _read_failure(self) -> str:
        path = self._job.failure_file or ""
        version = version_of_file(path)
        if version not in (None, self._known):
            self._known = version
            with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                return file.read(8192)
        return ""

    def _write(self) -> None:
        page = render(self.report, Redactor(self._job))
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        # Fits in several threads write the same one.
        partial = partial_path(self.path, secrets.token_hex(8))
        with remove_on_error(partial):
            with open(partial, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(page)
            replace_atomically(partial, self.path)
        log.info("Wrote the report of the fit to %s", self.path)


def _complete_all() -> None:
    for writer in list(_writers.values()):
        if writer._pid == os.getpid():
            try:
                writer.complete()
            except Exception as error:
                warn(error)


def version_of_file(path: str) -> Any:
    """Return what changes when a file is written again; ``None`` where it is missing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def warn(error: Exception) -> None:
    """Log that there is no report, or that it is not complete."""
    log.warning("The report of the fit could not be written: %s: %s", type(error).__name__, error)
