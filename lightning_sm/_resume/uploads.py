"""How sharded checkpoints get to URLs: file by file, or by the writer of s3torchconnector."""

import os
import zlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import dcp_storage, has_dcp_storage, saves_with_dcp
from lightning_sm._logging import log
from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.storage import storage_error
from lightning_sm._resume.transfers import own_checkpoint_io, remove_checkpoint, upload_file

__all__ = ["FolderUploads", "folder_uploads"]

_DCP_EXTRA = "pip install 's3torchconnector[dcp]', for a job by requirements.txt."


class FolderUploads:
    """Brings a sharded checkpoint from a local folder to a URL."""

    #: Whether the shards are written to the URL at once, and not into the local folder.
    writes_shards = False

    def clear(self, url: str) -> None:
        """Remove the older checkpoint of the same name, so that shards of two saves are never mixed.

        Raises:
            CheckpointError: The storage does not remove it.
        """
        remove_checkpoint(url)

    def upload(self, folder: str, url: str, names: Sequence[str]) -> None:
        """Upload files of the local folder.

        Raises:
            CheckpointError: The storage does not take one.
        """
        for name in names:
            upload_file(os.path.join(folder, name), f"{url}/{name}")

    @contextmanager
    def shards(self, url: str) -> Iterator[List[SavedFile]]:
        """Let the strategy save within this context. The list then names what this rank has written to the URL."""
        yield []


def folder_uploads(namespace: Namespace, strategy: Any) -> FolderUploads:
    """Return how a strategy's folders get to a URL: by s3torchconnector where the project brings its ``CheckpointIO``.

    Args:
        namespace: Lightning's namespace.
        strategy: The strategy. DeepSpeed writes local files only, and so does Lightning before 2.2.
    """
    checkpoint_io = own_checkpoint_io(strategy)
    by_connector = type(checkpoint_io).__module__.partition(".")[0] == "s3torchconnector"
    if not (by_connector and saves_with_dcp(strategy) and has_dcp_storage(namespace)):
        return FolderUploads()
    try:
        import s3torchconnector.dcp  # noqa: F401
    except ImportError as error:
        log.warning("Shards are saved without s3torchconnector's S3StorageWriter: %s. HINT: %s", error, _DCP_EXTRA)
        return FolderUploads()
    return _ConnectorUploads(namespace, checkpoint_io)


class _ConnectorUploads(FolderUploads):
    """Saves shards by the ``S3StorageWriter`` of s3torchconnector, which sends them to S3 while they are serialized.

    Args:
        namespace: Lightning's namespace.
        checkpoint_io: The project's ``S3LightningCheckpoint``, whose region, client and endpoint are used.
    """

    writes_shards = True

    def __init__(self, namespace: Namespace, checkpoint_io: Any) -> None:
        self._namespace, self._checkpoint_io = namespace, checkpoint_io

    @contextmanager
    def shards(self, url: str) -> Iterator[List[SavedFile]]:
        written: List[SavedFile] = []
        with dcp_storage(self._namespace, save=lambda state: written.extend(self._save(state, url))):
            yield written

    def _save(self, state: Any, url: str) -> List[SavedFile]:
        from s3torchconnector.dcp import S3FileSystem, S3StorageWriter
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        client = self._checkpoint_io._client
        writer: Any = S3StorageWriter(client.region, url)
        # The writer has no argument for an endpoint.
        files = _CountedFiles(S3FileSystem(client.region, s3_client=client))
        writer.fs = files
        try:
            save(state, storage_writer=writer)
        except CheckpointException as error:
            first = next((reason for reason, _ in error.failures.values() if isinstance(reason, Exception)), None)
            raise storage_error(url, "does not take the shards", first or RuntimeError("no reason given")) from error
        return [SavedFile(path[len(url) + 1 :], size, crc) for path, (size, crc) in files.written.items()]


class _CountedFiles:
    """The file system of a DCP writer, which notes size and CRC-32 of each file that is written."""

    def __init__(self, system: Any) -> None:
        self._system = system
        self.written: Dict[str, Tuple[int, int]] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with self._system.create_stream(path, mode) as stream:
            counted = _CountedStream(stream)
            yield counted
        self.written[str(path)] = counted.size, counted.crc32

    def rename(self, old_path: Any, new_path: Any) -> None:
        self._system.rename(old_path, new_path)
        self.written[str(new_path)] = self.written.pop(str(old_path))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)


class _CountedStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.size = self.crc32 = 0

    def write(self, content: Any) -> int:
        self.crc32 = zlib.crc32(content, self.crc32)
        self.size += memoryview(content).nbytes
        return int(self._stream.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
