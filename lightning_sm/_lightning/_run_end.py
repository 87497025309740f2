"""The end of a fit's training: after its loop, for a loop that was skipped, and whether a callback has asked for it."""

from typing import Any, Callable

from lightning_sm._log import log

__all__ = ["after_run", "end_skipped_run", "stops_now"]


def after_run(trainer: Any, function: Callable[[], None]) -> None:
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


def end_skipped_run(trainer: Any) -> None:
    """Call the hooks of the training's start and end for a fit that had nothing left to train.

    Lightning skips them with the loop, and with them the callbacks that change the weights in ``on_train_end``.
    """
    for callback in trainer.callbacks:
        if any(cls.__name__ == "StochasticWeightAveraging" for cls in type(callback).__mro__):
            _prepare_end_of_swa(trainer, callback)
    trainer.fit_loop.on_run_start()
    trainer.fit_loop.on_run_end()


def _prepare_end_of_swa(trainer: Any, callback: Any) -> None:
    if not hasattr(callback, "_accumulate_grad_batches"):
        # Made where its epoch for batch norms begins, which has been trained.
        callback._accumulate_grad_batches = trainer.accumulate_grad_batches
    if not hasattr(callback, "_load_average_model_state"):
        # Before 1.8 it saves no state, and its average is still that of the first weights.
        # https://github.com/Lightning-AI/pytorch-lightning/pull/9938
        log.warning("This Lightning's StochasticWeightAveraging saves no state: the weights are the last trained ones")
        callback.on_train_end = lambda *_, **__: None


def stops_now(trainer: Any) -> bool:
    """Whether a callback has asked the fit to stop, and its least epochs and steps are over."""
    if not trainer.should_stop:
        return False
    loop = trainer.fit_loop
    # The epoch is counted as completed only after the hooks in which checkpoints are saved.
    epochs = loop.epoch_progress.current.completed + bool(loop.epoch_loop.batch_progress.is_last_batch)
    return bool(epochs >= (loop.min_epochs or 0) and trainer.global_step >= (loop.min_steps or 0))
