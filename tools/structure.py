"""Measures how the package is built: ``python -m tools.structure`` prints the figures, and what breaks a rule.

The rules that concern imports alone are import-linter's contracts in ``pyproject.toml``.
"""

import ast
import statistics
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Dict, FrozenSet, Iterator, List, Set, Tuple

from tools import ROOT

__all__ = ["PACKAGE", "Structure", "measure"]

PACKAGE = "lightning_sm"


@dataclass(frozen=True)
class Structure:
    """What was measured.

    Args:
        lines: The number of lines of each file, by its path in the repository.
        root_modules: The files directly in the package's folder.
        floors: How many rooms (folders and root modules) stand above each other where most do.
        circles: Rooms that import each other, each a sorted tuple.
        private_imports: Each import of a name with a leading underscore from another module.
        package_imports: Each import of the package itself from within, which imports everything.
    """

    lines: Dict[str, int]
    root_modules: Tuple[str, ...]
    floors: int
    circles: Tuple[Tuple[str, ...], ...]
    private_imports: Tuple[str, ...]
    package_imports: Tuple[str, ...]

    @property
    def median(self) -> float:
        """The median of the files' lines."""
        return statistics.median(self.lines.values())

    @property
    def longest(self) -> Tuple[str, int]:
        """The file with the most lines."""
        return max(self.lines.items(), key=lambda item: item[1])


def measure(root: Path = ROOT) -> Structure:
    """Read every module of the package below ``root``."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((root / PACKAGE).rglob("*.py"))}
    names = {_module(path, root): path for path in trees}
    rooms: Dict[str, Set[str]] = {}
    private: List[str] = []
    package: List[str] = []
    for path, tree in trees.items():
        where = path.relative_to(root).as_posix()
        room = _room(_module(path, root))
        for line, module, name in _imports(tree, _module(path, root), is_package=path.name == "__init__.py"):
            target = f"{module}.{name}" if f"{module}.{name}" in names else module
            if module == target and name.startswith("_") and not name.startswith("__"):
                private.append(f"{where}:{line}: {name} of {module}")
            if target == PACKAGE and room != "__init__":
                package.append(f"{where}:{line}")
            if _room(target) != room and "__init__" not in (room, _room(target)):
                rooms.setdefault(room, set()).add(_room(target))
            rooms.setdefault(_room(target), set())
    circles = _circles(rooms)
    return Structure(
        {path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in trees},
        tuple(path.name for path in trees if path.parent == root / PACKAGE),
        _floors(rooms) if not circles else 0,
        circles,
        tuple(private),
        tuple(package),
    )


def _module(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def _imports(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[Tuple[int, str, str]]:
    """Each name that is imported from the package when it runs: line, module, name."""
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            if base.split(".")[0] == PACKAGE:
                yield from ((node.lineno, base, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, n.name, "") for n in node.names if n.name.split(".")[0] == PACKAGE)


def _circles(rooms: Dict[str, Set[str]]) -> Tuple[Tuple[str, ...], ...]:
    def reached(start: str) -> FrozenSet[str]:
        found: Set[str] = set()
        left = list(rooms[start])
        while left:
            room = left.pop()
            if room not in found:
                found.add(room)
                left.extend(rooms.get(room, ()))
        return frozenset(found)

    reach = {room: reached(room) for room in rooms}
    groups = {tuple(sorted(o for o in reach[room] if room in reach[o])) for room in rooms if room in reach[room]}
    return tuple(sorted(groups))


def _floors(rooms: Dict[str, Set[str]]) -> int:
    @lru_cache(maxsize=None)
    def floor(room: str) -> int:
        return 1 + max((floor(lower) for lower in rooms.get(room, ())), default=0)

    return max(map(floor, rooms))


def main() -> int:
    """Print the figures; return 1 if a rule is broken."""
    found = measure()
    print(f"files {len(found.lines)}, median {found.median:.0f} lines, longest {found.longest[0]} ({found.longest[1]})")
    print(f"root modules {len(found.root_modules)}, floors {found.floors or 'unknown'}, circles {len(found.circles)}")
    broken = [
        *(f"rooms import each other: {', '.join(circle)}" for circle in found.circles),
        *(f"private name of another module: {entry}" for entry in found.private_imports),
        *(f"imports the whole package: {entry}" for entry in found.package_imports),
    ]
    print("\n".join(broken) or "nothing reaches where it should not")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
