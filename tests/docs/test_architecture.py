"""The page Architecture: its drawing is import-linter's contract, and its files and sizes are those of the package."""

import re

from tests.docs.pages import ROOT

_TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
_PACKAGE = ROOT / "lightning_sm"


def test_the_drawing_is_the_contract():
    contract = re.search(r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M | re.S)
    layers = [re.findall(r"\w+", layer) for layer in re.findall(r'"(.*)"', contract[1])]
    drawn = [line.split() for line in re.search(r"^```\n(.*?)^```", _TEXT, re.M | re.S)[1].splitlines()]
    assert [line[: len(layer)] for line, layer in zip(drawn, layers)] == layers
    assert len(drawn) == len(layers)


def test_files_and_packages_exist():
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|sh))`", _TEXT)) - {"lightning_sm_entry.py"}
    assert len(named) > 40
    assert [name for name in sorted(named) if not (list(_PACKAGE.rglob(name)) or (ROOT / name).is_file())] == []
    rooms = {path.parent.name for path in _PACKAGE.glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)` \| [\d,]+ \|", _TEXT, re.M)) == rooms
