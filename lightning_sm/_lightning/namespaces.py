"""Lightning's two namespaces, ``pytorch_lightning`` and ``lightning.pytorch``, which share no class.

Chooses the namespace of a program, and builds our classes once for each namespace: a mixin that holds what we add, and
Lightning's base class of that namespace.
"""

import functools
import importlib
import os
import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, NamedTuple, Optional, Tuple

from lightning_sm.errors import LightningImportError, LightningSMError

if TYPE_CHECKING:
    import inspect

__all__ = [
    "FABRICS",
    "NAMESPACES",
    "RANK_ZERO_MODULES",
    "LazyClass",
    "Namespace",
    "check_supported",
    "choose_fabric",
    "choose_namespace",
    "has_base",
    "installed_namespaces",
    "mark_unsupported",
    "namespace_of",
    "namespaced_class",
    "resolve_class",
    "set_rank_zero_rank",
]


class Namespace(NamedTuple):
    """One of Lightning's namespaces.

    Args:
        name: ``pytorch_lightning`` or ``lightning.pytorch``; for Fabric ``lightning_fabric`` or ``lightning.fabric``.
    """

    name: str

    @property
    def is_loaded(self) -> bool:
        """Whether it has been imported."""
        # None stands in sys.modules for a module that must not be imported.
        return sys.modules.get(self.name) is not None

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported. Nothing is imported to find out."""
        if self.is_loaded:
            return True
        from importlib.util import find_spec

        package, _, below = self.name.partition(".")
        spec = find_spec(package)
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        return any(os.path.isdir(os.path.join(folder, below)) for folder in folders)

    def module(self, path: str = "") -> ModuleType:
        """Import a module below this namespace, or the namespace itself."""
        return importlib.import_module(f"{self.name}.{path}" if path else self.name)

    @property
    def version(self) -> Tuple[int, int]:
        """Major and minor version of this Lightning, which is imported for that."""
        return _version(self)

    @property
    def version_text(self) -> str:
        """The version as messages write it, such as ``2.5``."""
        return ".".join(map(str, self.version))

    @property
    def fabric(self) -> str:
        """The name of the Fabric that belongs to this namespace."""
        return "lightning.fabric" if self.name.startswith("lightning.") else "lightning_fabric"

    def owns(self, cls: type) -> bool:
        """Whether ``cls`` or one of its bases is defined in this namespace."""
        return any(base.__module__ == self.name or base.__module__.startswith(f"{self.name}.") for base in cls.__mro__)


@functools.lru_cache(maxsize=None)
def _version(namespace: Namespace) -> Tuple[int, int]:
    major, minor = str(namespace.module().__version__).split(".")[:2]
    return int(major), int(re.sub(r"\D.*", "", minor))  # 2.7rc1 is 2.7


# The first is preferred where both are installed and nothing else decides, as in Lightning's documentation.
NAMESPACES = (Namespace("lightning.pytorch"), Namespace("pytorch_lightning"))
# Lightning Fabric, which can be used without the Trainer, in both namespaces.
FABRICS = (Namespace("lightning.fabric"), Namespace("lightning_fabric"))

# Packages whose classes are found by their names.
_LIBRARIES = frozenset({"lightning", "lightning_fabric", "lightning_sm", "pytorch_lightning", "torch"})

# The error that registering with a namespace ended with, by the name of the namespace.
_unsupported: Dict[str, str] = {}


def mark_unsupported(namespace: Namespace, reason: str) -> None:
    """Record that our classes cannot be used with a namespace. :func:`check_supported` raises it on first use."""
    _unsupported[namespace.name] = reason


def check_supported(*namespaces: Namespace) -> None:
    """Raise if all of these namespaces are marked as unsupported.

    Raises:
        LightningSMError: This release of Lightning is not supported.
    """
    if namespaces and all(namespace.name in _unsupported for namespace in namespaces):
        raise LightningSMError(
            f"lightning_sm does not support this release of {namespaces[0].name}: {_unsupported[namespaces[0].name]}.",
            hint="Install a release of Lightning that docs/versions.md of lightning_sm lists, or a newer lightning_sm.",
        )


def has_base(cls: Optional[type], *names: str) -> bool:
    """Whether a class or a base of it is Lightning's, torch's or ours and has one of these names.

    The namespaces share no class that could be compared. A project may have a class of the same name.
    """
    bases = () if cls is None else cls.__mro__
    return any(base.__name__ in names and base.__module__.partition(".")[0] in _LIBRARIES for base in bases)


def installed_namespaces() -> Tuple[Namespace, ...]:
    """The namespaces that can be imported, the preferred one first."""
    return tuple(namespace for namespace in NAMESPACES if namespace.is_installed)


def namespace_of(*classes: Optional[type]) -> Optional[Namespace]:
    """The namespace of the first of these classes that is defined in one."""
    installed = installed_namespaces()
    found = (space for cls in classes for space in installed if cls is not None and space.owns(cls))
    return next(found, None)


def choose_namespace(model_class: Optional[type] = None) -> Namespace:
    """Choose the namespace: the model's, else the only one imported, else the only one installed, else the first.

    Where both are imported, as when a library imports the other one, the one that the main program imported is used.

    Args:
        model_class: The class of the user's model, if known.

    Raises:
        LightningImportError: No Lightning is installed.
    """
    installed = installed_namespaces()
    if not installed:
        raise LightningImportError(
            "Neither pytorch_lightning nor lightning.pytorch is installed.",
            hint="Add pytorch-lightning to the requirements.txt beside your script.",
        )
    owner = namespace_of(model_class)
    if owner is not None:
        return owner
    loaded = [namespace for namespace in installed if namespace.is_loaded]
    if len(loaded) > 1:
        loaded.sort(key=lambda namespace: not _is_imported_by_program(namespace))
    return (loaded or list(installed))[0]


def choose_fabric(*classes: Optional[type]) -> Namespace:
    """Choose Fabric's namespace: that of the first class that is defined in one, else the only one imported.

    Otherwise it is the one of the Trainer's namespace that :func:`choose_namespace` chooses.

    Args:
        *classes: Classes of what the program uses with its Fabric.

    Raises:
        LightningImportError: No Lightning is installed.
    """
    owners = [space for cls in classes for space in FABRICS if cls is not None and space.owns(cls)]
    loaded = [namespace for namespace in FABRICS if namespace.is_loaded]
    found = owners or (loaded if len(loaded) == 1 else [])
    return found[0] if found else Namespace(choose_namespace().fabric)


def _is_imported_by_program(namespace: Namespace) -> bool:
    """Whether a global of the main module is a module or class of this namespace."""
    known = list(vars(sys.modules["__main__"]).values()) if "__main__" in sys.modules else []
    modules = [value.__name__ for value in known if isinstance(value, ModuleType)]
    # `import lightning as L` stands for lightning.pytorch.
    whole = (namespace.name, namespace.name.partition(".")[0])
    below = any(name in whole or name.startswith(f"{namespace.name}.") for name in modules)
    return below or any(isinstance(value, type) and namespace.owns(value) for value in known)


# Every module in which a release of Lightning keeps a `rank_zero_only` of its own.
RANK_ZERO_MODULES = (
    "lightning_utilities.core.rank_zero",  # 1.8 and later
    "lightning.fabric.utilities.rank_zero",
    "lightning_fabric.utilities.rank_zero",  # 1.9 and later
    "lightning_lite.utilities.rank_zero",  # 1.8
    "lightning.pytorch.utilities.rank_zero",
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.utilities.distributed",  # 1.5
)


def set_rank_zero_rank(rank: int) -> None:
    """Set ``rank_zero_only.rank`` in every Lightning that is loaded.

    Lightning derives it from ``RANK``, ``LOCAL_RANK`` and the variables of schedulers. ``mpirun`` sets none of them, so
    that every rank would log. Source: ``lightning_utilities/core/rank_zero.py``, ``_get_rank``.
    """
    for name in RANK_ZERO_MODULES:
        rank_zero_only = getattr(sys.modules.get(name), "rank_zero_only", None)
        if rank_zero_only is not None:
            rank_zero_only.rank = rank


def namespaced_class(namespace: Namespace, name: str, mixin_path: str, base_path: str) -> type:
    """Build the class ``name`` from a mixin of ours and a base class of one namespace, once.

    Args:
        namespace: The namespace to take the base class from.
        name: The public name of the class.
        mixin_path: The mixin, as ``module:name``.
        base_path: The base class, as ``module:name`` below the namespace.

    Raises:
        LightningSMError: This release of Lightning is not supported.
    """
    check_supported(namespace)
    return _build_class(namespace, name, mixin_path, base_path)


@functools.lru_cache(maxsize=None)
def _build_class(namespace: Namespace, name: str, mixin_path: str, base_path: str) -> type:
    mixin_module, _, mixin_name = mixin_path.partition(":")
    base_module, _, base_name = base_path.partition(":")
    mixin = getattr(importlib.import_module(mixin_module), mixin_name)
    base = getattr(namespace.module(base_module), base_name)

    def reduce(self: Any, protocol: Any) -> Any:
        # Pickle finds a class by its name, which two classes have; a subclass of a project has a name of its own.
        function, arguments, *rest = super(built, self).__reduce_ex__(protocol)
        if type(self) is built:
            function, arguments = _new_instance, (namespace, name, mixin_path, base_path)
        return (function, arguments, *rest)

    body = {"__module__": "lightning_sm", "__doc__": mixin.__doc__, "namespace": namespace, "__reduce_ex__": reduce}
    built: Any = type(base)(name, (mixin, base), body)
    return built  # type: ignore[no-any-return]


def _new_instance(*arguments: Any) -> Any:
    cls: Any = namespaced_class(*arguments)
    return cls.__new__(cls)


class LazyClass:
    """Stands for a class until the namespace is known: both are installed, and none has been imported.

    ``from lightning_sm import SMDDPStrategy`` then returns it. Calling it, subclassing it and reading its attributes
    choose the namespace.

    Args:
        name: The public name of the class.
        build: Returns the class for a namespace.
    """

    def __init__(self, name: str, build: Callable[[Namespace], type]) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "lightning_sm"
        self._build = build

    def _resolve(self) -> type:
        return self._build(choose_namespace())

    @property
    def __signature__(self) -> "inspect.Signature":
        import inspect

        return inspect.signature(self._resolve())

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
    """Return the class of the namespace in use, or a :class:`LazyClass` while that is unknown. For ``__getattr__``.

    Args:
        name: The public name of the class.
        build: Returns the class for a namespace.

    Raises:
        LightningImportError: No usable Lightning is installed.
    """
    if len(installed_namespaces()) > 1 and not any(namespace.is_loaded for namespace in NAMESPACES):
        return LazyClass(name, build)
    try:
        return build(choose_namespace())
    except (ImportError, LightningSMError) as error:
        hint = error.hint if isinstance(error, LightningSMError) else None
        text = error.problem if isinstance(error, LightningSMError) else f"Importing Lightning failed: {error}."
        raise LightningImportError(f"{name} of lightning_sm needs Lightning. {text}", hint=hint) from error
