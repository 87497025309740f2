"""``Storage``: a directory, local or at a URL such as ``s3://bucket/prefix``, by fsspec, which Lightning uses, too.

An object of S3 is replaced as a whole when its upload is complete, so nobody reads a part of one. s3fs repeats requests
for up to seven minutes while nothing answers, which is longer than a stopped job has: here each of them ends after a
minute, and an upload when it is slower than 5 MB/s.
"""

import importlib
import importlib.util
import os
import re
import textwrap
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Tuple

from lightning_sm._atomic_file import remove_at_once, replace_atomically
from lightning_sm._resume.record import MANIFEST, SavedFile
from lightning_sm.errors import CheckpointError

__all__ = [
    "Storage",
    "absolute_path",
    "check_url",
    "forget_systems",
    "is_remote",
    "is_s3",
    "real_path",
    "storage_error",
]

# fsspec takes *, ? and brackets for patterns: with them a removal would remove other objects, or none.
_S3_URL = re.compile(r"s3://[A-Za-z0-9._-]{1,255}(/[^?#*\[\]]*)?")
_PARTS, _CHUNK = 8, 16 * 1024**2
_LEAST_BYTES_PER_SECOND = 5e6


def is_remote(path: Any) -> bool:
    """Whether a path is a URL."""
    return isinstance(path, (str, os.PathLike)) and "://" in os.fspath(path)


def is_s3(path: Any) -> bool:
    """Whether a path is a URL of S3."""
    return is_remote(path) and os.fspath(path).startswith("s3://")


def absolute_path(path: Any) -> str:
    """A path that stays the same when the program changes its working directory, or a URL as it is."""
    given: str = os.fspath(path)
    return given if is_remote(given) else os.path.abspath(given)


def real_path(path: str) -> str:
    """A path without links, as Lightning gives it to its callbacks, or a URL as it is."""
    return path if is_remote(path) else os.path.realpath(path)


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
    if not _S3_URL.fullmatch(url):
        raise CheckpointError(
            f"The {what} {url} is neither a local directory nor a URL of S3.",
            hint="It is s3://BUCKET/PREFIX without *?#[], or a local directory, which SageMaker uploads to S3.",
        )
    if importlib.util.find_spec("s3fs") is None:
        raise CheckpointError(
            f"The {what} {url} needs s3fs, which cannot be imported.",
            hint="pip install 'lightning-sm[s3fs]', for a job by requirements.txt, or use a local directory, which "
            "SageMaker uploads to S3.",
        )


# The file systems by process and protocol. A forked process needs another one.
_systems: Dict[Tuple[int, str], Any] = {}


def forget_systems() -> None:
    """Read credentials and endpoint again at the next request."""
    for system in _systems.values():
        type(system).clear_instance_cache()
    _systems.clear()


class Storage:
    """A directory, local or at a URL.

    The file system is the one that Lightning gets for such URLs in the thread that makes it first: another one would
    not see, in its own cache of listings, what was uploaded or removed here.

    Args:
        url: The path or URL of the directory.

    Raises:
        CheckpointError: A package for this kind of URL is missing, or the storage does not answer or refuses access
            (in any method).
        OSError: A local directory cannot be used (in any method).
    """

    #: How long S3 may take for a list, a small file or a part of a large one, in seconds.
    max_seconds = 60.0

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def prepare(self) -> None:
        """Make the file system in this thread, without a connection."""
        self._system()

    def names(self) -> List[str]:
        """Return the names of the files and folders in the directory; none where there is no such directory."""
        system, root = self._system()
        with self._errors("cannot be listed"):
            try:
                found = system.ls(root, detail=False, **self._limit())
            except FileNotFoundError as error:
                if _lacks_bucket(error):
                    raise
                return []
        return sorted(filter(None, (path[len(root) + 1 :].strip("/") for path in found)))

    def files(self, name: str = "") -> List[SavedFile]:
        """Return the files below the directory, or below a folder in it, or the file of this name."""
        system, root = self._system()
        with self._errors("cannot be listed"):
            found = system.find(f"{root}/{name}".rstrip("/"), detail=True, **self._limit())
        files = (
            SavedFile(path[len(root) + 1 :], int(entry["size"]))
            for path, entry in found.items()
            if entry["type"] == "file"
        )
        # Names of objects need not be paths.
        return [file for file in files if not {"", ".", ".."} & set(file.name.split("/"))]

    def read(self, name: str) -> bytes:
        """Return the contents of a small file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        system, root = self._system()
        with self._errors(f"does not return {name}", missing_file=True):
            return bytes(system.cat_file(f"{root}/{name}", **self._limit()))

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, which replaces what is there when all of it has arrived."""
        if not is_remote(self.url):
            os.makedirs(self.url, exist_ok=True)
            partial = os.path.join(self.url, f".{name}.new")
            with open(partial, "wb") as file:
                file.write(content)
            replace_atomically(partial, os.path.join(self.url, name))
            return
        system, root = self._system()
        with self._errors(f"does not take {name}"):
            system.pipe_file(f"{root}/{name}", content, **self._limit(len(content)))

    def upload(self, path: str, name: str) -> None:
        """Upload a local file under ``name``, which replaces what is there when all of it has arrived."""
        system, root = self._system()
        with self._errors(f"does not take {name}"):
            system.put_file(path, f"{root}/{name}", **self._limit(os.path.getsize(path)))

    def download(self, file: SavedFile, path: str) -> None:
        """Download a file to a local path, several parts at a time: one connection does not reach a host's bandwidth.

        Raises:
            FileNotFoundError: There is no such file.
            OSError: The local file cannot be written.
        """
        system, root = self._system()
        with open(path, "wb") as target:
            for start in range(0, file.size, _PARTS * _CHUNK):
                starts = list(range(start, min(start + _PARTS * _CHUNK, file.size), _CHUNK))
                ends = [min(each + _CHUNK, file.size) for each in starts]
                with self._errors(f"does not return {file.name}", missing_file=True):
                    paths = [f"{root}/{file.name}"] * len(starts)
                    parts = system.cat_ranges(paths, starts, ends, on_error="raise", **self._limit(_PARTS * _CHUNK))
                target.writelines(parts)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        if not is_remote(self.url):
            remove_at_once(os.path.join(self.url, name))
            return
        system, root = self._system()
        with self._errors(f"does not remove {name}"):
            # What is left of a folder by a removal that is interrupted is not taken for a whole one.
            for path in (f"{root}/{name}/{MANIFEST}", f"{root}/{name}"):
                if system.exists(path, **self._limit()):
                    system.rm(path, recursive=True, **self._limit())

    def _system(self) -> Tuple[Any, str]:
        """The file system, which remembers no listing, and the directory's path in it."""
        key = os.getpid(), self.url.partition("://")[0] if is_remote(self.url) else "file"
        with self._errors("cannot be used"):
            if key not in _systems:
                _systems[key] = importlib.import_module("fsspec").core.url_to_fs(self.url)[0]
            _systems[key].invalidate_cache()
            return _systems[key], _systems[key]._strip_protocol(self.url).rstrip("/")

    def _limit(self, size: int = 0) -> Dict[str, float]:
        # What fsspec makes of asynchronous methods takes this argument.
        return {"timeout": self.max_seconds + size / _LEAST_BYTES_PER_SECOND} if is_s3(self.url) else {}

    @contextmanager
    def _errors(self, problem: str, *, missing_file: bool = False) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of s3fs, aiohttp and botocore, whose classes have no base in common
            is_missing = missing_file and isinstance(error, FileNotFoundError) and not _lacks_bucket(error)
            if is_missing or not is_remote(self.url):
                raise
            raise storage_error(self.url, problem, error) from error


def _lacks_bucket(error: FileNotFoundError) -> bool:
    # A directory may have the word in its name.
    return "bucket does not exist" in str(error)


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
