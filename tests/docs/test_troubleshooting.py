"""The page Troubleshooting: what it quotes is in this package's code, or the row names whose line it is."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from lightning_sm import errors
from tests.docs.pages import ROOT, headings

_PAGE = ROOT / "docs" / "troubleshooting.md"
_TEXT = _PAGE.read_text(encoding="utf-8")
_ROWS = re.findall(r"^\| (.*?) \| (.*?) \|$", _TEXT, re.MULTILINE)
_ISSUE = re.compile(r"\]\(https://github\.com/[\w./-]+/issues/\d+\)")
_TOOLKIT = re.compile(r"`(sagemaker_\w+/\w+\.py)`")
_REPOSITORY = "https://github.com/lightning-sm/lightning-sm/blob/main"


def quoted(cell):
    """The messages that a cell quotes, each as what stands between its variable parts, and before a colon."""
    for message in re.findall(r"`([^`]+)`", cell):
        if " " in message:
            parts = [part.strip(" .,;()") for part in re.split(r"…|: ", message)]
            yield message, [part for part in parts if re.search(r"\w{2}", part)]


@pytest.fixture(scope="module")
def code():
    """Every text in the package's code, with ``…`` for what is filled in."""
    found = []
    for path in (ROOT / "lightning_sm").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[.\d]*[sdrf]", "…", node.value))
    return "\n".join(found)


def test_each_message_is_one_of_this_package_or_its_row_has_a_source(code):
    own = [cell for cell, rest in _ROWS if not _ISSUE.search(rest) and not _TOOLKIT.search(rest)]
    messages = [each for cell in own for each in quoted(cell)]
    assert len(messages) > 30
    assert [message for message, parts in messages if not all(part in code for part in parts)] == []


def test_messages_of_the_toolkits_are_theirs():
    rows = [(cell, name) for cell, rest in _ROWS for name in _TOOLKIT.findall(rest)]
    assert rows
    for cell, name in rows:
        package = importlib.util.find_spec(name.partition("/")[0])
        if package is None:
            continue  # the toolkits are in containers, and in the extra rehearse
        text = Path(package.submodule_search_locations[0], name.partition("/")[2]).read_text(encoding="utf-8")
        assert all(part in text for _, parts in quoted(cell) for part in parts), cell


@pytest.mark.parametrize("name", errors.__all__)
def test_each_error_class_has_its_section(name):
    sections = dict(re.findall(r"^### (\w+Error)\n\n(.*?)(?=^#|\Z)", _TEXT, re.M | re.S))
    assert set(sections) == set(errors.__all__)
    # Text, then at least one message.
    assert re.match(r"[A-Z].*?\.\n.*?\| Line \| .*?\n\|---\|---\|\n\| ", sections[name], re.S)
    address, _, anchor = getattr(errors, name)("").link.partition("#")
    assert address == f"{_REPOSITORY}/docs/troubleshooting.md"
    assert anchor in headings(_PAGE)
