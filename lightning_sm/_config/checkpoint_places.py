"""``CheckpointPlaces``: where callbacks save checkpoints, and which callbacks are added to those that are there."""

import os
from dataclasses import dataclass
from typing import Any, FrozenSet, Iterator, List, Sequence

from lightning_sm._checkpoint.periodic import periodic_checkpoints
from lightning_sm._config.routed import may_replace
from lightning_sm._config.settings import Settings
from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["CheckpointPlaces", "explicit_directories"]


@dataclass(frozen=True)
class CheckpointPlaces:
    """Where the ``ModelCheckpoint`` callbacks of a trainer save.

    Args:
        directory: The job's checkpoint directory.
        job: The job.
        namespace: Lightning's namespace.
        explicit: Directories that were typed or are hyperparameters, and stay.
        save_every_seconds: Seconds between two checkpoints, where none of the callbacks saves regularly.
        adds: Whether callbacks are added.
    """

    directory: str
    job: TrainingJob
    namespace: Namespace
    explicit: FrozenSet[str] = frozenset()
    save_every_seconds: float = 600.0
    adds: bool = True

    def complete(self, callbacks: Sequence[Any]) -> List[Any]:
        """Send the checkpoints of these callbacks to the directory, and return the callbacks to add to them.

        Args:
            callbacks: All callbacks of a trainer. Those that were added before count as any other.
        """
        checkpoint_class = self.namespace.module("callbacks").ModelCheckpoint
        checkpoints = [callback for callback in callbacks if isinstance(callback, checkpoint_class)]
        for callback in checkpoints:
            if may_replace(callback.dirpath, self.job) and not self._is_explicit(callback):
                callback.dirpath = self.directory
        if not self.adds:
            return []
        if "://" in self.directory:
            return [] if checkpoints else [checkpoint_class(dirpath=self.directory)]
        return periodic_checkpoints(checkpoints, self.directory, self.save_every_seconds, self.namespace)

    def _is_explicit(self, callback: Any) -> bool:
        return callback.dirpath is not None and os.path.realpath(callback.dirpath) in self.explicit


def explicit_directories(settings: Settings) -> FrozenSet[str]:
    """Every ``dirpath`` that was typed or is a hyperparameter, wherever in the config its callback stands."""
    said = ({key.rpartition(".")[2]: settings.get(key)} for key in settings.origins if settings.is_explicit(key))
    return frozenset(os.path.realpath(path) for value in said for path in _dirpaths(value))


def _dirpaths(value: Any) -> Iterator[str]:
    """Every ``dirpath`` in nested values."""
    if isinstance(value, dict) and isinstance(value.get("dirpath"), str):
        yield value["dirpath"]
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _dirpaths(inner)
