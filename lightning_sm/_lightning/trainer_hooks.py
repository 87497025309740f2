"""The moment at which a trainer restores a checkpoint.

The end of a fit's training: after its loop, for a loop that was skipped, and whether a callback has asked for it.

Which handler of a signal a trainer leaves behind.
"""

from inspect import signature
from typing import Any, Callable, ContextManager, Optional, Tuple

from lightning_sm._lightning.compat import signal_connector_of
from lightning_sm._lightning.trainer_protocol import Trainer, callbacks_of
from lightning_sm._logging import log

__all__ = [
    "after_run",
    "around_load",
    "around_restore",
    "call_skipped_train_hooks",
    "set_restored_handler",
    "should_stop_now",
]


def around_load(trainer: Trainer, found: Callable[[Any], ContextManager[Any]]) -> None:
    """Take part once when a test, validation or prediction loads a checkpoint, or does without one.

    Args:
        trainer: The trainer, before that moment.
        found: Gets the path that Lightning would load, or ``None``; gives the one to load in its place for that time.
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
    choose: Callable[[Any], Optional[Tuple[str, bool]]],
    explain: Callable[[Exception], Exception],
    restored: Callable[[], None],
) -> None:
    """Take part once when a fit restores a checkpoint, at the moment that the strategy wants: sharded ones do it late.

    In each fit of every version Lightning calls its connector's ``resume_start`` with the user's path or ``None``, then
    ``restore_model``, ``restore_training_state`` and ``resume_end``.

    Args:
        trainer: The trainer, before that moment.
        choose: Gets the user's path; returns another path and whether it loads with ``weights_only``, which Lightning
            takes since 2.6, or ``None`` for what Lightning does anyway.
        explain: Turns an error from restoring the chosen checkpoint into one that people understand.
        restored: Called when everything has been restored, before the first batch.
    """
    connector = _connector_of(trainer)
    for left in ("restore_model", "restore_training_state"):  # by a fit that failed on the way
        connector.__dict__.pop(left, None)

    def original(name: str) -> Any:
        connector.__dict__.pop(name, None)
        return getattr(connector, name)

    def resume_start(checkpoint_path: Any = None, **more: Any) -> None:
        start = original("resume_start")
        chosen = choose(checkpoint_path)
        if chosen is not None:
            checkpoint_path, weights_only = chosen
            if "weights_only" in signature(start).parameters:
                more["weights_only"] = weights_only
            connector.restore_model = lambda: explained("restore_model")
            connector.restore_training_state = lambda: explained("restore_training_state")
        start(checkpoint_path, **more)

    def explained(name: str) -> None:
        restore = original(name)
        try:
            restore()
        except Exception as error:
            raise explain(error) from error

    def resume_end() -> None:
        original("resume_end")()
        restored()

    connector.resume_start = resume_start
    connector.resume_end = resume_end


def _connector_of(trainer: Trainer) -> Any:
    named = "_checkpoint_connector" if hasattr(trainer, "_checkpoint_connector") else "checkpoint_connector"
    return getattr(trainer, named)


def after_run(trainer: Trainer, function: Callable[[], None]) -> None:
    """Call ``function`` once when the loop of the fit has run or was skipped, before the strategy is torn down.

    Args:
        trainer: The trainer, when everything has been restored: callbacks may run the loop for themselves before.
        function: Takes nothing.
    """
    loop = trainer.fit_loop

    def run(*args: Any, **kwargs: Any) -> Any:
        loop.__dict__.pop("run", None)
        result = loop.run(*args, **kwargs)
        function()
        return result

    loop.run = run


def call_skipped_train_hooks(trainer: Trainer) -> None:
    """Call the hooks of the training's start and end for a fit that had nothing left to train.

    Lightning skips them with the loop, and with them the callbacks that change the weights in ``on_train_end``.
    """
    for callback in callbacks_of(trainer):
        if any(cls.__name__ == "StochasticWeightAveraging" for cls in type(callback).__mro__):
            _prepare_end_of_swa(trainer, callback)
    trainer.fit_loop.on_run_start()
    trainer.fit_loop.on_run_end()


def _prepare_end_of_swa(trainer: Trainer, callback: Any) -> None:
    if not hasattr(callback, "_accumulate_grad_batches"):
        # Made where its epoch for batch norms begins, which has been trained.
        callback._accumulate_grad_batches = trainer.accumulate_grad_batches
    if not hasattr(callback, "_load_average_model_state"):
        # Before 1.8 it saves no state, and its average is still that of the first weights.
        # https://github.com/Lightning-AI/pytorch-lightning/pull/9938
        log.warning("This Lightning's StochasticWeightAveraging saves no state: the weights are the last trained ones")
        callback.on_train_end = lambda *_, **__: None


def should_stop_now(trainer: Trainer) -> bool:
    """Whether a callback has asked the fit to stop, and its least epochs and steps are over."""
    if not trainer.should_stop:
        return False
    loop = trainer.fit_loop
    # The epoch is counted as completed only after the hooks in which checkpoints are saved.
    epochs = loop.epoch_progress.current.completed + bool(loop.epoch_loop.batch_progress.is_last_batch)
    return bool(epochs >= (loop.min_epochs or 0) and trainer.global_step >= (loop.min_steps or 0))


def set_restored_handler(trainer: Trainer, number: int, handler: Any) -> None:
    """Have a trainer put ``handler`` in place when its fit is over, instead of the one from before it.

    Lightning does that before ``on_fit_end``, which is still work that a signal should not cut off
    (``trainer/trainer.py``, ``_teardown``).

    Args:
        trainer: Its handlers are in place.
        number: The signal.
        handler: A function, or ``signal.SIG_DFL`` or ``signal.SIG_IGN``.
    """
    # Empty while none of Lightning's handlers is in place; a private name, which a newer Lightning may not have.
    handlers = getattr(signal_connector_of(trainer), "_original_handlers", {})
    if number in handlers:
        handlers[number] = handler
