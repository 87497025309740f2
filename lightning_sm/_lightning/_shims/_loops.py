"""Loops and what they count."""

from typing import Any, Tuple

from lightning_sm._lightning._namespaces import Namespace
from lightning_sm._lightning._shims._ranges import needs

__all__ = [
    "epochs_trained",
    "resumes_within_epochs",
    "save_checkpoint_at_end",
    "saves_before_epoch_hooks",
    "signal_connector_of",
    "steps_taken",
    "train_loaders_method",
]


def epochs_trained(namespace: Namespace, trainer: Any) -> int:
    """How many epochs a fit that has ended came to; 1.5 then counts the last one back."""
    epoch = int(trainer.current_epoch)
    if needs("epochs_trained", namespace) and trainer.fit_loop.epoch_progress.total.completed:
        return epoch + 1
    return epoch


def resumes_within_epochs(namespace: Namespace) -> bool:
    """Whether a run that was interrupted within an epoch goes on in it; 1.5 goes on with the next epoch."""
    return not needs("resumes_within_epochs", namespace)


def save_checkpoint_at_end(namespace: Namespace, trainer: Any, path: str) -> None:
    """Save a checkpoint when training has ended; 1.5 then counts a step too many, as its ``ModelCheckpoint`` knows."""
    ahead = 1 if needs("save_checkpoint_at_end", namespace) else 0
    if ahead:
        trainer.fit_loop.global_step -= ahead
    trainer.save_checkpoint(path)
    if ahead:
        trainer.fit_loop.global_step += ahead


def steps_taken(namespace: Namespace, trainer: Any) -> int:
    """How many optimizer steps were taken, also within ``on_train_batch_end``, where 1.5 has not counted the last."""
    step = int(trainer.global_step)
    if needs("steps_taken", namespace) and not trainer.fit_loop.epoch_loop._should_accumulate():
        return step + 1
    return step


def train_loaders_method(namespace: Namespace, trainer: Any) -> Tuple[Any, str]:
    """The object and its method that make the data loaders for training; until 2.0 the trainer does."""
    if needs("train_loaders_method", namespace):
        return trainer, "reset_train_dataloader"
    return trainer.fit_loop, "setup_data"


def saves_before_epoch_hooks(namespace: Namespace) -> bool:
    """Whether checkpoints at the end of an epoch are written before the model's own hook, which may reset metrics."""
    return needs("saves_before_epoch_hooks", namespace)


def signal_connector_of(trainer: Any) -> Any:
    """What handles signals for the trainer; in 1.5 it bears another name."""
    return trainer._signal_connector if hasattr(trainer, "_signal_connector") else trainer.signal_connector
