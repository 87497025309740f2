"""Hooks into a trainer that callbacks do not have: restoring a checkpoint, the end of the fit loop, signal handlers."""

from inspect import signature
from typing import Any, Callable, ContextManager, Optional, Sequence, Tuple

from lightning_sm._lightning.compat import needs, signal_connector_of
from lightning_sm._lightning.loadable import restore_error
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of
from lightning_sm._logging import log

__all__ = [
    "after_run",
    "around_load",
    "around_restore",
    "call_skipped_train_hooks",
    "set_restored_handler",
    "should_stop_now",
    "skip_training",
    "skip_hooks",
    "skip_unused_hooks",
]

_BATCH_HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_test_batch_start",
    "on_test_batch_end",
    "on_predict_batch_start",
    "on_predict_batch_end",
)


def around_load(trainer: Trainer, found: Callable[[Any], ContextManager[Any]]) -> None:
    """Call ``found`` once, around the loading of a checkpoint in ``test``, ``validate`` or ``predict``.

    Args:
        trainer: The trainer, before it loads the checkpoint.
        found: Takes the path that Lightning is about to load, or ``None``. The value of its context is loaded instead.
    """
    connector = _connector_of(trainer)

    def resume_start(checkpoint_path: Any = None, **more: Any) -> None:
        connector.__dict__.pop("resume_start", None)
        with found(checkpoint_path) as path:
            connector.resume_start(path, **more)

    connector.resume_start = resume_start


def around_restore(
    trainer: Trainer,
    *,
    choose: Callable[[Any], Optional[Tuple[str, Optional[bool]]]],
    explain: Callable[[Exception], Exception],
    restored: Callable[[], None],
) -> None:
    """Choose the checkpoint that ``fit`` restores. Called once, when the strategy restores: sharded ones do it late.

    In each ``fit`` of every version Lightning calls ``resume_start`` of its checkpoint connector with the user's path
    or ``None``, then ``restore_model``, ``restore_training_state`` and ``resume_end``.

    Args:
        trainer: The trainer, before it restores.
        choose: Takes the user's path. Returns another path and whether to load it with ``weights_only``, which
            Lightning accepts since 2.6, or ``None`` for the user's own; or ``None`` to leave it to Lightning.
        explain: Returns the error to raise for an error in restoring the chosen checkpoint.
        restored: Called when everything has been restored, before the first batch.
    """
    connector = _connector_of(trainer)
    for name in ("restore_model", "restore_training_state"):  # of a fit that failed while restoring
        connector.__dict__.pop(name, None)

    def original(name: str) -> Any:
        connector.__dict__.pop(name, None)
        return getattr(connector, name)

    def resume_start(checkpoint_path: Any = None, **more: Any) -> None:
        start = original("resume_start")
        chosen = choose(checkpoint_path)
        if chosen is not None:
            checkpoint_path, weights_only = chosen
            if weights_only is not None and "weights_only" in signature(start).parameters:
                more["weights_only"] = weights_only
            connector.restore_model = lambda: explained(original("restore_model"))
            connector.restore_training_state = lambda: explained(original("restore_training_state"))
            # Strategies that shard restore the model and the optimizers here.
            explained(lambda: start(checkpoint_path, **more))
        else:
            start(checkpoint_path, **more)

    def explained(restore: Callable[[], None]) -> None:
        try:
            restore()
        except BaseException as error:
            cause = restore_error(error)
            if cause is None:
                raise
            raise explain(cause) from error

    def resume_end() -> None:
        original("resume_end")()
        restored()

    connector.resume_start = resume_start
    connector.resume_end = resume_end


def _connector_of(trainer: Trainer) -> Any:
    named = "_checkpoint_connector" if hasattr(trainer, "_checkpoint_connector") else "checkpoint_connector"
    return getattr(trainer, named)


def after_run(trainer: Trainer, function: Callable[[], None]) -> None:
    """Call ``function`` once after the fit loop has run or was skipped, before the strategy is torn down.

    Args:
        trainer: The trainer, after everything has been restored: callbacks may run the loop themselves before.
        function: Called without arguments.
    """
    loop = trainer.fit_loop

    def run(*args: Any, **kwargs: Any) -> Any:
        loop.__dict__.pop("run", None)
        result = loop.run(*args, **kwargs)
        function()
        return result

    loop.run = run


def call_skipped_train_hooks(trainer: Trainer) -> None:
    """Call the hooks of the start and end of training in a fit without steps left to train.

    Lightning skips the loop and these hooks, including those of callbacks that change the weights in ``on_train_end``.
    """
    for callback in callbacks_of(trainer):
        if any(cls.__name__ == "StochasticWeightAveraging" for cls in type(callback).__mro__):
            _prepare_swa(trainer, callback)
    trainer.fit_loop.on_run_start()
    trainer.fit_loop.on_run_end()


def _prepare_swa(trainer: Trainer, callback: Any) -> None:
    if not hasattr(callback, "_accumulate_grad_batches"):
        # Set at the start of its epoch for batch norms, which the earlier run has trained.
        callback._accumulate_grad_batches = trainer.accumulate_grad_batches
    if not hasattr(callback, "_load_average_model_state"):
        # Before 1.8 it saves no state, so that its average is that of the initial weights.
        # https://github.com/Lightning-AI/pytorch-lightning/pull/9938
        log.warning(
            "StochasticWeightAveraging saves no state before Lightning 1.8: using the last weights, not averaged"
        )
        callback.on_train_end = lambda *_, **__: None


def skip_training(trainer: Trainer) -> Callable[[], None]:
    """Let the fit loop end before its first step, and return what restores its minima.

    Args:
        trainer: The trainer, after everything has been restored.
    """
    loop = trainer.fit_loop
    minima = loop.min_epochs, loop.epoch_loop.min_steps

    def undo() -> None:
        loop.min_epochs, loop.epoch_loop.min_steps = minima

    # A checkpoint from the last epoch's validation does not count that epoch yet.
    loop.min_epochs = loop.epoch_loop.min_steps = None
    trainer.should_stop = True
    return undo


def should_stop_now(trainer: Trainer) -> bool:
    """Whether ``should_stop`` is set, and ``min_epochs`` and ``min_steps`` are reached."""
    if not trainer.should_stop:
        return False
    loop = trainer.fit_loop
    # Lightning increments the epochs after the hooks in which checkpoints are saved.
    epochs = loop.epoch_progress.current.completed + bool(loop.epoch_loop.batch_progress.is_last_batch)
    return bool(epochs >= (loop.min_epochs or 0) and trainer.global_step >= (loop.min_steps or 0))


def set_restored_handler(trainer: Trainer, number: int, handler: Any) -> None:
    """Set the signal handler that a trainer restores after ``fit``, instead of the one from before it.

    Lightning restores it before ``on_fit_end``, which a signal should not interrupt (``trainer/trainer.py``,
    ``_teardown``).

    Args:
        trainer: The trainer, after it has installed its handlers.
        number: The signal.
        handler: A function, or ``signal.SIG_DFL`` or ``signal.SIG_IGN``.
    """
    # Empty if Lightning installed no handlers; a private name, which a newer Lightning may not have.
    handlers = getattr(signal_connector_of(trainer), "_original_handlers", {})
    if number in handlers:
        handlers[number] = handler


def skip_unused_hooks(namespace: Namespace, callback: Any) -> None:
    """Let Lightning skip the hooks of each batch that a callback inherits from ``Callback``, where they do nothing.

    Lightning enters a profiler's context for each hook of each callback, 2 to 3 microseconds six times a step. What
    cannot be called it skips; ``Fabric.call`` does, too.

    Args:
        namespace: Lightning's namespace.
        callback: The callback. Hooks that its class overrides are called as before.
    """
    base: Any = namespace.module("callbacks").Callback
    unused = [name for name in _BATCH_HOOKS if getattr(type(callback), name) is getattr(base, name, None)]
    skip_hooks(namespace, callback, unused)


def skip_hooks(namespace: Namespace, callback: Any, names: Sequence[str], *, skip: bool = True) -> None:
    """Let Lightning skip hooks of a callback, or call them again. Lightning before 1.7 calls them in any case.

    Hooks that a program has set on the callback itself, such as for a profile, are called as before.
    """
    if not needs("skip_hooks", namespace):
        return
    for name in names:
        if skip:
            vars(callback).setdefault(name, None)
        elif vars(callback).get(name, callback) is None:
            delattr(callback, name)
