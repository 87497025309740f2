"""Tells a callback about the data: loaders that are ready, moments between batches and before validations."""

from typing import Any, Callable, List, Tuple

from lightning_sm._lightning._namespaces import Namespace
from lightning_sm._lightning._shims import strategy_of, train_loaders_method

__all__ = ["around_batches", "around_train_loaders", "before_validations"]


def around_train_loaders(
    namespace: Namespace, trainer: Any, prepare: Callable[[Any], None], ready: Callable[[List[Any]], None]
) -> Callable[[], None]:
    """Call ``prepare`` with each loader of training data before Lightning iterates over it.

    The strategy's ``process_dataloader`` is where a loader comes by when Lightning has given it a distributed sampler.

    Args:
        namespace: Lightning's namespace.
        trainer: The trainer.
        prepare: Is given one loader.
        ready: Is given all of them, when Lightning is through with them.

    Returns:
        A function that takes this back.
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
    trainer: Any, advance: Callable[[Any, Callable[[], None]], None], before_validation: Callable[[], None]
) -> Callable[[], None]:
    """Let ``advance`` stand where the epoch's loop fetches and trains one batch.

    Args:
        trainer: The trainer.
        advance: Is given the object that fetches, and a function that fetches and trains.
        before_validation: Is called before each validation, and before it draws random numbers.

    Returns:
        A function that takes this back.
    """
    loop = trainer.fit_loop.epoch_loop
    train, validate = loop.advance, loop.val_loop.run

    def run(*args: Any, **kwargs: Any) -> Any:
        before_validation()
        return validate(*args, **kwargs)

    return _replace(
        (loop, "advance", lambda fetcher: advance(fetcher, lambda: train(fetcher))), (loop.val_loop, "run", run)
    )


def before_validations(trainer: Any, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` before the first hook of each validation within a fit, sanity checks included.

    Args:
        trainer: The trainer.
        function: Takes nothing.

    Returns:
        A function that takes this back.
    """
    loop = trainer.fit_loop.epoch_loop.val_loop
    start = loop.on_run_start

    def on_run_start(*args: Any, **kwargs: Any) -> Any:
        function()
        return start(*args, **kwargs)

    return _replace((loop, "on_run_start", on_run_start))


def _replace(*changes: Tuple[Any, str, Callable[..., Any]]) -> Callable[[], None]:
    for owner, name, function in changes:
        setattr(owner, name, function)

    def undo() -> None:
        for owner, name, _ in changes:
            vars(owner).pop(name, None)

    return undo
