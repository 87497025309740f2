"""Runs functions around the import of Lightning, so that importing this package does not import Lightning.

Before the import, known incompatible versions are reported; after a failed one, its known causes.

Every program pays for what is imported here, so no ``dataclasses`` (``inspect``) and no ``importlib.abc`` (``zipfile``,
``tempfile``), which took half of the time.
"""

import re
import sys
from _thread import get_ident
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Set, Tuple

from lightning_sm._logging import log
from lightning_sm.errors import LightningImportError, LightningSMError

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = [
    "add_import_hook",
    "check_before_import",
    "explain_failed_import",
    "installed_versions",
]


def add_import_hook(
    name: str,
    after: Callable[[], None],
    *,
    before: Callable[[], None] = lambda: None,
    explain: Callable[[Exception], Optional[Exception]] = lambda error: None,
) -> None:
    """Call functions around the import of the module ``name``; only ``after``, now, if it has been imported.

    ``wrapt.when_imported`` does a part of this and would double the import time of this package.

    Args:
        name: The full name of the module.
        after: Called after it was executed. An exception that one of these raises reaches the import statement.
        before: Called before the module is executed.
        explain: Called with the exception if executing it fails; may return another one to raise instead.
    """
    if name in sys.modules:
        after()
    else:
        sys.meta_path.insert(0, _Finder(name, before, after, explain))


class _Finder:
    """Finds the module by all other finders, and replaces the method of its loader that executes it."""

    def __init__(self, name: str, before: Any, after: Any, explain: Any) -> None:
        self.name = name
        self.before, self.after, self.explain = before, after, explain
        self._searching: Set[int] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> "Optional[ModuleSpec]":
        thread = get_ident()
        if fullname != self.name or thread in self._searching:
            return None
        from importlib.util import find_spec

        self._searching.add(thread)
        try:
            spec = find_spec(fullname)
        finally:
            self._searching.discard(thread)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = partial(self._execute, loader.exec_module)
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        self.before()
        try:
            execute(module)
        except Exception as error:
            explained = self.explain(error)
            if explained is None:
                raise
            raise explained from error
        self.after()


Version = Tuple[int, ...]


def check_before_import(name: str) -> None:
    """Log a warning where the installed packages do not work together, and refuse releases that are malicious.

    Args:
        name: The top-level package that is about to be imported.

    Raises:
        LightningSMError: The installed release is compromised. None of its code has been executed.
    """
    versions = installed_versions()
    for package in ("lightning", "pytorch-lightning"):
        if versions.get(package) in ((2, 6, 2), (2, 6, 3)):
            # https://github.com/Lightning-AI/pytorch-lightning/issues/21691
            raise LightningSMError(
                f"{name} was not imported: {package} 2.6.2 and 2.6.3 are compromised releases.",
                hint=f"Put '{package}!=2.6.2,!=2.6.3' into requirements.txt.",
            )
    parser = versions.get("jsonargparse", (4, 21))
    if (1,) < versions.get("pytorch-lightning", ()) < (1, 7) and (parser >= (4, 22) or (4, 6) <= parser < (4, 9)):
        log.warning(
            "Lightning's CLI before 1.7 does not work with jsonargparse %s. HINT: Put "
            "'jsonargparse[signatures]==4.21.0' into requirements.txt.",
            ".".join(map(str, parser)),
        )


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


def installed_versions() -> Dict[str, Version]:
    """The versions of the installed packages that :func:`check_before_import` looks at, by their names."""
    # Imported here, because it takes longer to import than the rest of this package.
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("lightning", "pytorch-lightning", "jsonargparse"):
        try:
            numbers = re.findall(r"\d+", str(version(package)))  # None where its metadata is damaged
        except PackageNotFoundError:
            continue
        found[package] = tuple(int(number) for number in numbers[:3])
    return found
