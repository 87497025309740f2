"""What callbacks do not have of the training loop: a hook after those of a batch, and the first batch of the data."""

from typing import Any, Callable, List

__all__ = ["after_batch_hooks", "first_train_batch"]


def after_batch_hooks(trainer: Any, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` after each training batch, after ``on_train_batch_end`` of callbacks, model and strategy.

    A callback's own ``on_train_batch_end`` is called before the model's, with the same counters. Functions are called
    in the order in which they were added.

    Args:
        trainer: The trainer.
        function: Called without arguments.

    Returns:
        A function that undoes it.
    """
    connector = getattr(trainer, "_logger_connector", None) or trainer.logger_connector
    functions: List[Callable[[], None]] = vars(connector).setdefault("_lightning_sm_after_batch", [])
    if "on_batch_end" not in vars(connector):
        end = connector.on_batch_end

        def on_batch_end(*args: Any, **kwargs: Any) -> Any:
            result = end(*args, **kwargs)
            # Lightning also calls it after batches of a validation.
            if trainer.training:
                for each in list(functions):
                    each()
            return result

        connector.on_batch_end = on_batch_end
    functions.append(function)

    def undo() -> None:
        if function in functions:
            functions.remove(function)

    return undo


def first_train_batch(trainer: Any) -> Any:
    """Return the first batch of the training data, without changing torch's random state.

    For a fit without steps left to train, which has created its loaders and not used them.
    """
    import torch

    # Lightning 2.0 moved it from the connector to the loop.
    source = getattr(trainer.fit_loop, "_data_source", None) or trainer._data_connector._train_dataloader_source
    with torch.random.fork_rng(devices=[]):
        return next(iter(source.dataloader()))
