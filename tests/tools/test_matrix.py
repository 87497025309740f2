"""The rows, the verified pairs and the documentation tell of the same versions."""

import re

import pytest

from lightning_sm._lightning.levels import VERIFIED, SupportLevel
from tools import ROOT
from tools.matrix.__main__ import paths_of
from tools.matrix.rows import ROWS


def test_verified_pairs_are_the_rows():
    pairs = {(row.version, tuple(int(part) for part in row.torch.split("+")[0].split(".")[:2])) for row in ROWS}
    assert pairs == VERIFIED


def test_names_are_different_and_each_level_and_each_python_has_a_row():
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert {row.level for row in ROWS} == set(SupportLevel)
    # The README's test command runs with Python 3.11.
    listed = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted([*(row.python for row in ROWS), "3.11"]) == sorted(listed)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_row_runs_what_exists_once_is_pinned_and_documented(row):
    paths = paths_of(row)
    assert all((ROOT / path).exists() for path in paths), paths
    assert not [path for path in paths if any(path.startswith(f"{other}/") for other in paths)]
    assert ("tests/resume" in paths) == (row.level is SupportLevel.FULL)
    pins = (ROOT / "tools" / "matrix" / "requirements" / f"{row.name}.txt").read_text(encoding="utf-8").splitlines()
    assert f"torch=={row.torch}" in pins
    assert f"pytorch-lightning=={row.lightning}" in pins
    assert (f"lightning=={row.lightning}" in pins) == row.both
    assert all("==" in pin and "@" not in pin for pin in pins), "every line is a pin from an index"
    table = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8").splitlines()
    (line,) = (
        line for line in table if line.startswith(f"| {row.python} | {row.torch} |") and f"| {row.lightning} |" in line
    )
    assert f"`{row.line}`" in line
    assert row.images in line
