"""What a strategy needs and this machine may lack: a Lightning that is new enough, and a library of AWS."""

import importlib
from functools import lru_cache
from typing import Any, Optional, Tuple

from lightning_sm._lightning import Namespace, namespaced_class
from lightning_sm.errors import StrategyUnavailableError

__all__ = ["import_library", "strategy_class"]


def strategy_class(
    namespace: Namespace,
    name: str,
    mixin_path: str,
    base_path: Optional[str],
    *,
    since: Tuple[int, int],
    alternative: str,
) -> type:
    """Return the class of a strategy; with an older Lightning one that raises when it is used.

    Args:
        namespace: Lightning's namespace.
        name: The public name of the strategy's class.
        mixin_path: Where our mixin is, as ``module:name``.
        base_path: Where Lightning's class is, below its namespace; ``None`` if this Lightning has none.
        since: Major and minor version of the first Lightning with what it needs.
        alternative: What to use instead.
    """
    if base_path is None:
        return _unavailable_class(namespace, name, since, alternative)
    return namespaced_class(namespace, name, mixin_path, base_path)


@lru_cache(maxsize=None)
def _unavailable_class(namespace: Namespace, name: str, since: Tuple[int, int], alternative: str) -> type:
    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise StrategyUnavailableError(
            f"{name} needs Lightning {since[0]}.{since[1]} or newer, and {namespace.name} {namespace.version_text} is "
            "installed.",
            hint=f"Install a newer Lightning, or use {alternative}.",
        )

    # Lightning's registries read the last two.
    body = {"__init__": refuse, "__module__": "lightning_sm", "strategy_name": name, "distributed_backend": name}
    return type(name, (), body)


def import_library(module: str, strategy: str, hint: str) -> Any:
    """Import a library that only some of AWS's images have.

    Args:
        module: Its name.
        strategy: The registered name of the strategy that needs it.
        hint: What to do without it.

    Raises:
        StrategyUnavailableError: It cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise StrategyUnavailableError(
            f"The strategy {strategy} needs AWS's library {module}, which cannot be imported ({error}).", hint=hint
        ) from error
