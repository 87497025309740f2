"""``Trainer``: the attributes of Lightning's ``Trainer`` that this package uses, for type checkers."""

from typing import Any, List, Mapping, Protocol, Sequence, Union

__all__ = ["Trainer", "callbacks_of", "is_fast_dev_run"]


class Trainer(Protocol):
    """A ``Trainer`` of either namespace, from Lightning 1.5 to 2.6.

    It declares what all versions have and Lightning itself declares, so that a hook of a callback may take it. Code in
    this folder that reads an attribute of some versions only takes ``Any``. The loops are ``Any``; what is read of them
    stands in :mod:`~lightning_sm._lightning.restart`.

    Source: ``lightning/pytorch/trainer/trainer.py``.
    """

    should_stop: bool

    @property
    def global_step(self) -> int:
        """The number of optimizer steps."""

    @property
    def current_epoch(self) -> int:
        """The index of the epoch, from 0."""

    @property
    def world_size(self) -> int:
        """The number of processes."""

    @property
    def num_nodes(self) -> int:
        """The number of hosts."""

    @property
    def node_rank(self) -> int:
        """The index of this host among all."""

    @property
    def global_rank(self) -> int:
        """The index of this process among all."""

    @property
    def local_rank(self) -> int:
        """The index of this process on its host."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process with the global rank 0."""

    @property
    def state(self) -> Any:
        """The ``TrainerState``; ``state.fn`` is ``fit``, ``validate``, ``test`` or ``predict``."""

    @property
    def training(self) -> bool:
        """Whether the training loop runs, and no validation within it."""

    @property
    def validating(self) -> bool:
        """Whether a validation runs, on its own or within ``fit``."""

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation before the first epoch of ``fit`` runs."""

    @property
    def accumulate_grad_batches(self) -> int:
        """The number of batches for one optimizer step."""

    @property
    def num_training_batches(self) -> Union[int, float]:
        """The number of batches in one epoch; infinite if unknown."""

    @property
    def num_val_batches(self) -> Sequence[Union[int, float]]:
        """The number of validation batches of each data loader."""

    @property
    def checkpoint_callbacks(self) -> List[Any]:
        """The callbacks that are ``Checkpoint`` instances."""

    @property
    def callback_metrics(self) -> Mapping[str, Any]:
        """The logged metrics by name."""

    @property
    def optimizers(self) -> List[Any]:
        """The optimizers."""

    @property
    def fit_loop(self) -> Any:
        """The loop over epochs."""

    @property
    def lightning_module(self) -> Any:
        """The model."""

    def save_checkpoint(self, filepath: Any, weights_only: bool = False) -> None:
        """Save a checkpoint; every process must call it."""


def callbacks_of(trainer: Any) -> List[Any]:
    """``trainer.callbacks``, which Lightning does not declare."""
    callbacks: List[Any] = trainer.callbacks
    return callbacks


def is_fast_dev_run(trainer: Any) -> bool:
    """Whether ``trainer.fast_dev_run`` is set, which Lightning does not declare."""
    return bool(trainer.fast_dev_run)
