"""Runs functions when somebody imports a module, so that importing us need not import it."""

import importlib.abc
import sys
from _thread import get_ident
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any, Callable, Optional, Sequence, Set

__all__ = ["AroundImport", "around_import"]


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, around: "AroundImport") -> None:
        self.loader = loader
        self.around = around

    def __getattr__(self, name: str) -> Any:
        # Who looks at the spec before the module is loaded asks the loader for its files and code.
        return getattr(self.__dict__["loader"], name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        create = getattr(self.loader, "create_module", None)
        module: Optional[ModuleType] = None if create is None else create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Whoever looks at the module's loader (pkgutil, importlib.resources) must see its own.
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.around.before()
        try:
            if hasattr(self.loader, "exec_module"):
                self.loader.exec_module(module)
            else:
                self.loader.load_module(module.__name__)  # zipimport until Python 3.9
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
        self._asking: Set[int] = set()

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        thread = get_ident()
        if fullname != self.name or thread in self._asking:
            return None
        self._asking.add(thread)
        try:
            for finder in self._others():
                found: Optional[ModuleSpec] = _ask(finder, fullname, path, target)
                if found is not None:
                    if found.loader is not None:
                        found.loader = _Loader(found.loader, self.around)
                    return found
        finally:
            self._asking.discard(thread)
        return None

    def _others(self) -> Sequence[Any]:
        """The finders to ask: those after this one, or all where somebody has put a wrapper in its place."""
        finders = list(sys.meta_path)
        # Those before this one have been asked already, and may ask this one themselves.
        return finders[finders.index(self) + 1 :] if self in finders else finders


def _ask(finder: Any, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType]) -> Any:
    """Ask a finder as Python does, also one that has only ``find_module``, as was allowed until Python 3.11."""
    if hasattr(finder, "find_spec"):
        return finder.find_spec(fullname, path, target)
    if sys.version_info >= (3, 12) or not hasattr(finder, "find_module"):
        return None
    loader = finder.find_module(fullname, path)
    return None if loader is None else spec_from_loader(fullname, loader)


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
