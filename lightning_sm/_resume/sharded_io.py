"""``FolderSaves``: a sharded checkpoint appears under its final name whole, on every host, or not at all.

The strategy writes into a hidden folder beside the final one. Then all ranks agree on what was written (the manifest)
before any host renames its folder, so that an error on one rank is an error on all, and the older checkpoint stays.
"""

import hashlib
import os
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from lightning_sm._atomic_file import remove, remove_on_error, replace_atomically
from lightning_sm._lightning.checkpoints import (
    around_removals,
    around_sharded_saves,
    deferred_write_errors,
    is_failed_write,
    keep_averages,
    state_bytes,
)
from lightning_sm._lightning.collectives import any_true, broadcast, gather_objects
from lightning_sm._lightning.strategies import sharded_format, shards_of
from lightning_sm._lightning.trainer import Trainer
from lightning_sm._logging import log
from lightning_sm._resume import sharded_files
from lightning_sm._resume.manifest import MANIFEST, Manifest, new_save_id
from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.series import complete_record, saved_record
from lightning_sm._resume.sharded_files import (
    FolderRanks,
    Stage,
    copy_folder,
    flush_folders,
    keep_files_of_others,
    missing_room,
    partial_folder,
    remove_folder,
)
from lightning_sm._resume.shared import link_folder, source_to_share, write_rest
from lightning_sm._resume.storage import is_remote
from lightning_sm._resume.transfers import remove_names
from lightning_sm._resume.uploads import FolderUploads
from lightning_sm.errors import CheckpointError

__all__ = ["FolderSaves", "folder_saves_of", "install_folder_saves"]


class FolderSaves:
    """Saves and removes the checkpoint folders of one strategy. Saves are collective.

    Args:
        trainer: The trainer.
        strategy: Its strategy, whose own code writes the folders.
        uploads: Brings a folder to a URL; without, such a path is an error.
    """

    def __init__(self, trainer: Trainer, strategy: Any, uploads: Optional[FolderUploads] = None) -> None:
        self.uploads = uploads
        self._strategy = strategy
        self._format = sharded_format(strategy)
        self._is_active = False
        self._is_pending = False
        self._pending_path: Optional[str] = None
        self._copy: Optional[Future[None]] = None
        self._removals: List[str] = []
        self._host_bytes: Optional[int] = None
        # Folders that callbacks of the project have saved: the step, and the names of the files that are this host's.
        self._latest: Dict[str, Tuple[int, Manifest, Sequence[str]]] = {}
        self._ranks = FolderRanks(trainer)
        self._has_said_why = False

    @property
    def trainer(self) -> Trainer:
        """The trainer."""
        return self._ranks.trainer

    @trainer.setter
    def trainer(self, trainer: Trainer) -> None:
        self._ranks.trainer = trainer

    def start(self) -> None:
        """Save in the background from now on, where the memory allows it."""
        self._is_active = True

    def finish(self) -> None:
        """Wait for the pending save, and save synchronously from now on. Collective: every rank must call it.

        Raises:
            CheckpointError: The pending save failed on any rank.
        """
        self._is_active = False
        self._finish_pending()

    def wait(self) -> Optional[BaseException]:
        """Wait for this rank's part of the pending save without a collective, and return its error, if any.

        For the end of a training that failed, where not every rank gets here. Pending removals do not take place.
        """
        self._is_active, self._is_pending = False, False
        self._removals.clear()
        copy, self._copy = self._copy, None
        return None if copy is None else copy.exception()

    def is_pending(self, path: Any) -> bool:
        """Whether a save to ``path`` has not completed yet on this rank."""
        copy = self._copy
        return self._pending_path == os.path.abspath(os.fspath(path)) and copy is not None and not copy.done()

    def save(self, write: Callable[[Any, Any], Any], checkpoint: Any, filepath: Any) -> None:
        """Save a checkpoint.

        Args:
            write: The strategy's own method: takes the checkpoint and a path.
            checkpoint: What Lightning puts into it.
            filepath: The final path; that of global rank 0 is used.

        Raises:
            CheckpointError: A rank could not write. The older checkpoint is unchanged on every host.
        """
        started = time.monotonic()
        given = os.fspath(filepath)
        target, save_id = broadcast(
            self.trainer, (given if is_remote(given) else os.path.abspath(given), new_save_id())
        )
        self._finish_pending()
        source = source_to_share(checkpoint, target)
        if source is not None and self._share(checkpoint, os.path.abspath(source), target, save_id):
            return
        if is_remote(target):
            self._save_remote(write, checkpoint, target, save_id, started)
            return
        final = self._ranks.prepare(target, partial_folder(target, save_id))
        stage = None
        try:
            stage = self._memory_stage(target, save_id, final) if self._is_active else None
            manifest = self._write(write, checkpoint, target, stage or final, save_id)
            complete = self._completion(checkpoint, target, manifest)
            if stage is None:
                self._ranks.attempt(target, lambda: self._rename(final, target, manifest, complete))
        except BaseException:
            self._remove_stages(stage, final)
            raise
        self._host_bytes = sum(size for _, size in self._ranks.listed)
        if saved_record(checkpoint) is None:
            step = int(self.trainer.global_step)
            self._latest = {path: saved for path, saved in self._latest.items() if saved[0] == step}
            self._latest[target] = step, manifest, [name for name, _ in self._ranks.listed]
        if stage is not None:
            self._begin_copy(stage, final, target, manifest, complete)
        self._log(target, manifest, started, " in memory; a thread copies it" if stage is not None else "")

    def remove(self, original: Callable[[Any], None], path: Any) -> None:
        """Remove a checkpoint on every host, after the pending save, such as that of its replacement.

        Args:
            original: The strategy's method, which is not called: it removes on the main host only.
            path: The path or URL.
        """
        if is_remote(path):
            if self.trainer.is_global_zero:
                directory, _, name = os.fspath(path).rpartition("/")
                remove_names(directory, [name])
        elif self._is_pending:
            # Another host may still be copying the replacement. The next save begins with an agreement.
            self._removals.append(os.fspath(path))
        elif self.trainer.local_rank == 0:
            remove_folder(os.fspath(path))

    def _finish_pending(self) -> None:
        if not self._is_pending:
            return
        self._is_pending = False
        copy, self._copy = self._copy, None
        removals, self._removals = self._removals, []
        error = None if copy is None else copy.exception()
        self._ranks.agree(str(self._pending_path), error)
        for path in removals:
            if self.trainer.local_rank == 0:
                remove_folder(path)

    def _write(
        self,
        write: Callable[[Any, Any], Any],
        checkpoint: Any,
        target: str,
        stage: Stage,
        save_id: str,
        elsewhere: Sequence[SavedFile] = (),
    ) -> Manifest:
        """Let the strategy write, and return the manifest, which has been written into the folder of each host.

        Files that this rank has written to another place are in ``elsewhere`` then.
        """
        errors: List[BaseException] = []
        try:
            with deferred_write_errors(self._strategy, errors):
                write(checkpoint, stage.path)
        except BaseException as error:
            if not isinstance(error, Exception) and not is_failed_write(error):
                raise
            errors.append(error)
        self._ranks.agree(target, errors[0] if errors else None)
        files = self._ranks.read_files(target, stage)
        moved = (file for of_rank in gather_objects(self.trainer, tuple(elsewhere)) for file in of_rank)
        every = tuple(sorted((*files, *moved), key=lambda file: file.name))
        manifest = Manifest(self._format, self.trainer.world_size, save_id, every, shards_of(self._strategy))

        def complete() -> None:
            if self._ranks.lead(stage):
                manifest.write(stage.path)
                flush_folders(stage.path)

        self._ranks.attempt(target, complete)
        return manifest

    def _rename(self, stage: Stage, target: str, manifest: Manifest, complete: Callable[[], None]) -> None:
        if self._ranks.lead(stage):
            keep_files_of_others(stage.path, target, manifest.files)
            replace_atomically(stage.path, target)
            complete()

    def _share(self, checkpoint: Any, source: str, target: str, save_id: str) -> bool:
        """Link a save of the series to a checkpoint of another callback; return whether every host could do that.

        Each host links what it has written. Its folder may hold older files of other hosts, whose upload by this host
        could arrive after that of the newer ones.
        """
        trainer = self.trainer
        if saved_record(checkpoint) is None or source not in self._latest:
            return False
        _, manifest, names = self._latest[source]
        stage = self._ranks.prepare(target, partial_folder(target, save_id))
        linked = not self._ranks.lead(stage) or link_folder(source, stage.path, [*names, MANIFEST])
        if any_true(trainer, not linked):
            self._remove_stages(stage)
            return False
        directory, name = os.path.split(target)
        is_main = trainer.is_global_zero
        rest = self._ranks.attempt(target, lambda: write_rest(checkpoint, directory, name) if is_main else None)
        complete = self._completion(checkpoint, target, manifest, broadcast(trainer, rest))

        def rename() -> None:
            if self._ranks.lead(stage):
                replace_atomically(stage.path, target)
                complete()

        self._ranks.attempt(target, rename)
        return True

    @staticmethod
    def _completion(
        checkpoint: Any, target: str, manifest: Manifest, rest: Optional[SavedFile] = None
    ) -> Callable[[], None]:
        """Return what completes a save of the job's series on each host: its record, with the files of all hosts."""
        record, (directory, _, name) = saved_record(checkpoint), target.rpartition("/")
        if record is None:
            return _nothing
        files = [replace(file, name=f"{name}/{file.name}") for file in manifest.files]
        if rest is None:
            return partial(complete_record, record, directory, files)
        return partial(complete_record, record, directory, [*files, rest], rest.name)

    def _remove_stages(self, *stages: Optional[Stage]) -> None:
        for stage in stages:
            if stage is not None and self.trainer.local_rank == 0:
                remove(stage.path)

    def _memory_stage(self, target: str, save_id: str, final: Stage) -> Optional[Stage]:
        """Return a folder in the memory of each host; ``None``, and a line in the log, where that is impossible."""
        trainer = self.trainer
        name = hashlib.sha256(os.path.dirname(target).encode()).hexdigest()[:16]
        directory = os.path.join(sharded_files.MEMORY, f".lightning-sm-{name}")
        sizes = gather_objects(trainer, state_bytes(trainer) if self._host_bytes is None else 0)
        members = [rank for rank, leader in enumerate(final.leaders) if leader == final.leaders[trainer.global_rank]]
        # A later checkpoint is about as large as the last one.
        needed = sum(sizes[rank] for rank in members) if self._host_bytes is None else int(1.1 * self._host_bytes)
        hosts = sum(gather_objects(trainer, trainer.local_rank == 0))
        reasons = [each for each in gather_objects(trainer, missing_room(needed + 2**20)) if each is not None]
        if not reasons and len(set(final.leaders)) != hosts:
            reasons = [f"several hosts share {os.path.dirname(target)}"]
        stage = None
        if not reasons:
            stage = self._ranks.prepare(target, partial_folder(target, save_id, directory))
            if stage.leaders != final.leaders:
                reasons = [f"several hosts share {sharded_files.MEMORY}"]
                self._remove_stages(stage)
        if reasons:
            if trainer.is_global_zero and not self._has_said_why:
                self._has_said_why = True
                log.warning("Saving %s synchronously: %s", target, reasons[0])
            return None
        return stage

    def _begin_copy(
        self, stage: Stage, final: Stage, target: str, manifest: Manifest, complete: Callable[[], None]
    ) -> None:
        self._is_pending, self._pending_path = True, target
        if not self._ranks.lead(final):
            return
        here = [file for file in manifest.files if file.name in dict(self._ranks.listed)]

        started = time.monotonic()

        def copy() -> None:
            try:
                with remove_on_error(final.path):
                    copy_folder(stage.path, final.path, here)
                    manifest.write(final.path)
                    keep_files_of_others(final.path, target, manifest.files)
                    flush_folders(final.path)
                    replace_atomically(final.path, target)
                complete()
                log.info("Copied %s from memory: %.2f s", target, time.monotonic() - started)
            finally:
                remove(stage.path)

        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lightning-sm-folders")
        self._copy = thread.submit(copy)
        thread.shutdown(wait=False)

    def _save_remote(
        self, write: Callable[[Any, Any], Any], checkpoint: Any, url: str, save_id: str, started: float
    ) -> None:
        """Write to a local folder, and upload its files; the manifest last, which makes the checkpoint whole.

        An older one of the same name is removed before, as late as possible: an upload that is interrupted between two
        saves must not leave shards of both.
        """
        uploads = self.uploads
        if uploads is None:
            # Lightning's strategies would write to a local folder named after the protocol.
            raise CheckpointError(
                f"{type(self._strategy).__name__} cannot save its checkpoint folders to {url}.",
                hint="Use a local directory, which SageMaker uploads to S3.",
            )
        directory = os.path.join(tempfile.gettempdir(), ".lightning-sm-uploads")
        stage = self._ranks.prepare(url, partial_folder(url, save_id, directory))
        clear = partial(uploads.clear, url) if self.trainer.is_global_zero else lambda: None
        try:
            if uploads.writes_shards:
                self._ranks.attempt(url, clear)
            with uploads.shards(url) as uploaded:
                manifest = self._write(write, checkpoint, url, stage, save_id, uploaded)
            if not uploads.writes_shards:
                self._ranks.attempt(url, clear)
            shards = [name for name, _ in self._ranks.listed if self._ranks.lead(stage)]
            for names in (shards, [MANIFEST] if self.trainer.is_global_zero else []):
                self._ranks.attempt(url, partial(uploads.upload, stage.path, url, names))
            completes = self.trainer.is_global_zero
            self._ranks.attempt(url, self._completion(checkpoint, url, manifest) if completes else _nothing)
        finally:
            self._remove_stages(stage)
        self._log(url, manifest, started, "")

    def _log(self, target: str, manifest: Manifest, started: float, how: str) -> None:
        if self.trainer.is_global_zero:
            log.info(
                "Saved %s%s: format %s, world_size %d, %d files, %.1f MB, %.2f s",
                target,
                how,
                manifest.format,
                manifest.world_size,
                len(manifest.files),
                manifest.size / 1e6,
                time.monotonic() - started,
            )


def _nothing() -> None:
    """What ranks do where another one acts."""


_ATTRIBUTE = "_lightning_sm_folder_saves"


def folder_saves_of(strategy: Any) -> Optional[FolderSaves]:
    """What saves the folders of a strategy, if :func:`install_folder_saves` has been called with it."""
    found = getattr(strategy, _ATTRIBUTE, None)
    return found if isinstance(found, FolderSaves) else None


def install_folder_saves(trainer: Trainer, strategy: Any, uploads: Optional[FolderUploads] = None) -> FolderSaves:
    """Let a strategy save its checkpoint folders by :class:`FolderSaves`, from now on and once only.

    Args:
        trainer: The trainer.
        strategy: Its strategy, which writes folders.
        uploads: Brings a folder to a URL.
    """
    saves = folder_saves_of(strategy)
    if saves is None:
        saves = FolderSaves(trainer, strategy, uploads)
        setattr(strategy, _ATTRIBUTE, saves)
        keep_averages(strategy)
        around_sharded_saves(strategy, saves.save)
        around_removals(strategy, saves.remove)
    saves.trainer, saves.uploads = trainer, uploads
    return saves
