"""Runs a function right after somebody imports a module, so that importing us need not import it."""

import importlib.abc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional, Sequence

__all__ = ["after_import"]


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, function: Callable[[], None]) -> None:
        self.loader = loader
        self.function = function

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        module: Optional[ModuleType] = self.loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Whoever looks at the module's loader (pkgutil, importlib.resources) must see its own.
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.function()


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, function: Callable[[], None]) -> None:
        self.name = name
        self.function = function

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if fullname != self.name:
            return None
        for finder in sys.meta_path:
            found = finder.find_spec(fullname, path, target) if finder is not self else None
            if found is not None:
                if found.loader is not None:
                    found.loader = _Loader(found.loader, self.function)
                return found
        return None


def after_import(name: str, function: Callable[[], None]) -> None:
    """Call ``function`` once the module ``name`` has been imported: now, if it has been already.

    ``wrapt.when_imported`` does the same and would double the time that importing this package takes.

    Args:
        name: The module's full name.
        function: What to call. What it raises reaches the person who wrote the import.
    """
    if name in sys.modules:
        function()
    else:
        sys.meta_path.insert(0, _Finder(name, function))
