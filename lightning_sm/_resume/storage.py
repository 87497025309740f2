"""``Storage``: a directory at a URL such as ``s3://bucket/prefix``, by fsspec, the package that Lightning uses, too.

An object of S3 is replaced as a whole when its upload is complete, so nobody reads a part of one. s3fs repeats requests
for up to seven minutes while nothing answers, which is longer than a stopped job has: here each of them ends after a
minute, and an upload a minute after its last progress.
"""

import asyncio
import importlib
import importlib.util
import os
import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Iterator, Optional, Tuple

from lightning_sm._resume.record import CorruptedError
from lightning_sm.errors import CheckpointError

__all__ = ["Storage", "StoredFile", "check_url", "forget_systems", "is_remote", "is_s3", "storage_error"]

_S3_URL = re.compile(r"s3://[A-Za-z0-9._-]{1,255}(/[^?#]*)?")
# The most parts of an object, with a margin.
_MAX_PARTS = 9000
# One connection does not reach a host's bandwidth.
_THREADS = 8
_CHUNK = 16 * 1024**2


def is_remote(path: Any) -> bool:
    """Whether a path is a URL."""
    return isinstance(path, (str, os.PathLike)) and "://" in os.fspath(path)


def is_s3(path: Any) -> bool:
    """Whether a path is a URL of S3."""
    return is_remote(path) and os.fspath(path).startswith("s3://")


def check_url(url: str, what: str = "checkpoint directory") -> None:
    """Check that checkpoints can be kept at a URL, as far as can be told without a connection.

    Args:
        url: The URL, such as ``s3://bucket/prefix``.
        what: What it is, for the error.

    Raises:
        CheckpointError: It is no URL of S3, or s3fs is not installed.
    """
    if url.startswith("memory://"):  # of this process only: fsspec's own, for tests
        return
    if url.startswith("file://"):
        raise CheckpointError(f"The {what} {url} is a URL of local files.", hint="Write the path without file://.")
    if not _S3_URL.fullmatch(url):
        raise CheckpointError(
            f"The {what} {url} is neither a local directory nor a URL of S3.",
            hint="It has the form s3://BUCKET/PREFIX, or is a local directory, which SageMaker uploads to S3.",
        )
    if importlib.util.find_spec("s3fs") is None:
        raise CheckpointError(
            f"The {what} {url} needs s3fs, which cannot be imported.",
            hint="pip install 'lightning-sm[s3fs]', for a job by requirements.txt, or use a local directory, which "
            "SageMaker uploads to S3.",
        )


@dataclass(frozen=True)
class StoredFile:
    """A file in a :class:`Storage`.

    Args:
        name: Its path relative to the directory.
        size: Its size in bytes.
        version: The ETag of an object of S3, which differs after each upload; empty where there is none.
    """

    name: str
    size: int
    version: str = ""


# The file systems by process and protocol. A forked process needs another one.
_systems: Dict[Tuple[int, str], Any] = {}


def forget_systems() -> None:
    """Read credentials and endpoint again at the next request."""
    for system in _systems.values():
        type(system).clear_instance_cache()
    _systems.clear()


class Storage:
    """A directory at a URL.

    The file system is the one that Lightning gets for such URLs in the thread that makes it first: another one would
    not see, in its own cache of listings, what was uploaded or removed here.

    Args:
        url: The URL of the directory.

    Raises:
        CheckpointError: A package for this kind of URL is missing (in any method, as for the others).
        CheckpointError: The storage does not answer, or refuses access (in any method).
    """

    #: How long S3 may take for a list or a small file, and may not confirm any part of a large one, in seconds.
    max_seconds = 60.0

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def prepare(self) -> None:
        """Make the file system in this thread, without a connection."""
        self._system()

    def files(self, folder: str = "") -> Dict[str, StoredFile]:
        """Return the files below the directory, or below a folder in it, by their names relative to the directory."""
        system, root = self._system()
        at = f"{root}/{folder}".rstrip("/")
        with self._errors("cannot be listed"):
            system.invalidate_cache()
            found = system.find(at, detail=True, **self._limit())
        files = {}
        for path, entry in found.items():
            # Names of objects need not be paths.
            name = path[len(root) + 1 :]
            if entry["type"] == "file" and not {"", ".", ".."} & set(name.split("/")):
                files[name] = _stored_file(name, entry)
        return files

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        system, root = self._system()
        with self._errors(f"cannot be searched for {name}"):
            system.invalidate_cache()
            return bool(system.isfile(f"{root}/{name}", **self._limit()))

    def read(self, name: str, start: int = 0, end: Optional[int] = None) -> bytes:
        """Return the bytes of a file from ``start`` up to ``end``.

        Raises:
            FileNotFoundError: There is no such file.
        """
        system, root = self._system()
        with self._errors(f"does not return {name}", missing_file=True):
            return bytes(system.cat_file(f"{root}/{name}", start=start, end=end, **self._limit()))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, replacing what was there."""
        system, root = self._system()
        with self._errors(f"does not take {name}"):
            self._make_parent(system, f"{root}/{name}")
            system.pipe_file(f"{root}/{name}", content, **self._limit())

    def upload(self, path: str, name: str) -> None:
        """Upload a local file under ``name``, replacing what was there when all of it has arrived."""
        system, root = self._system()
        with self._errors(f"does not take {name}"):
            self._make_parent(system, f"{root}/{name}")
            if is_s3(self.url):
                importlib.import_module("fsspec.asyn").sync(system.loop, self._put, system, path, f"{root}/{name}")
            else:
                system.put_file(path, f"{root}/{name}")

    def download(self, file: StoredFile, path: str) -> None:
        """Download a file to a local path.

        Raises:
            CorruptedError: It was replaced or removed since it was listed.
            OSError: The local file cannot be written.
        """
        starts = range(0, file.size, _CHUNK)
        with open(path, "wb") as target:
            target.truncate(file.size)
            with ThreadPoolExecutor(_THREADS) as threads:
                # The system's threads share one connection pool, and the main thread has made the file system.
                for _ in threads.map(partial(self._copy_chunk, file, target.fileno()), starts):
                    pass
        if self._current(file.name) != file:
            raise CorruptedError(f"{file.name} was replaced while it was downloaded")

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        system, root = self._system()
        with self._errors(f"does not remove {name}"):
            if system.exists(f"{root}/{name}", **self._limit()):
                system.rm(f"{root}/{name}", recursive=True, **self._limit())

    async def _put(self, system: Any, path: str, target: str) -> None:
        """Upload as long as parts are confirmed. They are small, so that ten at a time arrive on slow networks, too."""
        sent = importlib.import_module("fsspec.callbacks").Callback()
        size = max(_CHUNK, os.path.getsize(path) // _MAX_PARTS)
        upload = asyncio.ensure_future(system._put_file(path, target, callback=sent, chunksize=size))
        before = -1
        while not upload.done():
            if sent.value == before:
                upload.cancel()
                await asyncio.wait({upload}, timeout=1)
                raise ConnectionError(f"no part of it was confirmed within {self.max_seconds:.0f} s")
            before = sent.value
            await asyncio.wait({upload}, timeout=self.max_seconds)
        upload.result()

    def _copy_chunk(self, file: StoredFile, target: int, start: int) -> None:
        try:
            content = self.read(file.name, start, min(start + _CHUNK, file.size))
        except FileNotFoundError as error:
            raise CorruptedError(f"{file.name} was removed while it was downloaded") from error
        view = memoryview(content)
        while view:
            written = os.pwrite(target, view, start)
            view, start = view[written:], start + written

    def _current(self, name: str) -> Optional[StoredFile]:
        system, root = self._system()
        with self._errors(f"does not return {name}"):
            system.invalidate_cache()
            try:
                return _stored_file(name, system.info(f"{root}/{name}", **self._limit()))
            except FileNotFoundError:
                return None

    def _system(self) -> Tuple[Any, str]:
        """The file system, and the directory's path in it."""
        key = os.getpid(), self.url.partition("://")[0]
        with self._errors("cannot be used"):
            if key not in _systems:
                _systems[key] = importlib.import_module("fsspec").core.url_to_fs(self.url)[0]
            return _systems[key], _systems[key]._strip_protocol(self.url).rstrip("/")

    def _limit(self) -> Dict[str, float]:
        # What fsspec makes of asynchronous methods takes this argument.
        return {"timeout": self.max_seconds} if is_s3(self.url) else {}

    def _make_parent(self, system: Any, path: str) -> None:
        # S3 has no folders, and s3fs would try to create the bucket.
        if not is_s3(self.url):
            system.makedirs(system._parent(path), exist_ok=True)

    @contextmanager
    def _errors(self, problem: str, *, missing_file: bool = False) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if missing_file and "bucket" not in str(error):
                raise
            raise storage_error(self.url, problem, error) from error
        except Exception as error:  # of s3fs, aiohttp and botocore, whose classes have no base in common
            raise storage_error(self.url, problem, error) from error


def _stored_file(name: str, entry: Dict[str, Any]) -> StoredFile:
    return StoredFile(name, int(entry["size"]), str(entry.get("ETag") or ""))


def storage_error(url: str, problem: str, error: Exception) -> CheckpointError:
    """Return an error with a hint for what failed at a URL.

    Args:
        url: The URL.
        problem: What failed, as the words after the URL.
        error: What the package raised.
    """
    reason = textwrap.shorten(f"{type(error).__name__}: {error}", 400, placeholder=" …")
    return CheckpointError(f"{url} {problem} ({reason}).", hint=_hint(error))


def _hint(error: Exception) -> str:
    kinds = {cls.__name__ for cls in type(error).__mro__}
    # s3torchconnector has one class for all errors.
    if isinstance(error, PermissionError) or "Forbidden" in str(error):
        return (
            "The job's role needs s3:ListBucket on the bucket, and s3:GetObject, s3:PutObject and s3:DeleteObject on "
            "its objects; with KMS also kms:GenerateDataKey and kms:Decrypt."
        )
    if kinds & {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"}:
        return "In a job its role gives the credentials; elsewhere set AWS_PROFILE, or run aws configure."
    if isinstance(error, FileNotFoundError) or "NoSuchBucket" in str(error):
        return "Create the bucket, or correct its name."
    if isinstance(error, (ImportError, ValueError)):
        return "Use an s3:// URL, with pip install 'lightning-sm[s3fs]', or a local directory."
    return (
        "Check the bucket's region and the network: a job in a VPC needs an endpoint for S3. Checkpoints of other "
        "names are unchanged."
    )
