"""Writes the tables in ``docs/`` that are made from the code, and checks that they are up to date.

``python -m tools.docs`` writes them. With ``--check`` it writes nothing, prints a diff of each page that is out of date
and exits with 1. A table stands between the lines ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``.
"""

import argparse
import difflib
import inspect
import json
import re
import sys
import typing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import docstring_parser

import lightning_sm
from lightning_sm._doctor import CHECKS, name_of

__all__ = ["TABLES", "main", "out_of_date", "render"]

DOCS = Path(__file__).resolve().parents[1] / "docs"
_BEGIN = re.compile(r"^<!-- generated: ", re.MULTILINE)
_MARK = re.compile(r"^<!-- generated: ([\w-]+) -->\n.*?^<!-- end: \1 -->$", re.DOTALL | re.MULTILINE)


def options_table() -> str:
    """Every field of ``SageMakerOptions``."""
    documented = docstring_parser.parse(inspect.getdoc(lightning_sm.SageMakerOptions) or "")
    meanings = {each.arg_name: _inline(each.description or "") for each in documented.params}
    types = typing.get_type_hints(lightning_sm.SageMakerOptions)
    rows = []
    for option in fields(lightning_sm.SageMakerOptions):
        default = option.default if option.default_factory is MISSING else option.default_factory()
        rows.append((f"`{option.name}`", _type(types[option.name]), _value(default), meanings[option.name]))
    return _table(("Option", "Type", "Default", "Meaning"), rows)


def doctor_table() -> str:
    """What each check of the doctor examines, and what it saves, by its docstring."""
    rows = []
    for check in CHECKS:
        examined, _, rest = (inspect.getdoc(check) or "").partition("\n")
        saves = rest.partition("Saves: ")[2].partition("\n\n")[0]
        rows.append((name_of(check), _inline(examined), _inline(saves[:1].upper() + saves[1:])))
    return _table(("Check", "Examined", "What it saves"), rows)


def ranks_table() -> str:
    """What ``Topology`` reads under every launcher, as it says itself in ``sources``."""
    ranks = {"RANK": "4", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}
    open_mpi = {"RANK": "4", "SIZE": "8", "LOCAL_RANK": "0", "LOCAL_SIZE": "4"}
    torchrun = {
        **ranks,
        "TORCHELASTIC_RUN_ID": "1",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }
    job = lightning_sm.TrainingJob(
        in_container=True,
        current_host="algo-2",
        hosts=("algo-1", "algo-2"),
        sources={"hosts": "`resourceconfig.json`", "current_host": "`resourceconfig.json`"},
    )
    wrapped = [{**ranks, name: "4"} for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_SIZE")]
    cases: Sequence[Tuple[str, List[Dict[str, str]], lightning_sm.TrainingJob]] = (
        ("`TORCHELASTIC_RUN_ID`", [torchrun], job),
        ("`RANK`, `WORLD_SIZE` and `LOCAL_RANK`", [*wrapped, ranks], job),
        ("`OMPI_COMM_WORLD_RANK`", [{f"OMPI_COMM_WORLD_{name}": value for name, value in open_mpi.items()}], job),
        ("a SageMaker container", [{}], job),
        ("none of these", [{}], lightning_sm.TrainingJob()),
    )
    parts = (("global_rank", "world_size", "local_rank"), ("local_world_size",), ("node_rank", "num_nodes"))
    rows = []
    for number, (seen, environs, described) in enumerate(cases, 1):
        found = [lightning_sm.Topology.resolve(environ, described, "algo-2") for environ in environs]
        cells = [
            _unique((_unique((_source(topology, part) for part in group), ", ") for topology in found), ", else ")
            for group in parts
        ]
        rows.append((str(number), seen, f"`{found[0].launcher}`", *cells))
    titles = ("Global rank, world size, local rank", "Local world size", "Node rank, number of nodes")
    return _table(("", "Present", "`launcher`", *titles), rows)


def versions_table() -> str:
    """The rows of the version matrix."""
    from tools.matrix.rows import ROWS

    rows = [
        (
            row.python,
            row.torch,
            row.lightning,
            str(row.level),
            "both" if row.both else "`pytorch_lightning`",
            row.images,
            f"`{row.line}`",
        )
        for row in ROWS
    ]
    titles = ("Python", "torch", "Lightning", "Level", "Namespaces", "AWS images with this torch or a close one")
    return _table((*titles, "`requirements.txt`"), rows)


def patches_table() -> str:
    """Which parts of Lightning are replaced."""
    from lightning_sm._lightning.patches import PATCHES

    rows = [
        (f"[{patch.replaced}]({patch.link})", patch.versions, f"`{patch.function}`", patch.ends) for patch in PATCHES
    ]
    return _table(("Replaced", "Versions", "By", "Ends with"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "options": options_table,
    "doctor": doctor_table,
    "ranks": ranks_table,
    "versions": versions_table,
    "patches": patches_table,
}


def render(page: str) -> str:
    """Return the text of a page with its tables made anew.

    Args:
        page: The text as it stands.

    Raises:
        ValueError: A mark has no end.
        KeyError: A mark names a table that there is not.
    """

    def made(mark: "re.Match[str]") -> str:
        return f"<!-- generated: {mark[1]} -->\n\n{TABLES[mark[1]]()}\n<!-- end: {mark[1]} -->"

    if len(_BEGIN.findall(page)) != len(_MARK.findall(page)):
        raise ValueError("A mark <!-- generated: NAME --> has no <!-- end: NAME -->.")
    return _MARK.sub(made, page)


def out_of_date(docs: Path = DOCS) -> Dict[Path, str]:
    """Return the new text of each page that is out of date.

    Args:
        docs: The folder of the pages.

    Raises:
        ValueError: A mark is broken, or no page shows one of the tables.
    """
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(docs.rglob("*.md"))}
    hidden = set(TABLES) - {mark[1] for text in pages.values() for mark in _MARK.finditer(text)}
    if hidden:
        raise ValueError(f"No page in {docs} has a mark for: {', '.join(sorted(hidden))}.")
    new = {path: render(text) for path, text in pages.items()}
    return {path: new[path] for path, text in pages.items() if new[path] != text}


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Write or check the tables; return 1 if ``--check`` found a page that is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Write the tables in docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing, print diffs, exit with 1 if there are any")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages (default: docs/)")
    options = parser.parse_args(argv)
    changed = out_of_date(options.docs)
    for path, text in changed.items():
        if options.check:
            old = path.read_text(encoding="utf-8").splitlines(keepends=True)
            sys.stdout.writelines(
                difflib.unified_diff(old, text.splitlines(keepends=True), str(path), f"{path} (from the code)")
            )
        else:
            path.write_text(text, encoding="utf-8")
            print(f"Wrote {path}")
    if options.check and changed:
        print(f"{len(changed)} page(s) out of date. HINT: Run python -m tools.docs.")
    return 1 if options.check and changed else 0


def _source(topology: Any, part: str) -> str:
    source = topology.sources.get(part)
    if source is None:
        value = getattr(topology, part)
        return "Lightning's" if value is None or topology.launcher == lightning_sm.Launcher.LOCAL else str(value)
    text = re.sub(r"\b([A-Z][A-Z_]{3,})\b", r"`\1`", str(source))
    for said, meant in (
        ("over 4", "// local world size"),
        ("over 2 hosts", "// number of hosts"),
        ("algo-2", "this host"),
    ):
        text = text.replace(said, meant)
    return text


def _unique(texts: Iterable[str], separator: str) -> str:
    return separator.join(dict.fromkeys(texts))


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return " or ".join("`null`" if each is type(None) else _type(each) for each in arguments)
    if origin in (list, List):
        return f"list of {_type(arguments[0])}"
    if origin in (dict, Dict):
        return "mapping"
    return f"`{hint.__name__}`"


def _value(default: Any) -> str:
    return f"`{default if isinstance(default, str) else json.dumps(default, default=repr)}`"


def _inline(text: str) -> str:
    """Text of a docstring as one line of Markdown: roles of reStructuredText become code."""
    text = re.sub(r":\w+:`(?:~[\w.]+\.)?([\w.]+)`", r"`\1`", text)
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


if __name__ == "__main__":
    sys.exit(main())
