"""Lightning's two namespaces, which share no class: ``pytorch_lightning`` and ``lightning.pytorch``.

Tells Lightning which process may log, before Lightning itself could know.
"""

import functools
import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Dict, Optional, Tuple

from lightning_sm.errors import LightningSMError

__all__ = [
    "NAMESPACES",
    "Namespace",
    "check_usable",
    "choose_namespace",
    "installed_namespaces",
    "namespace_of",
    "set_unusable",
    "set_rank_zero_rank",
]


@dataclass(frozen=True)
class Namespace:
    """One of Lightning's namespaces.

    Args:
        name: ``pytorch_lightning`` or ``lightning.pytorch``.
    """

    name: str

    @property
    def is_loaded(self) -> bool:
        """Whether somebody has imported it."""
        return self.name in sys.modules

    @property
    def is_installed(self) -> bool:
        """Whether it can be imported. Nothing is imported to find out."""
        if self.is_loaded:
            return True
        package, _, below = self.name.partition(".")
        spec = importlib.util.find_spec(package)
        folders = (spec.submodule_search_locations or []) if spec is not None else []
        return any(os.path.isdir(os.path.join(folder, below)) for folder in folders)

    def module(self, path: str = "") -> ModuleType:
        """Import a module below this namespace, or the namespace itself."""
        return importlib.import_module(f"{self.name}.{path}" if path else self.name)

    @property
    def version(self) -> Tuple[int, int]:
        """Major and minor version of the Lightning behind it, which is imported for this."""
        return _version(self)

    def owns(self, cls: type) -> bool:
        """Whether ``cls`` comes from this namespace, by one of its bases."""
        return any(base.__module__ == self.name or base.__module__.startswith(f"{self.name}.") for base in cls.__mro__)


@functools.lru_cache(maxsize=None)
def _version(namespace: Namespace) -> Tuple[int, int]:
    text = str(namespace.module().__version__)
    found = re.match(r"(\d+)\.(\d+)", text)  # 2.7rc1 is 2.7
    if found is None:
        raise LightningSMError(f"The version of {namespace.name} is {text!r}, which begins with no two numbers.")
    return int(found.group(1)), int(found.group(2))


# What went wrong when a namespace was told about us, by its name.
_unusable: Dict[str, str] = {}


def set_unusable(namespace: Namespace, reason: str) -> None:
    """Note that our classes cannot be used with a namespace, which is said when somebody uses one."""
    _unusable[namespace.name] = reason


def check_usable(*namespaces: Namespace) -> None:
    """Raise what was noted about these namespaces, if none of them is left to be used.

    Raises:
        LightningSMError: This Lightning is not one that we know how to work with.
    """
    if namespaces and all(namespace.name in _unusable for namespace in namespaces):
        raise LightningSMError(
            f"lightning_sm cannot work with this {namespaces[0].name}: {_unusable[namespaces[0].name]}.",
            hint="Install a release of Lightning that lightning_sm's README lists, or a newer lightning_sm.",
        )


# The first is preferred where both are installed and nothing else decides, as Lightning's documentation does.
NAMESPACES = (Namespace("lightning.pytorch"), Namespace("pytorch_lightning"))


def installed_namespaces() -> Tuple[Namespace, ...]:
    """The namespaces that can be imported here, the preferred one first."""
    return tuple(namespace for namespace in NAMESPACES if namespace.is_installed)


def namespace_of(*classes: Optional[type]) -> Optional[Namespace]:
    """The namespace of the first of these classes that comes from one."""
    installed = installed_namespaces()
    found = (space for cls in classes for space in installed if cls is not None and space.owns(cls))
    return next(found, None)


def choose_namespace(model_class: Optional[type] = None) -> Namespace:
    """Choose the namespace: the model's, else the only one loaded, else the only one installed, else the first.

    Where several are loaded, because a library imports the other one, what the program itself imported goes first.

    Args:
        model_class: The class of the user's model, where it is known.

    Raises:
        LightningSMError: No Lightning is installed.
    """
    installed = installed_namespaces()
    if not installed:
        raise LightningSMError(
            "Neither pytorch_lightning nor lightning can be imported.",
            hint="Add pytorch-lightning to the requirements.txt beside your script.",
        )
    owner = namespace_of(model_class)
    if owner is not None:
        return owner
    loaded = [namespace for namespace in installed if namespace.is_loaded]
    if len(loaded) > 1:
        loaded.sort(key=lambda namespace: not _is_imported_by_program(namespace))
    return (loaded or list(installed))[0]


def _is_imported_by_program(namespace: Namespace) -> bool:
    """Whether the main module knows a module or class of this namespace by a name."""
    known = list(vars(sys.modules["__main__"]).values()) if "__main__" in sys.modules else []
    modules = [value.__name__ for value in known if isinstance(value, ModuleType)]
    # `import lightning as L` stands for lightning.pytorch.
    below = any(name == namespace.name.partition(".")[0] or name.startswith(f"{namespace.name}.") for name in modules)
    return below or any(isinstance(value, type) and namespace.owns(value) for value in known)


# Every module in which some Lightning keeps a `rank_zero_only` of its own.
_MODULES = (
    "lightning_utilities.core.rank_zero",  # 1.8 and later
    "lightning.fabric.utilities.rank_zero",
    "lightning_fabric.utilities.rank_zero",  # 1.9 and later
    "lightning_lite.utilities.rank_zero",  # 1.8
    "lightning.pytorch.utilities.rank_zero",
    "pytorch_lightning.utilities.rank_zero",
    "pytorch_lightning.utilities.distributed",  # 1.5
)


def set_rank_zero_rank(rank: int) -> None:
    """Set the rank that ``rank_zero_only`` goes by in every Lightning that is loaded.

    By itself Lightning looks at ``RANK``, ``LOCAL_RANK`` and schedulers' variables, none of which ``mpirun`` sets, so
    that every rank would log: ``lightning_utilities/core/rank_zero.py``, ``_get_rank``.
    """
    for name in _MODULES:
        rank_zero_only = getattr(sys.modules.get(name), "rank_zero_only", None)
        if rank_zero_only is not None:
            rank_zero_only.rank = rank
