"""Uploads the files of local directories to remote storage while the program that writes them goes on."""

import atexit
import functools
import importlib
import importlib.util
import os
import re
import stat
import textwrap
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from lightning_sm._failure import redact_patterns
from lightning_sm._logging import log
from lightning_sm.errors import LoggerError

__all__ = ["DirectoryUpload", "check_packages"]

# Seconds to wait at most between two attempts while uploads fail.
_MAX_DELAY = 300.0
# S3 has no append: each upload sends a whole file. A pause of this many times the duration of an upload bounds the
# share of the time, and of the network, that large files can take.
_PAUSES = 9
# Seconds from the start of the thread to its first upload, which shows early that nothing can be uploaded.
_FIRST_DELAY = 5.0
# Seconds that the end of a fit, or of the process, waits for the last upload.
_LAST_SECONDS = 30.0

# Names of old buckets have capitals and underscores.
_S3_URL = re.compile(r"s3://[A-Za-z0-9._-]{1,255}(/[^?#]*)?")
# Size and time of modification, by which a change is seen.
_State = Tuple[int, int]
_Put = Callable[[str, str], None]


def check_packages(url: str) -> None:
    """Check that the package that uploads TensorBoard files to a URL is installed.

    Args:
        url: The URL, such as ``s3://bucket/runs``.

    Raises:
        LoggerError: It is missing, there is none for this kind of URL, or the URL names no bucket of S3.

    Example::

        >>> check_packages("memory://runs")
    """
    scheme, shown = url.split("://", 1)[0], redact_patterns(url)
    if scheme == "s3":
        if not _S3_URL.fullmatch(url):
            raise LoggerError(
                f"TensorBoard files cannot be written to {shown}, which names no bucket of S3.",
                hint="It has the form s3://BUCKET/PREFIX, without user, password or query; the role gives access.",
            )
        if importlib.util.find_spec("boto3") is None:
            raise LoggerError(
                f"TensorBoard files cannot be written to {shown}: boto3 cannot be imported.",
                hint="pip install 'lightning-sm[s3]', for a job by requirements.txt.",
            )
    else:
        try:
            importlib.import_module("fsspec").get_filesystem_class(scheme)
        except (ImportError, ValueError) as error:
            raise LoggerError(
                f"TensorBoard files cannot be written to {shown}: {error}.",
                hint="Use an s3:// URL, or install the package that fsspec needs for this one.",
            ) from error


class DirectoryUpload:
    """Uploads each changed file of local directories, again and again, in a thread.

    A file is uploaded as a whole and replaces the earlier one at once, so that readers never see a part of an upload.
    Failed uploads are retried, at growing intervals. Nothing that fails here is raised.

    Args:
        targets: The URL that each directory is uploaded to.
        interval: Seconds between two uploads.
        flush: Is called before each upload, in the thread, to write what is buffered to the files.
    """

    def __init__(self, targets: Mapping[str, str], interval: float, flush: Callable[[], None] = lambda: None) -> None:
        self._targets = [_target(directory, url) for directory, url in targets.items()]
        self._interval, self._flush = interval, flush
        self._stop = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._pid: Optional[int] = None

    def start(self) -> None:
        """Upload from now on, until :meth:`stop`. What was uploaded before is not uploaded again."""
        self._stop.clear()
        if self._pid != os.getpid():
            self._pid = os.getpid()
            atexit.register(self._at_exit)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="tensorboard-upload", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Upload what has changed, and nothing after it. A warning names what could not be uploaded in time."""
        if self._thread is None or self._stop.is_set() or self._pid != os.getpid():
            return
        self._stop.set()
        self._thread.join(_LAST_SECONDS)
        for target in self._targets:
            target.report_rest(f"not finished after {_LAST_SECONDS:g} s" if self._thread.is_alive() else "")

    def _at_exit(self) -> None:
        """Upload what was written after :meth:`stop`, such as figures that a script adds after ``fit``."""
        if self._pid != os.getpid():
            return
        self.stop()
        # What failed a moment ago, or hangs, is not tried again, for the process is to end.
        has_ended = self._thread is not None and not self._thread.is_alive()
        if has_ended and not any(target.error for target in self._targets):
            self._upload()

    def _run(self) -> None:
        delay = min(self._interval, _FIRST_DELAY)
        while True:
            is_last = self._stop.wait(delay)
            started = time.monotonic()
            self._upload()
            if is_last and self._stop.is_set():  # not if started again meanwhile
                return
            pause = max(self._interval, _PAUSES * (time.monotonic() - started))
            failures = max(target.failures for target in self._targets)
            delay = min(self._interval * 2**failures, max(self._interval, _MAX_DELAY)) if failures else pause

    def _upload(self) -> None:
        try:
            self._flush()
        except Exception as error:  # the writer was closed meanwhile, or cannot write; training shows that itself
            log.debug("TensorBoard files could not be flushed: %s", error)
        for target in self._targets:
            target.upload()


@functools.lru_cache(maxsize=None)
def _target(directory: str, url: str) -> "_Target":
    """One for all trainers of a program, such as those of its folds, so that no file is uploaded twice."""
    return _Target(directory, url)


class _Target:
    """One directory, its URL, and what has been uploaded."""

    def __init__(self, directory: str, url: str) -> None:
        self.directory = directory
        self.url = url.rstrip("/")
        # As messages show it, which may hold a user and a password.
        self._shown_url = redact_patterns(self.url)
        self.failures = 0
        self.error: Optional[str] = None
        self._since = 0.0
        self._uploaded: Dict[str, _State] = {}
        self._put: Optional[_Put] = None

    def upload(self) -> None:
        """Upload the changed files, up to the first that fails."""
        try:
            for name, state in list(self.changed()):
                if self._put is None:
                    self._put = _s3_put() if self.url.startswith("s3://") else _fsspec_put(self.url)
                try:
                    self._put(os.path.join(self.directory, name), f"{self.url}/{name.replace(os.sep, '/')}")
                except FileNotFoundError:
                    if os.path.exists(os.path.join(self.directory, name)):
                        raise  # it is the bucket that was not found
                    continue
                self._uploaded[name] = state
        except Exception as error:  # of any library; a log file must not end the training
            self._note_failure(error)
            return
        if self.error is not None:
            log.info(
                "TensorBoard files are uploaded to %s again, after %.0f s",
                self._shown_url,
                time.monotonic() - self._since,
            )
        self.failures, self.error = 0, None

    def changed(self) -> Iterator[Tuple[str, _State]]:
        """Yield each file that differs from what was uploaded, with its state, the oldest names first."""
        for parent, _, names in os.walk(self.directory):
            for path in sorted(os.path.join(parent, name) for name in names):
                with suppress(OSError):  # removed meanwhile
                    # No links, such as those to checkpoints.
                    found, name = os.lstat(path), os.path.relpath(path, self.directory)
                    state = (found.st_size, found.st_mtime_ns)
                    # Opening a pipe would wait for what writes to it.
                    if stat.S_ISREG(found.st_mode) and self._uploaded.get(name) != state:
                        yield name, state

    def report_rest(self, reason: str) -> None:
        """Warn of files that are not, or not completely, uploaded for this reason or because of an error."""
        rest = [name for name, _ in self.changed()]
        if rest and (reason or self.error):
            log.warning(
                "Not uploaded to %s: %s (%s). They remain in %s",
                self._shown_url,
                textwrap.shorten(", ".join(rest), 300, placeholder=" …"),
                self.error or reason,
                self.directory,
            )

    def _note_failure(self, error: Exception) -> None:
        self.failures += 1
        # Endpoint and credentials may change, as those of a role do.
        self._put = None
        first = self.error is None
        self.error = textwrap.shorten(redact_patterns(f"{type(error).__name__}: {error}"), 300, placeholder=" …")
        if first:
            self._since = time.monotonic()
            log.warning(
                "TensorBoard files in %s cannot be uploaded to %s (%s). Training goes on, and the upload is retried. "
                "HINT: Check the bucket, the s3:PutObject permission of the job's role, and the way to the endpoint.",
                self.directory,
                self._shown_url,
                self.error,
            )


def _s3_put() -> _Put:
    """Return a function that uploads a file to S3, with short timeouts, and without threads that the exit would end."""
    boto3: Any = importlib.import_module("boto3")
    config: Any = importlib.import_module("botocore.config").Config(
        connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 2}
    )
    transfer = importlib.import_module("boto3.s3.transfer").TransferConfig(use_threads=False)
    # The default session is not made for several threads.
    client = boto3.session.Session().client("s3", config=config)

    def put(path: str, url: str) -> None:
        bucket, _, key = url[len("s3://") :].partition("/")
        client.upload_file(path, bucket, key, Config=transfer)

    return put


def _fsspec_put(url: str) -> _Put:
    """Return a function that uploads a file by fsspec, which has a package for each kind of URL."""
    system, _ = importlib.import_module("fsspec").core.url_to_fs(url)

    def put(path: str, url: str) -> None:
        system.makedirs(system._parent(url), exist_ok=True)
        system.put_file(path, url)

    return put
