"""What the benchmarks share; they are run by ``nox -s bench``."""

import importlib
import json
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(_FOLDER))
    return importlib.import_module("_pairs")


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ([0.9] * 6, "faster"),
        ([1.1] * 6, "slower"),
        ([0.9] * 5, "cannot tell"),
        ([0.9] * 8 + [1.1], "faster"),
        ([0.9] * 7 + [1.1] * 2, "cannot tell"),
        ([1.0] * 9, "cannot tell"),
    ],
)
def test_the_verdict_needs_as_many_pairs_as_chance_would_not_give(module, ours, verdict):
    assert module.Pairs("s", tuple((each, 1.0) for each in ours)).verdict == verdict


def test_pairs_are_measured_in_changing_order_and_shown(module, capsys):
    order = []

    def timed(name, seconds):
        return lambda: order.append(name) or seconds

    found = module.in_turn(timed("ours", 2.0), timed("theirs", 4.0), unit="s", pairs=3)
    assert order == ["ours", "theirs"] * 2 + ["theirs", "ours"] + ["ours", "theirs"]
    assert found.values == ((2.0, 4.0),) * 3
    printed, shown = capsys.readouterr()
    assert {"ratio": 0.5, "spread": [0.5, 0.5], "verdict": "cannot tell"}.items() <= json.loads(printed).items()
    assert "pair 3 of 3: 2 and 4 s, ratio 0.500" in shown


def test_each_script_takes_pairs_and_has_a_row():
    table = (_FOLDER / "README.md").read_text()
    scripts = [path for path in _FOLDER.glob("*_*.py") if not path.name.startswith("_")]
    assert len(scripts) > 5
    for script in scripts:
        assert "parser(__doc__)" in script.read_text()
        assert f"`{script.name}" in table
