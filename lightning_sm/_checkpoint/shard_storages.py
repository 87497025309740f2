"""Where sharded checkpoints are kept but for local folders: the memory of a HyperPod cluster, and URLs.

``MemoryTier`` is SageMaker's managed tiered checkpointing. The library ``amzn-sagemaker-checkpointing`` is a writer and
a reader for ``torch.distributed.checkpoint`` (DCP). ``FolderUploads`` brings folders to a URL, file by file or by the
writer of s3torchconnector.
"""

import io
import logging
import os
import re
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._atomic_file import remove
from lightning_sm._checkpoint.candidates import JOB_KEY, Candidate, JobIdentity
from lightning_sm._checkpoint.integrity import META_FILE, CorruptedError, read_contents
from lightning_sm._checkpoint.manifest import ShardFile
from lightning_sm._checkpoint.storage import storage_error
from lightning_sm._checkpoint.transfers import own_checkpoint_io, remove_checkpoint, upload_file
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.collectives import broadcast
from lightning_sm._lightning.compat_sharded import dcp_storage, has_dcp_storage, saves_with_dcp
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.replaced_method import ReplacedMethod
from lightning_sm._lightning.trainer_protocol import Trainer
from lightning_sm._logging import log
from lightning_sm.errors import CheckpointError

__all__ = ["FolderUploads", "MemoryTier", "folder_uploads"]

# Everything but the state of model and optimizers, which Lightning keeps in a file of its own.
_META_KEY = "lightning_sm_meta"
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_DCP_EXTRA = "pip install 's3torchconnector[dcp]', for a job by requirements.txt."
_NOT_SHARDED = (
    "Use FSDPStrategy(state_dict_type='sharded') or ModelParallelStrategy (FSDP2), whose checkpoints are sharded."
)


@dataclass(frozen=True)
class MemoryTier:
    """The checkpoints of one training in the cluster's memory.

    The library counts ranks from the world size with which a namespace was made, so each world size has one of its own.

    Args:
        namespace: Identifies the training; the same in its restarts.
        world_size: The number of ranks.
    """

    namespace: str
    world_size: int

    @property
    def name(self) -> str:
        """The namespace as the library gets it."""
        return f"{self.namespace}-{self.world_size}"

    def check(self, lightning: Namespace, strategy: Any) -> None:
        """Raise if a strategy cannot save there.

        Raises:
            CheckpointError: The name is malformed, the library is missing, or the strategy saves nothing sharded.
        """
        if not _NAMESPACE.fullmatch(self.namespace):
            raise CheckpointError(
                f"sagemaker.tiered_checkpoints is {self.namespace!r}.",
                hint="Name the training with letters, digits, hyphens and underscores, 128 at most.",
            )
        try:
            import amzn_sagemaker_checkpointing  # noqa: F401
        except ImportError as error:
            raise CheckpointError(
                f"sagemaker.tiered_checkpoints is set, and amzn_sagemaker_checkpointing cannot be imported ({error}).",
                hint="Add amzn-sagemaker-checkpointing, s3torchconnector and tenacity to requirements.txt; they need "
                "Python 3.10 or later.",
            ) from error
        if not saves_with_dcp(strategy):
            raise CheckpointError(
                f"sagemaker.tiered_checkpoints is set, and {type(strategy).__name__} does not save with "
                "torch.distributed.checkpoint.",
                hint=_NOT_SHARDED,
            )
        if not has_dcp_storage(lightning):
            raise CheckpointError(
                "sagemaker.tiered_checkpoints is set, and this Lightning saves to local files only.",
                hint="Use Lightning 2.3 or later.",
            )

    def save(self, lightning: Namespace, trainer: Trainer) -> None:
        """Save the training's state. Collective: every rank must call it.

        Raises:
            Exception: It could not be saved; on every rank.
        """
        strategy, step = strategy_of(trainer), trainer.global_step
        # Lightning makes this folder on every host, for the part that is not sharded.
        folder = broadcast(trainer, os.path.join(tempfile.gettempdir(), f"lightning-sm-tier-{os.getpid()}-{step}"))

        def save_checkpoint(_: Any, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
            store = partial(self._store, step, _meta(checkpoint) if trainer.is_global_zero else None)
            with dcp_storage(lightning, save=store):
                type(strategy).save_checkpoint(strategy, checkpoint, folder)

        replaced = ReplacedMethod(strategy, "save_checkpoint", save_checkpoint)
        try:
            trainer.save_checkpoint(folder)
        finally:
            replaced.undo()
            remove(folder)

    def _store(self, step: int, meta: Optional[bytes], state: Any) -> None:
        from amzn_sagemaker_checkpointing.checkpointing.filesystem import SageMakerTieredStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        if meta is not None:
            state = {**state, _META_KEY: meta}
        save(state, storage_writer=SageMakerTieredStorageWriter(self._config(), step=step))

    def newest(self, trainer: Trainer) -> Optional[Candidate]:
        """Return the newest checkpoint, whose name is a folder of this rank with its part that is not sharded.

        Collective: every rank must call it. Without a server, or without a checkpoint there, it is ``None``.
        """
        step = broadcast(trainer, self._newest_step() if trainer.is_global_zero else None)
        if step is None:
            return None
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        state = {_META_KEY: b""}
        try:
            load(state, storage_reader=self.reader(step))
        except (Exception, CheckpointException) as error:
            log.warning("The checkpoint of step %d in the memory tier %s cannot be read: %s", step, self.name, error)
            return None
        folder = os.path.join(tempfile.mkdtemp(prefix="lightning-sm-"), f"memory-tier-step={step}.ckpt")
        os.makedirs(folder)
        with open(os.path.join(folder, META_FILE), "wb") as file:
            file.write(state[_META_KEY])
        try:
            contents = read_contents(file.name)
        except CorruptedError as error:
            log.warning("The checkpoint of step %d in the memory tier %s: %s", step, self.name, error)
            return None
        job = JobIdentity.from_dict(contents.get(JOB_KEY))
        return Candidate(folder, epoch=contents["epoch"], global_step=step, is_folder=True, job=job)

    def _newest_step(self) -> Optional[int]:
        try:
            reader: Any = self.reader(None)
            steps = reader.client.get_latest_checkpoints(limit=1)
        except Exception as error:
            log.warning("The memory tier %s cannot be asked for checkpoints: %s", self.name, error)
            return None
        return max(map(int, steps)) if steps else None

    def reader(self, step: Optional[int]) -> Any:
        """Return a DCP ``StorageReader`` of the checkpoint of a step."""
        from amzn_sagemaker_checkpointing.checkpointing.filesystem import SageMakerTieredStorageReader

        return SageMakerTieredStorageReader(self._config(), step=step)

    def _config(self) -> Any:
        from amzn_sagemaker_checkpointing.config.sagemaker_checkpoint_config import SageMakerCheckpointConfig

        # The library logs each request; its errors are enough.
        logger = logging.getLogger("lightning_sm.memory_tier")
        logger.setLevel(logging.ERROR)
        return SageMakerCheckpointConfig(namespace=self.name, world_size=self.world_size, logger=logger)


def _meta(checkpoint: Any) -> bytes:
    import torch

    rest = {key: value for key, value in checkpoint.items() if key not in ("state_dict", "optimizer_states")}
    content = io.BytesIO()
    torch.save(rest, content)
    return content.getvalue()


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
    def shards(self, url: str) -> Iterator[List[ShardFile]]:
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
    def shards(self, url: str) -> Iterator[List[ShardFile]]:
        written: List[ShardFile] = []
        with dcp_storage(self._namespace, save=lambda state: written.extend(self._save(state, url))):
            yield written

    def _save(self, state: Any, url: str) -> List[ShardFile]:
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
        return [ShardFile(path[len(url) + 1 :], size, crc) for path, (size, crc) in files.written.items()]


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
