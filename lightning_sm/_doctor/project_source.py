"""The project's own source on this host: what it uses decides whether a property of the platform is a fault."""

import ast
import os
import re
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from lightning_sm._doctor.finding import Machine
from lightning_sm._doctor.host import read_text
from lightning_sm._doctor.job_checks import is_sdk_v3

__all__ = ["entry_script", "find_text", "find_unsorted_listing", "source_dir", "uses_lightning_sm"]

# A source directory may hold data or a virtual environment.
_MAX_FILES = 200
_MAX_FOLDERS = 500
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "tests"})
_LISTINGS = frozenset({"listdir", "scandir", "iterdir", "glob", "iglob", "rglob"})
# What does not depend on the order of its argument, or chooses it.
_ORDERLESS = frozenset({"sorted", "natsorted", "len", "set", "frozenset", "any", "all", "max", "min", "sum", "sort"})


def source_dir(machine: Machine) -> Path:
    """Return the directory that holds the script."""
    job = machine.job
    if is_sdk_v3(job):
        return Path(job.channels["code"].path) if "code" in job.channels else Path(job.base_dir or "/opt/ml", "code")
    return Path(job.base_dir or "/opt/ml", "code")


def entry_script(machine: Machine) -> Optional[Path]:
    """Return where the script should be; ``None`` if nothing names it."""
    named = machine.environ.get("SM_USER_ENTRY_POINT") or machine.environ.get("SM_ENTRY_SCRIPT")
    named = named or machine.job.hyperparameters.reserved.get("sagemaker_program")
    return source_dir(machine) / named if isinstance(named, str) and named else None


def uses_lightning_sm(machine: Machine) -> bool:
    """Whether a file of the project names ``lightning_sm``."""
    return find_text(machine, r"\blightning_sm\b") is not None


def find_text(machine: Machine, pattern: str) -> Optional[str]:
    """Return where the project's source first matches a pattern, such as ``train.py:12``; comments do not count.

    Args:
        machine: The machine.
        pattern: A regular expression for one line.
    """
    wanted = re.compile(pattern)
    for name, text in _files(machine):
        for number, line in enumerate(text.splitlines(), 1):
            if wanted.search(line.partition("#")[0]):
                return f"{name}:{number}"
    return None


def find_unsorted_listing(machine: Machine) -> Optional[str]:
    """Return where the project first uses a directory listing in the file system's order, such as ``data.py:7``.

    Listings in a call of ``sorted`` and of functions that do not depend on the order are left out, and so are
    functions that sort by ``.sort()``.

    Args:
        machine: The machine.
    """
    for name, text in _files(machine):
        try:
            found = sorted(_unsorted(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):
            continue
        if found:
            return f"{name}:{found[0]}"
    return None


def _unsorted(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.Call):
        called = _name(node.func)
        if called in _ORDERLESS:
            return
        if called in _LISTINGS:
            yield node.lineno
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _sorts(node):
        return
    for child in ast.iter_child_nodes(node):
        yield from _unsorted(child)


def _name(node: ast.AST) -> Optional[str]:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _sorts(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and _name(each.func) in ("sort", "sorted") for each in ast.walk(node))


def _files(machine: Machine) -> Iterator[Tuple[str, str]]:
    """Yield the Python files of the source, each with its text."""
    top, count = source_dir(machine), 0
    if not machine.is_here:
        return
    for visited, (folder, folders, names) in enumerate(os.walk(top)):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and not name.startswith("."))
        for path in _python(folder, names):
            text = read_text(path)
            if text is not None:
                yield str(path.relative_to(top)), text
            count += 1
        if count >= _MAX_FILES or visited >= _MAX_FOLDERS:
            return


def _python(folder: str, names: List[str]) -> List[Path]:
    return [Path(folder, name) for name in sorted(names) if name.endswith(".py")][:_MAX_FILES]
