"""Hooks into the training loop that callbacks do not have: around data loaders, epochs, batches and saves.

Each function replaces methods of one trainer's loops and returns a function that restores them.
"""

from typing import Any, Callable, List, Tuple

from lightning_sm._lightning.compat import saved_by_all_ranks, train_loaders_method
from lightning_sm._lightning.compat_strategies import strategy_of
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.trainer_protocol import Trainer

__all__ = [
    "after_batch_hooks",
    "around_batches",
    "around_epochs",
    "around_saves",
    "around_train_loaders",
    "before_validations",
    "first_train_batch",
]


def around_train_loaders(
    namespace: Namespace, trainer: Trainer, prepare: Callable[[Any], None], ready: Callable[[List[Any]], None]
) -> Callable[[], None]:
    """Call ``prepare`` with each training data loader before Lightning iterates over it.

    Lightning passes a loader to the strategy's ``process_dataloader`` after it has set a distributed sampler.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        prepare: Called with each loader.
        ready: Called with all of them, after Lightning has prepared them.

    Returns:
        A function that undoes it.
    """
    found: List[Any] = []
    inside: List[bool] = []
    owner, name = train_loaders_method(namespace, trainer)
    strategy = strategy_of(trainer)
    make, process = getattr(owner, name), strategy.process_dataloader

    def make_loaders(*args: Any, **kwargs: Any) -> Any:
        found.clear()
        inside.append(True)
        try:
            return make(*args, **kwargs)
        finally:
            inside.pop()
            if found:
                ready(list(found))

    def process_dataloader(dataloader: Any) -> Any:
        if inside:
            prepare(dataloader)
            found.append(dataloader)
        return process(dataloader)

    return _replace((owner, name, make_loaders), (strategy, "process_dataloader", process_dataloader))


def around_batches(
    trainer: Trainer, advance: Callable[[Any, Callable[[], None]], None], before_validation: Callable[[], None]
) -> Callable[[], None]:
    """Call ``advance`` instead of the method of the epoch loop that fetches and trains one batch.

    Args:
        trainer: The trainer.
        advance: Called with the data fetcher and the replaced method, which takes no arguments.
        before_validation: Called before each validation, before it draws random numbers.

    Returns:
        A function that undoes it.
    """
    loop = trainer.fit_loop.epoch_loop
    train, validate = loop.advance, loop.val_loop.run

    def run(*args: Any, **kwargs: Any) -> Any:
        before_validation()
        return validate(*args, **kwargs)

    return _replace(
        (loop, "advance", lambda fetcher: advance(fetcher, lambda: train(fetcher))), (loop.val_loop, "run", run)
    )


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
            # Lightning also calls it after batches of a validation.
            if trainer.training:
                for each in list(functions):
                    each()
            return end(*args, **kwargs)

        connector.on_batch_end = on_batch_end
    functions.append(function)

    def undo() -> None:
        if function in functions:
            functions.remove(function)

    return undo


def before_validations(trainer: Trainer, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` before the first hook of each validation within ``fit``, including the sanity check.

    Args:
        trainer: The trainer.
        function: Called without arguments.

    Returns:
        A function that undoes it.
    """
    loop = trainer.fit_loop.epoch_loop.val_loop
    start = loop.on_run_start

    def on_run_start(*args: Any, **kwargs: Any) -> Any:
        function()
        return start(*args, **kwargs)

    return _replace((loop, "on_run_start", on_run_start))


def around_epochs(
    trainer: Trainer, before: Callable[[], None], before_iterator: Callable[[], None], begin: Callable[[Any], None]
) -> Callable[[], None]:
    """Call functions at the start of each training epoch.

    Args:
        trainer: The trainer.
        before: Called before the epoch's first hook.
        before_iterator: Called before Lightning creates the iterator over the training data, in versions that create
            it at this point.
        begin: Called with the data fetcher, right before the first batch.

    Returns:
        A function that undoes it.
    """
    fit, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    advance, start = fit.on_advance_start, loop.on_run_start

    def on_advance_start(*args: Any, **kwargs: Any) -> None:
        before()
        advance(*args, **kwargs)

    def on_run_start(data_fetcher: Any, *args: Any, **kwargs: Any) -> None:
        before_iterator()
        start(data_fetcher, *args, **kwargs)
        begin(data_fetcher)

    return _replace((fit, "on_advance_start", on_advance_start), (loop, "on_run_start", on_run_start))


def around_saves(
    namespace: Namespace, trainer: Trainer, before: Callable[[], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Call ``before`` and ``after`` around each collective save of a checkpoint.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        before: Called before the checkpoint is created. Collectives are allowed.
        after: Called after the save, also if it fails.

    Returns:
        A function that undoes it.
    """
    save = trainer.save_checkpoint

    def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
        if not saved_by_all_ranks(namespace, trainer, 2):
            return save(*args, **kwargs)
        before()
        try:
            return save(*args, **kwargs)
        finally:
            after()

    return _replace((trainer, "save_checkpoint", save_checkpoint))


def _replace(*changes: Tuple[Any, str, Callable[..., Any]]) -> Callable[[], None]:
    for owner, name, function in changes:
        setattr(owner, name, function)

    def undo() -> None:
        for owner, name, _ in changes:
            vars(owner).pop(name, None)

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
