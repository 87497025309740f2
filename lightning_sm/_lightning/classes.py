"""Makes our classes once for each of Lightning's namespaces."""

import copyreg
import functools
import importlib
from typing import Any, Callable, Dict, Tuple

from lightning_sm._lightning.namespaces import (
    NAMESPACES,
    Namespace,
    check_usable,
    choose_namespace,
    installed_namespaces,
)

__all__ = ["Deferred", "namespaced_class", "resolve_class"]


def namespaced_class(namespace: Namespace, name: str, mixin_path: str, base_path: str) -> type:
    """Make the class ``name`` from our mixin and Lightning's base class of one namespace, once.

    The mixin holds everything we add and is written against the base; only the base differs.

    Args:
        namespace: The namespace to take the base from.
        name: The public name of the class.
        mixin_path: Where the mixin is, as ``module:name``.
        base_path: Where the base is below the namespace, as ``module:name``.

    Raises:
        LightningSMError: This Lightning is not one that we know how to work with.
    """
    check_usable(namespace)
    return _made(namespace, name, mixin_path, base_path)


@functools.lru_cache(maxsize=None)
def _made(namespace: Namespace, name: str, mixin_path: str, base_path: str) -> type:
    mixin = _attribute(*mixin_path.split(":"))
    module, _, attribute = base_path.partition(":")
    base = getattr(namespace.module(module), attribute)
    body = {"__module__": "lightning_sm", "__doc__": mixin.__doc__, "namespace": namespace}
    metaclass: Any = type(base)
    made: type = _picklable(metaclass)(name, (mixin, base), body)
    _RECIPES[made] = (namespace, name, mixin_path, base_path)
    return made


_RECIPES: Dict[type, Tuple[Namespace, str, str, str]] = {}


@functools.lru_cache(maxsize=None)
def _picklable(metaclass: Any) -> Any:
    """Return a metaclass whose classes pickle can find again although two of them bear one name."""
    made = type(metaclass.__name__, (metaclass,), {})
    copyreg.pickle(made, _reduce)
    return made


def _reduce(cls: type) -> Any:
    # A project's own subclass is found by its name.
    return (namespaced_class, _RECIPES[cls]) if cls in _RECIPES else cls.__qualname__


def _attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


class Deferred:
    """Stands for a class as long as it is open which of two installed namespaces the program will use.

    It is what ``from lightning_sm import SMDDPStrategy`` gives before any Lightning has been imported while both are
    installed. It can be called, subclassed, and asked for attributes; each of these settles the namespace.
    """

    def __init__(self, name: str, build: Callable[[Namespace], type]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "lightning_sm"
        self._build = build

    def _resolve(self) -> type:
        return self._build(choose_namespace())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._resolve()(*args, **kwargs)

    def __mro_entries__(self, bases: Tuple[Any, ...]) -> Tuple[type, ...]:
        return (self._resolve(),)

    def __instancecheck__(self, instance: Any) -> bool:
        return self.__subclasscheck__(type(instance))

    def __subclasscheck__(self, subclass: type) -> bool:
        return any(issubclass(subclass, self._build(namespace)) for namespace in NAMESPACES if namespace.is_loaded)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return getattr(self._resolve(), name)

    def __repr__(self) -> str:
        return f"<{self.__module__}.{self.__name__}, for the Lightning that is imported next>"


def resolve_class(name: str, build: Callable[[Namespace], type]) -> Any:
    """Return the class for the namespace in use, or a :class:`Deferred` where that is still open."""
    undecided = not any(namespace.is_loaded for namespace in NAMESPACES) and len(installed_namespaces()) > 1
    return Deferred(name, build) if undecided else build(choose_namespace())
