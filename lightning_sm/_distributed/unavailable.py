"""A class in place of a strategy for which the Lightning that is installed is too old."""

from functools import lru_cache
from typing import Any, Tuple

from lightning_sm._lightning import Namespace
from lightning_sm.errors import StrategyUnavailableError

__all__ = ["unavailable_class"]


@lru_cache(maxsize=None)
def unavailable_class(namespace: Namespace, name: str, since: Tuple[int, int], alternative: str) -> type:
    """Return a class that raises :class:`~lightning_sm.errors.StrategyUnavailableError` when it is used.

    Args:
        namespace: Lightning's namespace.
        name: The public name of the strategy's class.
        since: Major and minor version of the first Lightning with what it needs.
        alternative: What to use instead.
    """

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise StrategyUnavailableError(
            f"{name} needs Lightning {_text(since)} or newer, and {namespace.name} {_text(namespace.version)} is "
            "installed.",
            hint=f"Install a newer Lightning, or use {alternative}.",
        )

    # Lightning's registries read the last two.
    body = {"__init__": refuse, "__module__": "lightning_sm", "strategy_name": name, "distributed_backend": name}
    return type(name, (), body)


def _text(version: Tuple[int, int]) -> str:
    return ".".join(map(str, version))
