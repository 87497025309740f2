"""Names of checkpoints that are taken although no file bears them yet."""

from typing import Any

from lightning_sm._agree import broadcast

__all__ = ["heed_unwritten_names"]


class _Exists:
    """The ``file_exists`` of a ``ModelCheckpoint``, which by itself sees only what has been written."""

    def __init__(self, exists: Any, saves: Any) -> None:
        self.exists, self.saves = exists, saves

    def __call__(self, path: Any, trainer: Any) -> bool:
        """Tell on all ranks whether ``path`` exists or is going to."""
        return bool(self.exists(path, trainer) or broadcast(trainer, self.saves.is_being_saved(path)))


def heed_unwritten_names(trainer: Any, saves: Any) -> None:
    """Let no two ``ModelCheckpoint`` take one name while a checkpoint of that name is written in the background.

    The second would write over the first, and remove it for both when its time is over.

    Args:
        trainer: Its callbacks get the job's directory, where they may meet.
        saves: A ``BackgroundCheckpointIO``.
    """
    for callback in trainer.checkpoint_callbacks:
        exists = getattr(callback, "file_exists", None)
        if isinstance(exists, _Exists):
            exists.saves = saves
        elif exists is not None:
            callback.file_exists = _Exists(exists, saves)
