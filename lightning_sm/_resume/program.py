"""What is the project's own: modules, whose global variables training may change, classes, and their objects."""

import functools
import sys
from types import ModuleType
from typing import Any, Iterator, List, Tuple

from lightning_sm._installed import is_installed

__all__ = ["PROGRAM", "is_others", "is_own", "is_plain", "is_projects", "own_modules", "program_owners"]

#: With what the names of the program's modules and their classes begin.
PROGRAM = ("script", "module ")
_MAIN = "__main__"
# Packages whose objects are restored in other ways, or need not be.
_OTHERS = {
    "builtins", "torchmetrics", "lightning", "pytorch_lightning", "lightning_fabric", "lightning_sm",
    "lightning_sm_entry", "deepspeed", "smdistributed",
}  # fmt: skip
# Modules of Python with classes that hold nothing, or nothing but attributes.
_BASES = ("abc", "argparse", "collections", "collections.abc", "_collections_abc", "types", "typing")


def program_owners() -> Iterator[Tuple[str, Any]]:
    """The script and the project's other modules, and the classes of each, which hold variables, by names."""
    for name in own_modules(tuple(sys.modules)):
        module = sys.modules.get(name)
        owner = PROGRAM[0] if name == _MAIN else PROGRAM[1] + name
        yield owner, module
        for key, each in list(getattr(module, "__dict__", {}).items()):
            if isinstance(each, type) and each.__module__ == name:
                yield f"{owner}.{key}", each


@functools.lru_cache(maxsize=1)
def own_modules(loaded: Tuple[str, ...]) -> List[str]:
    """The project's modules, of those that are loaded: thousands of libraries are looked at again after an import."""
    modules = [name for name in loaded if isinstance(sys.modules.get(name), ModuleType)]
    return sorted(name for name in modules if is_own(name) and not is_others(name))


def is_own(module: str) -> bool:
    """Whether a module is neither an installed one, nor made by one, as ``torch.ops``, nor of Python itself."""
    names = (module, module.partition(".")[0])
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    is_elsewhere = not any(isinstance(file, str) and is_installed(file) for file in files)
    return module == _MAIN or (isinstance(files[0], str) and is_elsewhere)


def is_others(module: str) -> bool:
    """Whether a module's objects are restored in other ways than by their attributes, or need not be."""
    return module.partition(".")[0] in _OTHERS


def is_projects(value: Any) -> bool:
    """Whether the class of an object is the project's: torch makes subclasses of those that it shards."""
    packages = [cls.__module__.partition(".")[0] for cls in type(value).__mro__]
    own = next(package for package in packages if package != "torch")
    return own not in _OTHERS and "torchmetrics" not in packages


@functools.lru_cache(maxsize=None)
def is_plain(cls: Any) -> bool:
    """Whether a class is the project's own, with such bases alone."""
    modules = {base.__module__ for base in cls.__mro__[:-1]}
    return not any(map(is_others, modules)) and all(module in _BASES or is_own(module) for module in modules)
