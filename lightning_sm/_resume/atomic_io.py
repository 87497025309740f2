"""``AtomicCheckpointIO``: a checkpoint appears under its final name complete, or not at all."""

import os
import re
import secrets
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pickle import PicklingError
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, Optional, Set, cast

from lightning_sm._atomic_file import DeferredErrorFile, remove, remove_on_error, replace_atomically
from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm._logging import log
from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.series import complete_record, saved_record
from lightning_sm._resume.shared import link_file, source_to_share, write_rest
from lightning_sm._resume.storage import is_remote, storage_error
from lightning_sm._resume.transfers import upload_file
from lightning_sm.errors import CheckpointError, LightningSMError

__all__ = ["AtomicCheckpointIOMixin", "WrappingCheckpointIOMixin", "atomic_checkpoint_io", "save_options"]

if TYPE_CHECKING:
    from pytorch_lightning.plugins import CheckpointIO as _Base
else:
    _Base = object


class WrappingCheckpointIOMixin(_Base):
    """A ``CheckpointIO`` that delegates to another one.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    namespace: Namespace

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint with the inner ``CheckpointIO``."""
        return self.inner.load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint with the inner ``CheckpointIO``."""
        self.inner.remove_checkpoint(path)

    def teardown(self) -> None:
        """Tear down the inner ``CheckpointIO``; before Lightning 1.6 it has no ``teardown``."""
        if hasattr(self.inner, "teardown"):
            self.inner.teardown()

    def __getattr__(self, name: str) -> Any:
        # A project's own CheckpointIO may have attributes that Lightning's class has not.
        if name == "inner" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.inner, name)


def save_options(storage_options: Any) -> Dict[str, Any]:
    """Return ``storage_options`` as keyword arguments: a ``CheckpointIO`` of Lightning 1.5 has no such parameter."""
    return {} if storage_options is None else {"storage_options": storage_options}


# Processes in two containers may have the same process id.
_RUN_ID = secrets.token_hex(4)
_PARTIAL = re.compile(r"\..+\.partial-\d+-[0-9a-f]+$")


class AtomicCheckpointIOMixin(WrappingCheckpointIOMixin):
    """Write to a hidden file in the same directory, and rename it to the final name when it is complete.

    Neither SageMaker's uploader nor a process that searches for a checkpoint sees an incomplete file, and a save that
    fails or is killed leaves the older file intact. Lightning's ``TorchCheckpointIO`` does not guarantee that: older
    versions write to the final name, newer ones with ``fsspec`` to ``/tmp`` and then *copy* to another file system.

    At a URL, an upload replaces the older checkpoint when all of it has arrived. Where the inner ``CheckpointIO`` is
    Lightning's, it sends a temporary file (in ``TMPDIR``), and so it does with the job's own series; another one gets
    the URL. For local files, Lightning's is used in place of s3torchconnector's, which has URLs only.

    Args:
        inner: The ``CheckpointIO`` that writes, reads and removes.
    """

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._cleaned: Set[str] = set()
        # The last checkpoint that was written, which a save of the series may share.
        self._latest: Optional[SavedFile] = None

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Save ``checkpoint`` to ``path``.

        Raises:
            CheckpointError: The file could not be written. The previous file is unchanged.
        """
        options = save_options(storage_options)
        target = os.fspath(path)
        if is_remote(target):
            source_to_share(checkpoint, target)
            self._save_remote(checkpoint, target, options)
            return
        source = source_to_share(checkpoint, target)
        directory, name = os.path.split(os.path.abspath(target))
        partial = os.path.join(directory, f".{name[:100]}.partial-{os.getpid()}-{_RUN_ID}")
        with _checkpoint_errors(target), remove_on_error(partial):
            os.makedirs(directory, exist_ok=True)
            self._remove_stale_partials(directory)
            if source is not None and self._share(checkpoint, source, partial, target):
                return
            crc32 = self._write(checkpoint, partial, options)
            replace_atomically(partial, target)
            record = saved_record(checkpoint)
            if record is not None:
                complete_record(record, directory, [_saved_file(directory, name, crc32)])
            elif crc32 is not None:
                self._latest = SavedFile(os.path.abspath(target), os.path.getsize(target), crc32)

    def _share(self, checkpoint: Any, source: str, partial: str, target: str) -> bool:
        """Link a save of the series to a checkpoint of another callback; return whether that was possible."""
        source, record = os.path.abspath(source), saved_record(checkpoint)
        if record is None or not link_file(source, partial):
            return False
        directory, name = os.path.split(os.path.abspath(target))
        known = self._latest is not None and self._latest.name == source
        crc32 = self._latest.crc32 if self._latest is not None and known else None
        replace_atomically(partial, target)
        rest = write_rest(checkpoint, directory, name)
        complete_record(record, directory, [_saved_file(directory, name, crc32), rest], rest.name)
        return True

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a checkpoint with the inner ``CheckpointIO``."""
        return self._io_for(path).load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint. A remote one that cannot be removed is named in the log: training goes on."""
        if not is_remote(path):
            self._io_for(path).remove_checkpoint(path)
            return
        try:
            super().remove_checkpoint(path)
        except Exception as error:  # of the package for this kind of URL
            log.warning("%s", storage_error(str(path), "cannot be removed", error))

    def _save_remote(self, checkpoint: Any, url: str, options: Any) -> None:
        """Write a temporary file and upload it, or let a project's own ``CheckpointIO`` write to the URL.

        Of a save of the series the record must tell the size and CRC-32.
        """
        if self._is_lightnings(self.inner, options) or saved_record(checkpoint) is not None:
            with tempfile.TemporaryDirectory(prefix="lightning-sm-") as folder:
                partial = os.path.join(folder, "checkpoint")
                with _checkpoint_errors(url):
                    crc32 = self._write(checkpoint, partial, options)
                upload_file(partial, url)
                record, (parent, _, name) = saved_record(checkpoint), url.rpartition("/")
                if record is not None:
                    file = _saved_file(folder, "checkpoint", crc32)
                    complete_record(record, parent, [replace(file, name=name)])
            return
        try:
            self.inner.save_checkpoint(checkpoint, url, **options)
        except (LightningSMError, AttributeError, TypeError, PicklingError):  # the program's, not the storage's
            raise
        except Exception as error:
            raise storage_error(url, "could not be saved; an older checkpoint is unchanged", error) from error

    def _io_for(self, path: Any) -> Any:
        is_of_s3 = type(self.inner).__module__.partition(".")[0] == "s3torchconnector"
        return self.namespace.module("plugins").TorchCheckpointIO() if is_of_s3 and not is_remote(path) else self.inner

    def _is_lightnings(self, checkpoint_io: Any, options: Any) -> bool:
        return type(checkpoint_io) is self.namespace.module("plugins").TorchCheckpointIO and not options

    def _write(self, checkpoint: Any, partial: str, options: Any) -> Optional[int]:
        """Write a file, and return its CRC-32 if it is known."""
        checkpoint_io = self._io_for(partial)
        if not self._is_lightnings(checkpoint_io, options):
            checkpoint_io.save_checkpoint(checkpoint, partial, **options)
            return None
        import torch

        try:
            # TorchCheckpointIO makes two more copies of the checkpoint in memory and one in /tmp before this file.
            with open(partial, "wb") as file:
                deferred = DeferredErrorFile(file)
                torch.save(checkpoint, cast(IO[bytes], deferred))  # it has the methods that torch.save calls
                deferred.raise_error()
                return deferred.crc32
        except AttributeError:  # a hyperparameter that cannot be pickled, which older Lightnings leave out
            checkpoint_io.save_checkpoint(checkpoint, partial)
            return None

    def _remove_stale_partials(self, directory: str) -> None:
        """Remove the partial files of earlier runs that were killed, once per directory."""
        if directory in self._cleaned:
            return
        self._cleaned.add(directory)
        for name in os.listdir(directory):
            if _PARTIAL.match(name) and not name.endswith(_RUN_ID):
                log.info("Removing the incomplete checkpoint of an interrupted run: %s", os.path.join(directory, name))
                remove(os.path.join(directory, name))


def atomic_checkpoint_io(namespace: Namespace) -> type:
    """Return ``AtomicCheckpointIO`` for one of Lightning's namespaces."""
    return namespaced_class(
        namespace, "AtomicCheckpointIO", f"{__name__}:{AtomicCheckpointIOMixin.__name__}", "plugins:CheckpointIO"
    )


def _saved_file(directory: str, name: str, crc32: Optional[int]) -> SavedFile:
    if crc32 is None:
        return SavedFile.read(directory, name)
    return SavedFile(name, os.path.getsize(os.path.join(directory, name)), crc32)


@contextmanager
def _checkpoint_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError for a failed write
        raise CheckpointError(
            f"The checkpoint {path} could not be saved ({type(error).__name__}: {error}). An older one is unchanged.",
            hint="Check the free space on the disk and its mount: use a larger volume_size, or keep fewer checkpoints.",
        ) from error
