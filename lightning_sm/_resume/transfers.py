"""One checkpoint at a URL: its download, for one process or for all ranks; uploads and removals."""

import importlib.util
import os
import secrets
import shutil
import tempfile
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, List, Optional, Sequence

from lightning_sm._atomic_file import remove
from lightning_sm._lightning.collectives import all_true, any_true, broadcast
from lightning_sm._lightning.legacy import strategy_of
from lightning_sm._lightning.strategies import is_sharded
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.manifest import MANIFEST, Manifest
from lightning_sm._resume.record import CorruptedError
from lightning_sm._resume.sharded_files import remove_folder
from lightning_sm._resume.storage import Storage, StoredFile, check_url, is_remote, is_s3
from lightning_sm.errors import CheckpointError

__all__ = [
    "GivenCopy",
    "HostFolder",
    "copy_error",
    "download_files",
    "fetch_for_all",
    "has_file",
    "has_folder",
    "list_names",
    "local_checkpoint",
    "names_in",
    "remote_folder_problem",
    "own_checkpoint_io",
    "remove_checkpoint",
    "remove_names",
    "upload_file",
]

_HINT = "Pass another checkpoint, or none: the job then resumes from its newest whole one."


def copy_error(url: str, error: OSError) -> CheckpointError:
    """Return the error for a local disk that cannot hold a copy."""
    return CheckpointError(
        f"The checkpoints in {url} cannot be copied to this host ({type(error).__name__}: {error}).",
        hint="Its temporary directory needs room for the largest checkpoint: use a larger volume_size, or set TMPDIR.",
    )


def download_files(storage: Storage, files: Sequence[StoredFile], folder: str, what: str) -> None:
    """Download files of a storage into a local folder, under their names.

    Args:
        storage: Where they are.
        files: What to download.
        folder: The local folder, which is created.
        what: What they are together, for the log.

    Raises:
        CorruptedError: One was replaced or removed since it was listed.
        CheckpointError: The storage does not return one, or the local disk is full.
    """
    total = sum(file.size for file in files)
    log.info("Downloading %s from %s (%.1f MB)", what, storage.url, total / 1e6)
    try:
        os.makedirs(folder, exist_ok=True)
        if shutil.disk_usage(folder).free < total:
            raise OSError(f"{total} bytes are needed in {folder}")
        for file in files:
            path = os.path.join(folder, file.name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            storage.download(file, path)
    except OSError as error:
        raise copy_error(storage.url, error) from error


def _download(url: str, folder: str) -> str:
    """Download the checkpoint at a URL, a file or a folder, and return its local path, in ``folder``."""
    directory, _, name = url.rpartition("/")
    storage = Storage(directory)
    files = storage.files(name) if name and not directory.endswith(":/") else {}
    if not files:
        raise CheckpointError(
            f"There is no checkpoint {url}.", hint="Correct the URL; or it was removed since it was saved."
        )
    download_files(storage, list(files.values()), folder, name)
    return os.path.join(folder, name)


def _download_intact(url: str, folder: str) -> None:
    """Download a checkpoint, and compare its files with its manifest, if it has one.

    Raises:
        CorruptedError: It is not as it was written.
    """
    problem = remote_folder_problem(url)
    if problem is not None:
        raise CorruptedError(problem)
    path = _download(url, folder)
    manifest = Manifest.read(path) if os.path.isdir(path) else None
    problems = () if manifest is None else manifest.problems(path)
    if problems:
        raise CorruptedError(problems[0])


def fetch_for_all(trainer: Trainer, name: str, fetch: Callable[[str], None]) -> Optional[str]:
    """Let each host get a checkpoint, and return why one could not. Every rank must call it.

    Args:
        trainer: The trainer.
        name: The name of the checkpoint.
        fetch: Gets it; local rank 0 of each host calls it, and the others wait.

    Raises:
        CheckpointError: The storage does not return it, or a local disk is full; on all ranks.
    """
    error: Optional[Exception] = None
    if trainer.local_rank == 0:
        try:
            fetch(name)
        except (CheckpointError, CorruptedError) as caught:
            error = caught
    if any_true(trainer, isinstance(error, CheckpointError)):
        problem = f"Another process could not download {name}."
        raise error or CheckpointError(problem, hint="Its log says why.")
    return None if all_true(trainer, error is None) else str(error or "another host could not download it")


class HostFolder:
    """A folder in ``TMPDIR`` for each host, with one name for all its ranks."""

    def __init__(self) -> None:
        #: Its path; empty until :meth:`name` has been called.
        self.path = ""
        self._owns = False

    def name(self, trainer: Trainer) -> str:
        """Give it a path, which does not exist yet, if it has none, and return that. Every rank must call it."""
        if not self.path:
            token = broadcast(trainer, secrets.token_hex(8))
            # Hosts that are simulated on one machine share its temporary directory.
            self.path = os.path.join(tempfile.gettempdir(), f"lightning-sm-{token}-{trainer.node_rank}")
            self._owns = trainer.local_rank == 0
        return self.path

    def close(self) -> None:
        """Remove it, when every rank of this host has read what is in it."""
        if self._owns:
            remove(self.path)
        self.path, self._owns = "", False


class GivenCopy:
    """The local copy of a ``ckpt_path`` at a URL. Each host has one."""

    def __init__(self) -> None:
        self._folder = HostFolder()

    def fetch(self, trainer: Trainer, path: Any) -> Optional[str]:
        """Download what is at a URL, once on each host. Every rank must call it.

        Returns:
            The path of the copy; ``None`` for a local path, and for a URL that is left to Lightning: a single file
            whose ``CheckpointIO`` is a project's own, or is not on S3.

        Raises:
            CheckpointError: It is not there, cannot be read, or is a folder that is not whole; on all ranks.
        """
        url = broadcast(trainer, str(path).rstrip("/") if is_remote(path) else None)
        if url is None or not _needs_copy(trainer, url):
            return None
        folder = self._folder.name(trainer)
        try:
            problem = fetch_for_all(trainer, url, partial(_download_intact, folder=folder))
            if problem is not None:
                raise CheckpointError(f"The ckpt_path {url} cannot be loaded: {problem}.", hint=_HINT)
        except BaseException:
            self.close()
            raise
        return os.path.join(folder, url.rpartition("/")[2])

    def close(self) -> None:
        """Remove the copy, when every rank of this host has read it."""
        self._folder.close()


def _needs_copy(trainer: Trainer, url: str) -> bool:
    """Whether Lightning cannot load a URL, or reads it by fsspec in each process.

    Raises:
        CheckpointError: It cannot be copied either.
    """
    if is_sharded(trainer):
        # These strategies take the URL for the path of a local file.
        check_url(url, "ckpt_path")
        return True
    strategy = strategy_of(trainer)
    checkpoint_io = own_checkpoint_io(strategy)
    package = type(checkpoint_io).__module__.partition(".")[0]
    # s3torchconnector's loads no local file, but in a fit ours is around it.
    is_wrapped = package == "s3torchconnector" and checkpoint_io is not strategy.checkpoint_io
    is_known = is_wrapped or package in ("lightning", "lightning_fabric", "pytorch_lightning")
    return is_s3(url) and is_known and importlib.util.find_spec("s3fs") is not None


def own_checkpoint_io(strategy: Any) -> Any:
    """Return the ``CheckpointIO`` of a strategy, of which ours may be the outer one."""
    found: Any = getattr(strategy, "checkpoint_io", None)
    while hasattr(found, "inner"):
        found = found.inner
    return found


@contextmanager
def local_checkpoint(path: str) -> Iterator[str]:
    """Yield a path where a checkpoint can be read: that of a temporary copy, if it is at a URL.

    Raises:
        CheckpointError: The storage does not return it.
    """
    if not is_remote(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="lightning-sm-") as folder:
        yield _download(path, folder)


def remote_folder_problem(url: str) -> Optional[str]:
    """Why a folder with a manifest at a URL is not whole, by names and sizes; ``None`` if it may be, or is no folder.

    Raises:
        CheckpointError: The storage cannot be read.
    """
    storage = Storage(url)
    files = storage.files()
    if MANIFEST not in files:
        return None
    try:
        manifest = Manifest.from_json(storage.read(MANIFEST))
    except (CorruptedError, FileNotFoundError) as error:
        return str(error)
    for listed in manifest.files:
        found = files.get(listed.name)
        if found is None:
            return f"it is incomplete: {listed.name} of its {MANIFEST} is missing"
        if found.size != listed.size:
            return f"it is truncated, or of another save: {listed.name} has another size than in its {MANIFEST}"
    return None


def list_names(directory: str) -> List[str]:
    """Return the names of files and folders in a directory or at a URL; none where there is no such directory.

    Raises:
        CheckpointError: A storage does not answer.
    """
    if is_remote(directory):
        return sorted({name.split("/")[0] for name in Storage(directory).files()})
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def names_in(directory: str) -> List[str]:
    """Return what :func:`list_names` does; a storage that does not answer is named in the log, and has none."""
    try:
        return list_names(directory)
    except CheckpointError as error:
        log.warning("%s", error)
        return []


def has_file(path: str) -> bool:
    """Whether there is a file at a path or URL."""
    if not is_remote(path):
        return os.path.isfile(path)
    directory, _, name = path.rpartition("/")
    return Storage(directory).exists(name)


def has_folder(path: str) -> bool:
    """Whether there is a folder at a path, or are files below a URL."""
    return bool(Storage(path).files()) if is_remote(path) else os.path.isdir(path)


def remove_names(directory: str, names: Sequence[str]) -> None:
    """Remove files or folders in a directory or at a URL. What remains at a URL is logged: it is no harm."""
    for name in names:
        if not is_remote(directory):
            remove_folder(os.path.join(directory, name))
            continue
        try:
            remove_checkpoint(f"{directory}/{name}")
        except CheckpointError as error:
            log.warning("%s", error)


def remove_checkpoint(url: str) -> None:
    """Remove a file or folder at a URL: first the manifest, so that nobody takes what is left of it for a whole one.

    Raises:
        CheckpointError: The storage does not remove it.
    """
    directory, _, name = url.rpartition("/")
    storage = Storage(directory)
    storage.remove(f"{name}/{MANIFEST}")
    storage.remove(name)


def upload_file(path: str, url: str) -> None:
    """Upload a local file, which replaces what is at the URL when all of it has arrived.

    Raises:
        CheckpointError: The storage does not take it.
    """
    directory, _, name = url.rpartition("/")
    Storage(directory).upload(path, name)
