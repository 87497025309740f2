"""What the benchmarks share; they are run by ``nox -s bench``."""

import importlib.util
import json
from pathlib import Path

import pytest

_FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("benchmark_pairs", _FOLDER / "_pairs.py")
    found = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, spec.name, found)  # a dataclass looks for its module
        spec.loader.exec_module(found)
        yield found


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


def test_by_default_no_pair_begins_that_would_end_too_late(module, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])

    def slow():
        clock[0] += 10
        return 1.0

    assert len(module.in_turn(slow, slow, unit="s", seconds=65).values) == 2
    assert "7 pairs are left out" in capsys.readouterr().err
    assert len(module.in_turn(slow, slow, unit="s", seconds=65, pairs=5).values) == 5


def test_each_script_takes_pairs_and_has_a_row():
    table = (_FOLDER / "README.md").read_text()
    scripts = [path for path in _FOLDER.glob("*_*.py") if not path.name.startswith("_")]
    assert len(scripts) > 5
    for script in scripts:
        assert "parser(__doc__)" in script.read_text()
        assert f"`{script.name}" in table
