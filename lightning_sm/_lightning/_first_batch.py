"""The first batch of training data, where no training has shown one."""

from typing import Any

__all__ = ["first_train_batch"]


def first_train_batch(trainer: Any) -> Any:
    """Ask for the first batch of training data, without touching torch's seed.

    A fit that was over before it began, because its job had finished before, has its loaders and used none of them.
    """
    import torch

    # Lightning 2.0 moved it from the connector to the loop.
    source = getattr(trainer.fit_loop, "_data_source", None) or trainer._data_connector._train_dataloader_source
    with torch.random.fork_rng(devices=[]):
        return next(iter(source.dataloader()))
