"""Runs functions around the import of Lightning, so that importing this package does not import Lightning.

Before the import, known incompatible versions are reported; after a failed one, its known causes.

Every program pays for what is imported here, so no ``dataclasses`` (``inspect``) and no ``importlib.abc`` (``zipfile``,
``tempfile``), which took half of the time.
"""

import re
import sys
from types import ModuleType
from typing import Callable, Dict, Optional, Tuple

from lightning_sm._logging import log
from lightning_sm.errors import LightningImportError, LightningSMError
from lightning_sm_entry import Finder

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
        return

    def execute_between(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        before()
        try:
            execute(module)
        except Exception as error:
            explained = explain(error)
            if explained is None:
                raise
            raise explained from error
        after()

    sys.meta_path.insert(0, Finder(name, execute_between))


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
