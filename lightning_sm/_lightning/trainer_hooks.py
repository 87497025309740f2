"""What callbacks lack: hooks around a restore, after a batch and after the loop; signal handlers; a first batch."""

import os
from functools import partial
from inspect import signature
from typing import Any, Callable, ContextManager, Dict, Optional, Sequence, Tuple

from lightning_sm._lightning.legacy import connector_of, skips_missing_hooks
from lightning_sm._lightning.loadable import restore_error
from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._lightning.replaced_method import ReplacedMethod, listen
from lightning_sm._lightning.trainer import Trainer, callbacks_named

__all__ = [
    "after_batches",
    "after_run",
    "around_load",
    "around_restore",
    "before_train_end",
    "call_skipped_train_hooks",
    "first_train_batch",
    "forget_restore",
    "set_restored_handler",
    "skip_hooks",
    "skip_unused_hooks",
    "start_averages",
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


# How Lightning's searches for a learning rate or a batch size name their checkpoints.
_OF_SEARCHES = (".lr_find_", ".scale_batch_size_")


def around_load(trainer: Trainer, found: Callable[[Any], ContextManager[Any]]) -> None:
    """Call ``found`` once, around the loading of a checkpoint in ``test``, ``validate`` or ``predict``.

    Args:
        trainer: The trainer, before it loads the checkpoint.
        found: Takes the path that Lightning is about to load, or ``None``. The value of its context is loaded instead.
    """
    connector = connector_of(trainer, "checkpoint")
    connector.__dict__.pop("resume_start", None)

    def resume_start(original: Any, checkpoint_path: Any = None, *args: Any, **more: Any) -> None:
        with found(checkpoint_path) as path:
            original(path, *args, **more)

    ReplacedMethod(connector, "resume_start", resume_start, once=True)


def _load_without_code(path: Any) -> None:
    """Load a file with ``weights_only=True``, which raises where it names code that would be run."""
    import torch
    from fsspec import open as open_url

    with open_url(str(path), "rb") as file:
        torch.load(file, map_location="cpu", weights_only=True)


def around_restore(
    trainer: Trainer,
    *,
    choose: Callable[[Any], Optional[Tuple[str, Optional[bool]]]],
    loaded: Callable[[Dict[str, Any]], None],
    restore_model: Callable[[Callable[[], None]], None],
    prepare: Callable[[], None],
    explain: Callable[[Exception], Exception],
    restored: Callable[[], None],
) -> None:
    """Choose the checkpoint that ``fit`` restores. Called once, when the strategy restores: sharded ones do it late.

    In each ``fit`` of every version Lightning calls ``resume_start`` of its checkpoint connector with the user's path
    or ``None``, then ``restore_model``, ``restore_training_state`` and ``resume_end``. Searches for a learning rate or
    a batch size restore checkpoints of their own before, which are left to Lightning.

    Args:
        trainer: The trainer, before it restores.
        choose: Takes the user's path. Returns another path and whether to load it with ``weights_only``, or ``None`` to
            leave that to Lightning; ``None`` for no checkpoint. Lightning before 2.6 has no such argument: the file is
            then first loaded so, which fails for one that needs more.
        loaded: Called with the contents of the chosen checkpoint, before anything of it is restored but what sharded
            strategies load themselves. It may change them.
        restore_model: Called with what restores the model, at the end of which its weights are loaded.
        prepare: Called before loops, optimizers and schedules are restored from it, after ``on_fit_start``.
        explain: Returns the error to raise for an error in restoring the chosen checkpoint.
        restored: Called when everything has been restored, before the first batch.
    """
    connector = connector_of(trainer, "checkpoint")
    forget_restore(trainer)

    # A trainer of a library may have a connector of its own, with more arguments.
    def resume_start(original: Any, checkpoint_path: Any = None, *args: Any, **more: Any) -> None:
        if os.path.basename(str(checkpoint_path)).startswith(_OF_SEARCHES):
            original(checkpoint_path, *args, **more)
            return
        start.undo()
        chosen = choose(checkpoint_path)
        if chosen is None:
            original(checkpoint_path, *args, **more)
            return
        checkpoint_path, weights_only = chosen
        if "weights_only" in signature(original).parameters:
            more.update({} if weights_only is None else {"weights_only": weights_only})
        elif weights_only:
            explained(lambda: _load_without_code(checkpoint_path))
        for name, restore in (("restore_model", restore_model), ("restore_training_state", restore_training_state)):
            ReplacedMethod(connector, name, partial(explained, restore), once=True)
        # Strategies that shard restore the model and the optimizers here.
        explained(lambda: original(checkpoint_path, *args, **more))
        loaded(connector._loaded_checkpoint)

    def restore_training_state(original: Callable[[], None]) -> None:
        prepare()
        original()

    def explained(restore: Callable[..., None], *original: Any) -> None:
        try:
            restore(*original)
        except BaseException as error:
            cause = restore_error(error)
            if cause is None:
                raise
            raise explain(cause) from error

    def resume_end(original: Callable[[], None]) -> None:
        original()
        if "resume_start" not in vars(connector):  # else it is the end of a search's restore
            end.undo()
            restored()

    start = ReplacedMethod(connector, "resume_start", resume_start)
    end = ReplacedMethod(connector, "resume_end", resume_end)


def forget_restore(trainer: Trainer) -> None:
    """Remove what :func:`around_restore` has set, such as after a fit that failed while restoring."""
    connector = connector_of(trainer, "checkpoint")
    for name in ("resume_start", "restore_model", "restore_training_state", "resume_end"):
        connector.__dict__.pop(name, None)


def after_run(trainer: Trainer, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` once after the fit loop has run or was skipped, before the strategy is torn down.

    Args:
        trainer: The trainer, after everything has been restored: callbacks may run the loop themselves before.
        function: Called without arguments.

    Returns:
        A function that undoes it.
    """
    return listen(trainer.fit_loop, "run", function, once=True)


def before_train_end(trainer: Trainer, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` before ``on_train_end`` of callbacks and of the module; that of a strategy comes after them.

    Args:
        trainer: The trainer.
        function: Called without arguments.

    Returns:
        A function that undoes it.
    """
    return listen(trainer.fit_loop, "on_run_end", function, first=True)


def after_batches(trainer: Trainer, function: Callable[[], None]) -> Callable[[], None]:
    """Call ``function`` after each training batch, its hooks, and what it logs, before a validation.

    Args:
        trainer: The trainer.
        function: Called without arguments.

    Returns:
        A function that undoes it.
    """
    return listen(connector_of(trainer, "logger"), "update_train_step_metrics", function)


def first_train_batch(trainer: Any) -> Any:
    """Return the first batch of the training data; this draws random numbers.

    For a fit without steps left to train, which has created its loaders and not used them.
    """
    # Lightning 2.0 moved it from the connector to the loop.
    source = getattr(trainer.fit_loop, "_data_source", None) or trainer._data_connector._train_dataloader_source
    return next(iter(source.dataloader()))


def call_skipped_train_hooks(trainer: Trainer) -> None:
    """Call the hooks of the start and end of training in a fit without steps left to train.

    Lightning skips the loop and these hooks, including those of callbacks that change the weights in ``on_train_end``.

    Args:
        trainer: The trainer, after its loop has been skipped.
    """
    for callback in callbacks_named(trainer, "StochasticWeightAveraging"):
        if not hasattr(callback, "_accumulate_grad_batches"):
            # Set at the start of its epoch for batch norms, which the earlier run has trained.
            callback._accumulate_grad_batches = trainer.accumulate_grad_batches
    trainer.fit_loop.on_run_start()
    trainer.fit_loop.on_run_end()


def start_averages(trainer: Trainer) -> None:
    """Let ``StochasticWeightAveraging`` make its scheduler in an epoch that is continued, as it does at its start.

    It saves the scheduler's state, and makes the scheduler in ``on_train_epoch_start`` only, which changes the learning
    rates (``callbacks/stochastic_weight_avg.py``).
    """
    for callback in callbacks_named(trainer, "StochasticWeightAveraging"):
        rates = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]
        callback.on_train_epoch_start(trainer, trainer.lightning_module)
        groups = (group for optimizer in trainer.optimizers for group in optimizer.param_groups)
        for group, rate in zip(groups, rates):
            group["lr"] = rate


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
    handlers = getattr(connector_of(trainer, "signal"), "_original_handlers", {})
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
    if not skips_missing_hooks(namespace):
        return
    for name in names:
        if skip:
            vars(callback).setdefault(name, None)
        elif vars(callback).get(name, callback) is None:
            delattr(callback, name)
