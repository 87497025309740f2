"""Runs functions around the import of Lightning, so that importing this package does not import Lightning.

Before the import, known incompatible versions are reported; after a failed one, its known causes.

Every program pays for what is imported here, so no ``dataclasses`` (``inspect``) and no ``importlib.abc`` (``zipfile``,
``tempfile``), which took half of the time.
"""

import re
import sys
from _thread import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from lightning_sm._lightning.namespaces import Namespace
from lightning_sm._logging import log
from lightning_sm.errors import LightningImportError, LightningSMError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = [
    "ImportHook",
    "Incompatibility",
    "add_import_hook",
    "check_before_import",
    "explain_failed_import",
    "installed_versions",
    "known_incompatibilities",
]


class ImportHook(NamedTuple):
    """What to call around the import of a module.

    Args:
        before: Called before the module is executed.
        after: Called after it was executed.
        explain: Called with the exception if executing it fails; may return another one to raise instead.
    """

    before: Callable[[], None]
    after: Callable[[], None]
    explain: Callable[[Exception], Optional[Exception]]


def add_import_hook(name: str, hook: ImportHook) -> None:
    """Call ``hook`` around the import of the module ``name``; only ``hook.after``, now, if it has been imported.

    ``wrapt.when_imported`` does a part of this and would double the import time of this package.

    Args:
        name: The full name of the module.
        hook: What to call. An exception that it raises reaches the import statement.
    """
    if name in sys.modules:
        hook.after()
    else:
        sys.meta_path.insert(0, _Finder(name, hook))


class _Finder:
    def __init__(self, name: str, hook: ImportHook) -> None:
        self.name = name
        self.hook = hook
        self._searching: Set[int] = set()

    def find_spec(
        self, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType] = None
    ) -> "Optional[ModuleSpec]":
        thread = get_ident()
        if fullname != self.name or thread in self._searching:
            return None
        self._searching.add(thread)
        try:
            for finder in self._others():
                found: Optional[ModuleSpec] = _find_spec(finder, fullname, path, target)
                if found is not None:
                    if found.loader is not None:
                        wrapped: Any = _Loader(found.loader, self.hook)
                        found.loader = wrapped
                    return found
        finally:
            self._searching.discard(thread)
        return None

    def _others(self) -> Sequence[Any]:
        """The finders after this one; all of them where another finder wraps this one."""
        finders = list(sys.meta_path)
        # Those before this one have been asked already, and may call this one themselves.
        return finders[finders.index(self) + 1 :] if self in finders else finders


def _find_spec(finder: Any, fullname: str, path: Optional[Sequence[str]], target: Optional[ModuleType]) -> Any:
    """Call a finder as Python does, including one with ``find_module`` only, which Python 3.11 still supports."""
    if hasattr(finder, "find_spec"):
        return finder.find_spec(fullname, path, target)
    if sys.version_info >= (3, 12) or not hasattr(finder, "find_module"):
        return None
    from importlib.util import spec_from_loader

    loader = finder.find_module(fullname, path)
    return None if loader is None else spec_from_loader(fullname, loader)


class _Loader:
    def __init__(self, loader: Any, hook: ImportHook) -> None:
        self.loader = loader
        self.hook = hook

    def __getattr__(self, name: str) -> Any:
        # pkgutil and others ask the loader of a module's spec for files and code before the module is loaded.
        return getattr(self.__dict__["loader"], name)

    def create_module(self, spec: "ModuleSpec") -> Optional[ModuleType]:
        create = getattr(self.loader, "create_module", None)
        module: Optional[ModuleType] = None if create is None else create(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # pkgutil and importlib.resources need the module's own loader.
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.hook.before()
        try:
            if hasattr(self.loader, "exec_module"):
                self.loader.exec_module(module)
            else:
                self.loader.load_module(module.__name__)  # zipimport until Python 3.9
        except Exception as error:
            explained = self.hook.explain(error)
            if explained is None:
                raise
            raise explained from error
        self.hook.after()


Version = Tuple[int, ...]


class Incompatibility(NamedTuple):
    """Versions of packages that do not work together.

    Args:
        problem: What happens.
        pin: The requirement that avoids it.
        fatal: Whether Lightning must not be imported at all.
    """

    problem: str
    pin: str
    fatal: bool = False


def known_incompatibilities(versions: Mapping[str, Version]) -> List[Incompatibility]:
    """Return the known incompatibilities of a set of installed packages.

    Args:
        versions: The version of each package by its name on the package index, without those that are not installed.
    """
    found: List[Incompatibility] = []
    for package in ("lightning", "pytorch-lightning"):
        if versions.get(package) in ((2, 6, 2), (2, 6, 3)):
            # https://github.com/Lightning-AI/pytorch-lightning/issues/21691
            problem = f"{package} 2.6.2 and 2.6.3 are compromised releases."
            found.append(Incompatibility(problem, f"{package}!=2.6.2,!=2.6.3", fatal=True))
    lightning = versions.get("pytorch-lightning", versions.get("lightning", ()))
    parser = versions.get("jsonargparse")
    if lightning and parser is not None and lightning < (1, 7) and (parser >= (4, 22) or (4, 6) <= parser < (4, 9)):
        problem = f"Lightning's CLI before 1.7 does not work with jsonargparse {_text(parser)}."
        found.append(Incompatibility(problem, "jsonargparse[signatures]==4.21.0"))
    return found


def check_before_import(namespace: Namespace) -> None:
    """Log a warning for each known incompatibility of the installed packages, and raise for a fatal one.

    Raises:
        LightningSMError: The installed release is compromised. None of its code has been executed.
    """
    for known in known_incompatibilities(installed_versions()):
        if known.fatal:
            raise LightningSMError(
                f"{namespace.name} was not imported: {known.problem}", hint=f"Put {known.pin!r} into requirements.txt."
            )
        log.warning("%s HINT: Put %r into requirements.txt.", known.problem, known.pin)


def explain_failed_import(error: Exception) -> Optional[LightningSMError]:
    """Return an error that says what to install, if importing Lightning failed for a known reason."""
    text = str(error)
    if "pkg_resources" in text:
        problem, pin = "Lightning up to 2.1 imports pkg_resources, which setuptools no longer has.", "setuptools<81"
    elif "torchvision::" in text:
        problem = "The installed torchvision was not built for the installed torch, and torchmetrics imports it."
        pin = "the torchvision release for this torch, or uninstall it"
    else:
        return None
    return LightningImportError(f"Lightning cannot be imported ({text}). {problem}", hint=f"Install {pin}.")


def installed_versions() -> Mapping[str, Version]:
    """The versions of the installed packages that :func:`known_incompatibilities` looks at, by their names."""
    # Imported here, because it takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("lightning", "pytorch-lightning", "jsonargparse"):
        try:
            found[package] = _version(str(version(package)))  # None where its metadata is damaged
        except PackageNotFoundError:
            continue
    return found


def _version(text: str) -> Version:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def _text(version: Version) -> str:
    return ".".join(map(str, version))
