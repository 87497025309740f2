"""``ShardedWriter``: a sharded checkpoint appears under its final name whole, on every host, or not at all.

The strategy writes into a hidden folder beside the final one. Then all ranks agree on what was written (the record in
the folder) before any host renames it, so that an error on one rank is an error on all, and the older one stays.
"""

import hashlib
import json
import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from shutil import copytree, disk_usage
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

from lightning_sm._atomic_file import (
    flush,
    partial_path,
    remove,
    remove_at_once,
    remove_on_error,
    remove_stale,
    replace_atomically,
)
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.checkpoints import (
    around_removals,
    around_sharded_saves,
    dcp_storage,
    deferred_write_errors,
    has_dcp_storage,
    is_failed_write,
    keep_averages,
    save_dcp,
    saves_with_dcp,
    state_bytes,
)
from lightning_sm._lightning.collectives import RanksOfThread, broadcast, gather_objects
from lightning_sm._lightning.strategies import shards_of, strategy_kind
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume.ranks import agree_on_error, partition_by_size, raise_on_all_ranks
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, SavedFile
from lightning_sm._resume.series import complete_record, remove_from, saved_record
from lightning_sm._resume.snapshot import Snapshot
from lightning_sm._resume.storage import Storage, absolute_path, is_remote, storage_error
from lightning_sm._resume.transfers import own_checkpoint_io
from lightning_sm.errors import CheckpointError

__all__ = ["MEMORY", "ShardedWriter", "install_sharded_writer"]

#: Where a save in the background keeps its copy: files there are in host memory.
MEMORY = "/dev/shm"
# The files of all hosts, and the names of this host's.
_Files = Tuple[Tuple[SavedFile, ...], Sequence[str]]
# CRC-32 of zlib runs at about 1 GB/s in a thread, without the GIL.
_THREADS = 4


@dataclass(frozen=True)
class _Stage:
    """A folder that the strategy writes into, with the same path on every host.

    Args:
        path: The folder.
        ranks: The global ranks that see the same folder as this one; the first of them acts for all.
        rank: This global rank.
    """

    path: str
    ranks: Tuple[int, ...]
    rank: int

    @property
    def leads(self) -> bool:
        """Whether this rank acts for all that see the folder."""
        return self.rank == self.ranks[0]


class ShardedWriter:
    """Saves and removes the sharded checkpoints of one strategy. Saves are collective.

    In the background, training waits for a copy of what is saved, in memory. A thread of each rank does the rest,
    together with those of the other ranks. Shards of FSDP2 are tensors, of which each rank copies its own. Other
    strategies write files; they write them into memory.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        strategy: Its strategy, whose own code writes the folders.
    """

    def __init__(self, namespace: Namespace, trainer: Trainer, strategy: Any) -> None:
        self.trainer = trainer
        self._namespace, self._strategy = namespace, strategy
        self._is_active = False
        # The ranks of the threads, and the copy of tensors that a thread writes.
        self._ranks: Optional[RanksOfThread] = None
        self._snapshot = Snapshot()
        # The target of the save that is pending, this rank's part of it, and what is removed when it is complete.
        self._target = ""
        self._pending: Optional[Future[None]] = None
        self._removals: List[str] = []
        #: How many seconds the slowest save in a thread has taken.
        self.slowest = 0.0

    def start(self) -> None:
        """Save in the background from now on, where the memory allows it. Collective: every rank must call it."""
        self._is_active = True
        if self._ranks is None or not self._ranks.is_usable:
            self._ranks = RanksOfThread(self.trainer)

    def finish(self, *, failed: bool = False) -> None:
        """Wait for the pending save, and save synchronously from now on. Collective: every rank must call it.

        Args:
            failed: Whether the training has failed, so that not every rank may get here: no collective is called, an
                error of this rank's part of the save is only logged, and pending removals do not take place.

        Raises:
            CheckpointError: The pending save failed on any rank.
        """
        self._is_active = False
        self._snapshot = Snapshot()
        if not failed:
            self._finish_pending()
            return
        error = self._end_pending()
        if error is not None:
            log.error("%s", error)

    def _end_pending(self) -> Optional[BaseException]:
        pending, self._pending, self._removals = self._pending, None, []
        return None if pending is None else pending.exception()

    def is_pending(self, path: Any) -> bool:
        """Whether a save to ``path`` has not completed yet on this rank."""
        return self._pending is not None and self._target == absolute_path(path) and not self._pending.done()

    def save(self, write: Callable[[Any, Any], Any], checkpoint: Any, filepath: Any) -> None:
        """Save a checkpoint.

        Args:
            write: The strategy's own method: takes the checkpoint and a path.
            checkpoint: What Lightning puts into it.
            filepath: The final path; that of global rank 0 is used.

        Raises:
            CheckpointError: A rank could not write. The older checkpoint is unchanged on every host.
        """
        self._finish_pending()
        target = broadcast(self.trainer, absolute_path(filepath))
        record = broadcast(self.trainer, saved_record(checkpoint) or self._new_record(target))
        write_to = partial(write, checkpoint)
        if is_remote(target):
            self._save_remote(write_to, target, record)
            return
        stage = self._stage(target, record)
        with remove_on_error(stage.path):
            write_copy = self._copy_into_memory(write_to, target, record, stage) if self._is_active else None
            if write_copy is not None:
                self._complete_in_thread(target, record, stage, write_copy)
                return
            self._let_write(target, partial(write_to, stage.path), self.trainer)
            self._complete(target, record, stage, self.trainer)

    def remove(self, original: Callable[[Any], None], path: Any) -> None:
        """Remove a checkpoint on every host, after the pending save, such as that of its replacement.

        Args:
            original: The strategy's method, which is not called: it removes on the main host only.
            path: The path or URL.
        """
        if is_remote(path):
            directory, _, name = os.fspath(path).rpartition("/")
            remove_from(Storage(directory), [name] if self.trainer.is_global_zero else ())
        elif self._pending is not None:
            # Another host may still be copying the replacement. The next save begins with an agreement.
            self._removals.append(os.fspath(path))
        elif self.trainer.local_rank == 0:
            remove_at_once(os.fspath(path))

    def _new_record(self, target: str) -> CheckpointRecord:
        return CheckpointRecord(
            name=os.path.basename(target),
            step=int(self.trainer.global_step),
            epoch=int(self.trainer.current_epoch),
            world_size=self.trainer.world_size,
            strategy=shards_of(self._strategy),
            save_id=os.urandom(8).hex(),
            time=time.time(),
        )

    def _on_all_ranks(self, target: str, action: Callable[[], Any], ranks: Any = None) -> Any:
        return raise_on_all_ranks(ranks or self.trainer, f"The checkpoint {target}", action, _problem_of(target))

    def _finish_pending(self) -> None:
        if self._pending is None:
            return
        target, removals = self._target, self._removals
        agree_on_error(self.trainer, f"The checkpoint {target}", self._end_pending(), _problem_of(target))
        for path in removals:
            if self.trainer.local_rank == 0:
                remove_at_once(path)

    def _stage(self, target: str, record: CheckpointRecord, directory: str = "") -> _Stage:
        """Create a hidden folder on every host, and find out which ranks see the same one."""
        trainer, path = self.trainer, partial_path(target, record.save_id, directory)
        marker = os.path.join(path, ".rank-0")

        def create() -> None:
            if trainer.local_rank == 0:
                os.makedirs(path, exist_ok=True)
                remove_stale(os.path.dirname(path), record.save_id)
            if trainer.is_global_zero:
                open(marker, "wb").close()

        with remove_on_error(path):
            self._on_all_ranks(target, create)
            # The name is asked for the first time, so that a network file system has it in no cache.
            groups = gather_objects(trainer, 0 if os.path.exists(marker) else trainer.node_rank)
        if trainer.is_global_zero:
            remove(marker)
        ranks = (rank for rank, group in enumerate(groups) if group == groups[trainer.global_rank])
        return _Stage(path, tuple(ranks), trainer.global_rank)

    def _let_write(self, target: str, write: Callable[[], Any], ranks: Any) -> None:
        """Run what writes shards, with collectives of its own, and raise on all ranks if it failed on any."""
        errors: List[BaseException] = []
        try:
            with deferred_write_errors(self._strategy, errors):
                write()
        except BaseException as error:
            if not isinstance(error, Exception) and not is_failed_write(error):
                raise
            errors.append(error)
        agree_on_error(ranks, f"The checkpoint {target}", errors[0] if errors else None, _problem_of(target))

    def _files_in(self, stage: _Stage, target: str, ranks: Any, elsewhere: Sequence[SavedFile] = ()) -> _Files:
        """Flush and read what has been written to a folder, each rank a part of it.

        Return the files of all hosts, with those that this rank has written ``elsewhere``, and this host's names.
        """
        own = self._on_all_ranks(target, lambda: Storage(stage.path).files() if stage.leads else [], ranks)
        listed = gather_objects(ranks, own)[stage.ranks[0]]
        mine = partition_by_size(listed, stage.ranks.index(stage.rank), len(stage.ranks))
        read = self._on_all_ranks(target, lambda: _read(stage.path, mine), ranks)
        files: Dict[str, SavedFile] = {}
        for file in (each for part in gather_objects(ranks, [*read, *elsewhere]) for each in part):
            if files.setdefault(file.name, file) != file:
                raise CheckpointError(
                    f"The checkpoint {target} could not be saved: two hosts wrote different contents to {file.name}. "
                    "An older one is unchanged.",
                    hint="Turn off DeepSpeed's checkpoint option use_node_local_storage.",
                )
        return tuple(files[name] for name in sorted(files)), [file.name for file in listed]

    def _complete(self, target: str, record: CheckpointRecord, stage: _Stage, ranks: Any) -> None:
        """Write the record of what has been written to a folder, and rename the folder on every host."""
        files, _ = self._files_in(stage, target, ranks)
        whole = replace(record, files=files)

        def rename() -> None:
            if stage.leads:
                _keep_files_of_others(stage.path, target, whole.files)
                replace_atomically(stage.path, target)
                _write_record(target, whole)

        self._on_all_ranks(target, lambda: _write_manifest(stage, whole), ranks)
        self._on_all_ranks(target, rename, ranks)

    def _complete_in_thread(
        self, target: str, record: CheckpointRecord, stage: _Stage, write_copy: Callable[[], None]
    ) -> None:
        """Let a thread write what has been copied into memory, together with those of the other ranks."""
        ranks = self._ranks

        def complete() -> None:
            started = time.monotonic()
            with remove_on_error(stage.path):
                write_copy()
                self._complete(target, record, stage, ranks)
            self.slowest = max(self.slowest, time.monotonic() - started)

        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lightning-sm-folders")
        self._target, self._pending = target, thread.submit(complete)
        thread.shutdown(wait=False)

    def _copy_into_memory(
        self, write_to: Callable[[Any], Any], target: str, record: CheckpointRecord, stage: _Stage
    ) -> Optional[Callable[[], None]]:
        """Copy what is saved, and return what writes the copy to the folder, on the ranks of the thread.

        Return ``None``, and write a line to the log, where a host has no room for the copy.
        """
        # Other strategies write files themselves, or shards that are no DTensors.
        are_tensors = strategy_kind(self._strategy) == "fsdp2" and has_dcp_storage(self._namespace)
        if not self._has_memory(target, "" if are_tensors else MEMORY):
            return None
        return (
            self._copy_shards(write_to, target, stage)
            if are_tensors
            else self._copy_files(write_to, target, record, stage)
        )

    def _copy_shards(self, write_to: Callable[[Any], Any], target: str, stage: _Stage) -> Callable[[], None]:
        ranks = self._ranks
        assert ranks is not None
        states: List[Any] = []
        with dcp_storage(self._namespace, lambda state: states.append(self._snapshot.take(state))):
            self._let_write(target, partial(write_to, stage.path), self.trainer)

        def write_copy() -> None:
            for state in states:
                self._let_write(target, partial(save_dcp, state, stage.path, ranks.group), ranks)

        return write_copy

    def _copy_files(
        self, write_to: Callable[[Any], Any], target: str, record: CheckpointRecord, stage: _Stage
    ) -> Callable[[], None]:
        ranks, name = self._ranks, hashlib.sha256(os.path.dirname(target).encode()).hexdigest()[:16]
        memory = self._stage(target, record, os.path.join(MEMORY, f".lightning-sm-{name}"))
        with remove_on_error(memory.path):
            self._let_write(target, partial(write_to, memory.path), self.trainer)

        def copy() -> None:
            if memory.leads:  # the kernel copies, without the GIL
                copytree(memory.path, stage.path, dirs_exist_ok=True)

        def write_copy() -> None:
            try:
                self._on_all_ranks(target, copy, ranks)
            finally:
                remove(memory.path)

        return write_copy

    def _has_memory(self, target: str, folder: str) -> bool:
        """Whether each host has room for what its ranks save: in a folder in memory, or in memory without one."""
        trainer = self.trainer
        sizes = gather_objects(trainer, (trainer.node_rank, state_bytes(trainer)))
        size = sum(size for host, size in sizes if host == trainer.node_rank)
        reasons = gather_objects(trainer, _lack_of_memory(size + 2**20, folder))
        reason = next((each for each in reasons if each is not None), None)
        if reason is not None and trainer.is_global_zero:
            log.warning("Saving %s synchronously: %s", target, reason)
        return reason is None

    def _save_remote(self, write_to: Callable[[Any], Any], url: str, record: CheckpointRecord) -> None:
        """Write to a local folder, and upload its files; the record last, which makes the checkpoint whole.

        An older one of the same name is removed before, as late as possible: an upload that is interrupted between two
        saves must not leave shards of both.
        """
        directory, _, name = url.rpartition("/")
        storage, is_main = Storage(url), self.trainer.is_global_zero
        stage = self._stage(url, record, os.path.join(tempfile.gettempdir(), ".lightning-sm-uploads"))

        def clear() -> None:
            self._on_all_ranks(url, lambda: Storage(directory).remove(name) if is_main else None)

        def upload(names: Sequence[str]) -> None:
            for each in names:
                storage.upload(os.path.join(stage.path, each), each)

        connector = _s3_connector(self._namespace, self._strategy)
        try:
            uploaded: List[SavedFile] = []
            shards: ContextManager[Any] = nullcontext()
            if connector is not None:
                clear()
                shards = dcp_storage(self._namespace, lambda state: uploaded.extend(_send_dcp(connector, state, url)))
            with shards:
                self._let_write(url, partial(write_to, stage.path), self.trainer)
            files, own = self._files_in(stage, url, self.trainer, uploaded)
            record = replace(record, files=files)
            self._on_all_ranks(url, lambda: _write_manifest(stage, record))
            if connector is None:
                clear()
            self._on_all_ranks(url, partial(upload, own if stage.leads else ()))
            self._on_all_ranks(url, partial(upload, [MANIFEST] if is_main else ()))
            self._on_all_ranks(url, lambda: _write_record(url, record) if is_main else None)
        finally:
            remove(stage.path)


def _write_record(target: str, record: CheckpointRecord) -> None:
    """Write the record of a save of the job's series beside it."""
    if record.number:
        directory, _, name = target.rpartition("/")
        complete_record(record, directory, (replace(file, name=f"{name}/{file.name}") for file in record.files))


def _problem_of(target: str) -> str:
    kept = "Older ones of other names are" if is_remote(target) else "An older one is"
    return "could not be saved ({}). " + f"{kept} unchanged"


def _write_manifest(stage: _Stage, record: CheckpointRecord) -> None:
    if stage.leads:
        Storage(stage.path).write(MANIFEST, json.dumps(asdict(record), indent=1).encode())
        for folder, _, _ in os.walk(stage.path):
            flush(folder)


def _read(folder: str, files: Sequence[SavedFile]) -> List[SavedFile]:
    """Flush files, and return them with their CRC-32."""

    def read(file: SavedFile) -> SavedFile:
        flush(os.path.join(folder, file.name))
        return SavedFile.read(folder, file.name)

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as threads:
        return list(threads.map(read, files))


def _keep_files_of_others(partial: str, target: str, files: Sequence[SavedFile]) -> None:
    """Let a folder that will replace another keep its files that other hosts write anew, as they are.

    After a restart each host has the files of all, and SageMaker deletes in S3 what a host deletes: the deletion of an
    older file by this host could arrive after the upload of the newer one by the other. The record tells them apart.
    """
    for file in files:
        own, old = os.path.join(partial, file.name), os.path.join(target, file.name)
        if not os.path.lexists(own) and os.path.isfile(old):
            os.makedirs(os.path.dirname(own), exist_ok=True)
            with suppress(OSError):  # a file system without hard links
                os.link(old, own)


def _lack_of_memory(size: int, folder: str) -> Optional[str]:
    """Why so many bytes cannot be kept in a folder in memory, or in memory without one; ``None`` if they can."""
    where = folder or "the memory"
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
        # A file system in memory may be larger than the memory that is left.
        free = min(free, disk_usage(folder).free) if folder else free
    except (OSError, StopIteration) as error:
        return f"{where} cannot be used ({error})"
    if free < size:
        return f"{where} has room for {free / 1e6:.0f} MB, and about {size / 1e6:.0f} MB are needed"
    return None if not folder or os.access(folder, os.W_OK) else f"{folder} is not writable"


def _s3_connector(namespace: Namespace, strategy: Any) -> Any:
    """The project's ``S3LightningCheckpoint``, where its package writes shards; DeepSpeed writes local files only."""
    checkpoint_io = own_checkpoint_io(strategy)
    is_of_s3 = type(checkpoint_io).__module__.partition(".")[0] == "s3torchconnector"
    if not (is_of_s3 and saves_with_dcp(strategy) and has_dcp_storage(namespace)):
        return None
    try:
        import s3torchconnector.dcp  # noqa: F401
    except ImportError as error:
        hint = "pip install 's3torchconnector[dcp]', for a job by requirements.txt."
        log.warning("Shards are saved without s3torchconnector's S3StorageWriter: %s. HINT: %s", error, hint)
        return None
    return checkpoint_io


def _send_dcp(connector: Any, state: Any, url: str) -> Iterator[SavedFile]:
    """Save shards by the ``S3StorageWriter`` of s3torchconnector, which sends them to S3 while they are serialized."""
    from s3torchconnector.dcp import S3FileSystem, S3StorageWriter
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    client = connector._client
    writer: Any = S3StorageWriter(client.region, url)
    # The writer has no argument for an endpoint.
    writer.fs = S3FileSystem(client.region, s3_client=client)
    try:
        save(state, storage_writer=writer)
    except CheckpointException as error:
        first = next((reason for reason, _ in error.failures.values() if isinstance(reason, Exception)), None)
        raise storage_error(url, "does not take the shards", first or RuntimeError("no reason given")) from error
    yield from Storage(url).files()


_ATTRIBUTE = "_lightning_sm_sharded_writer"


def install_sharded_writer(namespace: Namespace, trainer: Trainer, strategy: Any) -> ShardedWriter:
    """Let a strategy save its sharded checkpoints by :class:`ShardedWriter`, from now on and once only.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        strategy: Its strategy, which writes folders.
    """
    writer: Optional[ShardedWriter] = getattr(strategy, _ATTRIBUTE, None)
    if writer is None:
        writer = ShardedWriter(namespace, trainer, strategy)
        setattr(strategy, _ATTRIBUTE, writer)
        keep_averages(strategy)
        around_sharded_saves(strategy, writer.save)
        around_removals(strategy, writer.remove)
    writer.trainer = trainer
    return writer
