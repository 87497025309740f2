"""The project's own source on this host: what it uses decides whether a property of the platform is a fault."""

import ast
import re
from pathlib import Path
from typing import Iterator, Optional, Tuple

from lightning_sm._doctor.finding import Machine
from lightning_sm._doctor.host import read_text
from lightning_sm._sagemaker.job import TrainingJob

__all__ = ["find_text", "find_unsorted_listing", "is_sdk_v3", "source_dir"]

# A source directory may hold data or a virtual environment.
_MAX_FILES = 200
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "tests"})
_LISTINGS = frozenset({"listdir", "scandir", "iterdir", "glob", "iglob", "rglob"})
# What does not depend on the order of its argument, or chooses it.
_ORDERLESS = frozenset({"sorted", "natsorted", "len", "set", "frozenset", "any", "all", "max", "min", "sum", "sort"})


def is_sdk_v3(job: TrainingJob) -> bool:
    """Whether SDK v3's container drivers started the job."""
    return "sm_drivers" in job.channels


def source_dir(machine: Machine) -> Path:
    """Return the directory that holds the script."""
    job = machine.job
    if is_sdk_v3(job) and "code" in job.channels:
        return Path(job.channels["code"].path)
    return Path(job.base_dir or "/opt/ml", "code")


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
            lines = list(_unsorted(ast.parse(text)))
        except (SyntaxError, ValueError, RecursionError):
            continue
        if lines:
            return f"{name}:{min(lines)}"
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
    names = sorted(path.relative_to(source_dir(machine)) for path in source_dir(machine).rglob("*.py"))
    own = [name for name in names if not any(part in _SKIPPED or part.startswith(".") for part in name.parts)]
    for name in own[:_MAX_FILES]:
        text = read_text(source_dir(machine) / name)
        if text is not None:
            yield str(name), text
