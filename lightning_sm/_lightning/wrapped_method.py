"""Replaces methods of Lightning's classes for the whole program: the constructor, and what starts a training.

Neither ``Trainer`` nor ``Fabric`` has a hook before its arguments are read, or before the process group is joined. This
would end with one.
"""

import ast
import functools
import importlib
import inspect
import os
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from lightning_sm._lightning.import_hook import add_import_hook
from lightning_sm._lightning.namespaces import Namespace

__all__ = ["fabric_of", "named_arguments", "reorder_callbacks", "set_by_variables", "trainer_of", "wrap_method"]

ClassPath = Tuple[str, str]


def trainer_of(namespace: Namespace) -> ClassPath:
    """Module and name of ``Trainer``: not the package, which may be half imported."""
    return f"{namespace.name}.trainer.trainer", "Trainer"


def fabric_of(namespace: Namespace) -> ClassPath:
    """Module and name of ``Fabric``."""
    return f"{namespace.name}.fabric", "Fabric"


@functools.lru_cache(maxsize=None)
def wrap_method(path: ClassPath, method: str, function: Callable[..., Any]) -> None:
    """Call ``function(original, self, *args, **kwargs)`` instead of a method, once the class is imported.

    A second call with the same arguments has no effect.

    Args:
        path: Module and name of the class.
        method: The name of the method.
        function: Called instead; the original method is its first argument.
    """
    module, name = path

    def wrap() -> None:
        cls: Any = getattr(importlib.import_module(module), name)
        original = getattr(cls, method)

        @functools.wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            return function(original, self, *args, **kwargs)

        setattr(cls, method, wrapped)

    add_import_hook(module, wrap)


def named_arguments(
    constructor: Callable[..., Any], args: Tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Dict[str, Any]:
    """Return the arguments of a constructor by name.

    Args:
        constructor: The constructor of an object (a bound method).
        args: Positional arguments.
        kwargs: Named arguments.

    Raises:
        TypeError: The constructor would not take them.
    """
    signature = inspect.signature(constructor)
    signature.bind_partial(*args, **kwargs)
    return {**signature.bind_partial(*args).arguments, **kwargs}


def set_by_variables(cls: Optional[type], given: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the arguments of a ``Trainer`` that variables such as ``PL_TRAINER_MAX_EPOCHS`` set.

    Source: ``_defaults_from_env_vars`` in ``lightning/pytorch/utilities/argparse.py``.

    Args:
        cls: The class that is constructed, which the variables name; ``Trainer`` if it is not known.
        given: Its other arguments, which win.
    """
    prefix = f"PL_{(cls.__name__ if cls is not None else 'Trainer').upper()}_"
    found = {name[len(prefix) :].lower(): text for name, text in os.environ.items() if name.startswith(prefix)}
    return {name: _value(text) for name, text in found.items() if name not in given}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def reorder_callbacks(trainer: Any, callbacks: Any) -> None:
    """Give a ``Trainer`` these callbacks, with its ``ModelCheckpoint`` callbacks last."""
    trainer.callbacks = type(trainer._callback_connector)._reorder_callbacks(callbacks)
