"""The moment at which a trainer restores a checkpoint."""

from inspect import signature
from typing import Any, Callable, ContextManager, Optional, Tuple

__all__ = ["around_load", "around_restore"]


def around_load(trainer: Any, found: Callable[[Any], ContextManager[Any]]) -> None:
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
    trainer: Any,
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


def _connector_of(trainer: Any) -> Any:
    named = "_checkpoint_connector" if hasattr(trainer, "_checkpoint_connector") else "checkpoint_connector"
    return getattr(trainer, named)
