"""``CheckpointPlaces``: where the ``ModelCheckpoint`` callbacks of a trainer save, and where a program finds that."""

import atexit
import functools
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Sequence, Set, Tuple

from lightning_sm._lightning.collectives import broadcast
from lightning_sm._lightning.trainer import callbacks_of
from lightning_sm._resume.series import is_in_series
from lightning_sm._resume.storage import is_remote
from lightning_sm._settings.given import RunContext
from lightning_sm._settings.redirect import CALLBACKS, CheckpointRoutes, redirect
from lightning_sm._settings.routed import is_within, may_replace

__all__ = ["CheckpointPlaces"]

# The links that this process has made or found.
_links: Set[Path] = set()


class CheckpointPlaces:
    """Where the ``ModelCheckpoint`` callbacks of a trainer save: at or below the job's checkpoint directory.

    Args:
        context: The run, whose option ``checkpoint_dir`` may name the directory.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        # The callbacks that have no directory before their first fit.
        self._open: List[Any] = []
        # The directory of each callback before its own ``setup``, then that before it is restored.
        self._placed: List[Tuple[Any, Any]] = []
        # Where the checkpoints are that a program may look for in a local directory.
        self._replaced: Dict[str, str] = {}

    def route(self, callbacks: Sequence[Any]) -> None:
        """Send the checkpoints of callbacks that name a directory below the job's.

        The local directories exist then, also those that are not used, for scripts that write other files beside their
        checkpoints.

        Args:
            callbacks: All callbacks of a trainer, before their ``setup``: in ``validate``, too, Lightning chooses
                directories there.
        """
        for setting in redirect(callbacks, CALLBACKS, self._context):
            self._replace(setting.old, setting.value)
            with suppress(OSError):  # there may be no right to
                os.makedirs(setting.old, exist_ok=True)
        self._open += [each for each in self._checkpoints(callbacks) if each.dirpath is None]
        self._make_directories(callbacks)

    def place(self, trainer: Any, directory: str) -> None:
        """Choose the directory of the callbacks that name none, which keep it. Every rank must call it.

        Args:
            trainer: The trainer, before its callbacks' ``setup``.
            directory: The directory, or a URL.
        """
        callbacks = callbacks_of(trainer)
        if self._open:
            log_dir = trainer.log_dir
            for callback in self._open:
                callback.dirpath = directory
            if log_dir is not None:
                self._replace(os.path.join(log_dir, "checkpoints"), directory)
            self._open = []
        self._make_directories(callbacks)
        self._placed = [(each, each.dirpath) for each in self._checkpoints(callbacks)]

    def keep(self, trainer: Any) -> None:
        """Route once more what callbacks have named in their own ``setup``, such as by ``trainer.log_dir``.

        As in their ``setup`` global rank 0 decides. Every rank must call it.

        Args:
            trainer: The trainer, after its callbacks' ``setup``.
        """
        if not self._placed:
            return
        callbacks = [callback for callback, _ in self._placed]
        kept = [self._kept(*each) for each in self._placed] if trainer.is_global_zero else []
        for callback, dirpath in zip(callbacks, broadcast(trainer, kept)):
            if callback.dirpath != dirpath:
                self._replace(callback.dirpath, dirpath)
                callback.dirpath = dirpath
        self._make_directories(callbacks)
        self._placed = [(each, each.dirpath) for each in callbacks]

    def _kept(self, callback: Any, before: Any) -> Any:
        root, output_dir, now = self._context.checkpoint_dir[0], self._context.output_dir[0], callback.dirpath
        if now == before or is_remote(now) or is_remote(root) or is_within(now, root):
            return now
        is_replaced = may_replace(now, self._context.job) or is_within(now, output_dir)
        return CheckpointRoutes(root, ()).place(now) if is_replaced else now

    def _checkpoints(self, callbacks: Sequence[Any]) -> List[Any]:
        checkpoint_class = self._context.namespace.module("callbacks").ModelCheckpoint
        return [callback for callback in callbacks if isinstance(callback, checkpoint_class)]

    def _make_directories(self, callbacks: Sequence[Any]) -> None:
        for path in (callback.dirpath for callback in self._checkpoints(callbacks)):
            if path is not None and not is_remote(path) and is_within(path, self._context.checkpoint_dir[0]):
                os.makedirs(path, exist_ok=True)

    def _replace(self, told: Any, directory: str) -> None:
        # What is linked into a directory that SageMaker uploads during the training would be uploaded twice.
        uploaded = (self._context.checkpoint_dir[0], self._context.job.tensorboard_dir)
        if not is_remote(told) and not any(each is not None and is_within(told, each) for each in uploaded):
            self._replaced[str(told)] = directory

    def link_checkpoints(self, *, removes: bool = True) -> None:
        """Link the checkpoints on this host into the directories where a program may look for them.

        Not the directories themselves, which a program may remove; what stands there under such a name stays. What is
        linked into a directory that SageMaker uploads at the end is removed at the exit.

        Args:
            removes: Whether this process does that.
        """
        # A restarted fit continues in the directories of the interrupted one.
        continued = {place: callback.dirpath for callback, place in self._placed}
        for told, place in self._replaced.items():
            self._replaced[told] = directory = continued.get(place, place)
            is_uploaded = not may_replace(told, self._context.job)
            for path in () if is_remote(directory) else sorted(Path(directory).rglob("*.ckpt")):
                name = path.relative_to(directory)
                if not is_in_series(name.as_posix()):
                    link = Path(told, name)
                    _link(link, path)
                    if is_uploaded and removes and link in _links:
                        _remove_at_exit(link)
        for link in _links:
            if link.is_symlink() and not link.exists():  # of a file that a later fit has removed
                with suppress(OSError):
                    link.unlink()


def _link(link: Path, path: Path) -> None:
    # Another rank of this host may make or replace it first, or there may be no right to.
    with suppress(OSError):
        if link in _links and os.readlink(link) != str(path):  # of an earlier fit
            link.unlink()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path, target_is_directory=path.is_dir())
    with suppress(OSError):
        if os.readlink(link) == str(path):
            _links.add(link)


@functools.lru_cache(maxsize=None)
def _remove_at_exit(link: Path) -> None:
    atexit.register(_remove, link, os.getpid())


def _remove(link: Path, pid: int) -> None:
    with suppress(OSError):
        if pid == os.getpid() and link.is_symlink():
            link.unlink()
