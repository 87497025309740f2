"""Runs functions when somebody imports a module, so that importing us need not import it."""

import importlib.abc
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

__all__ = ["AroundImport", "around_import"]


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, around: "AroundImport") -> None:
        self.loader = loader
        self.around = around

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Whoever looks at the module's loader (pkgutil, importlib.resources) must see its own.
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.around.before()
        try:
            self.loader.exec_module(module)
        except Exception as error:
            better = self.around.explain(error)
            if better is None:
                raise
            raise better from error
        self.around.after()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, around: "AroundImport") -> None:
        self.name = name
        self.around = around

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname != self.name:
            return None
        # Those before this one have been asked already, and may ask this one themselves.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            found = finder.find_spec(fullname, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = _Loader(found.loader, self.around)
                return found
        return None


@dataclass(frozen=True)
class AroundImport:
    """What to do when a module is imported.

    Args:
        before: Called before the module's code runs.
        after: Called after it ran.
        explain: Called with the exception where it fails; may return a better one.
    """

    before: Callable[[], None]
    after: Callable[[], None]
    explain: Callable[[Exception], Optional[Exception]]


def around_import(name: str, around: AroundImport) -> None:
    """Do something when the module ``name`` is imported; if it has been already, do now what comes after.

    ``wrapt.when_imported`` does a part of this and would double the time that importing this package takes.

    Args:
        name: The module's full name.
        around: What to do. What it raises reaches the person who wrote the import.
    """
    if name in sys.modules:
        around.after()
    else:
        sys.meta_path.insert(0, _Finder(name, around))
