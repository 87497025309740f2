import math
import re

import pytest

from lightning_sm._observe import figures
from lightning_sm._observe.history import Attempt, History, Kind
from lightning_sm._observe.page import render
from lightning_sm._observe.report import Outcome
from tests.observe.made_up import Page, history, report

EVIL = "<script>alert('1')</script> & \"quoted\" </td> \x00\x1b[31m \ud800 \u202e"


def page_of(made):
    text = render(made, str)
    text.encode("utf-8")
    return Page(text)


def test_curves_are_drawn_from_what_was_recorded():
    page = page_of(report(history("loss", "acc", restarts=[40, 60])))
    of_curves, of_rows = ["metrics", "throughput", "learning-rate", "values"], ["model", "job", "topology", "settings"]
    assert page.headings == [*of_curves, "starts", *of_rows, "versions"]
    assert [card["data-name"] for card in page.cards] == ["loss", "acc", "samples per second, all processes", "SGD"]
    for card in page.cards:
        steps, values = page.data[int(card["data-curve"])]
        assert steps == list(range(0, 100, 10))
        assert len(values) == 10
    assert len(page.lines) == 4
    for points in page.lines:
        assert [across for across, _ in points] == sorted(across for across, _ in points)
        assert len(points) == 10
    falls = [down for _, down in page.lines[0]]
    assert falls == sorted(falls)
    restarts = [found["d"] for tag, found in page.elements if found.get("class") == "restart"]
    assert len(restarts) == 2 * 4  # a line for each restart in each figure


def shown_ticks(*values):
    """The labels of the axis of values, and how high each of these values stands, from 0 (bottom) to 1."""
    recorded = History()
    for step, value in enumerate(values):
        recorded.add("x", 7 * step, value)
    page = page_of(report(recorded))
    downs = [down for _, down in page.lines[0]]
    assert all(figures.LEFT <= across <= figures.RIGHT for across, _ in page.lines[0])
    labels = re.findall(r'class="value">(.*?)<', render(report(recorded), str))
    return [float(label) for label in labels], [round((164 - down) / 156, 2) for down in downs]


def test_a_constant_stands_at_its_value():
    assert shown_ticks(0.01, 0.01) == ([0.009, 0.0095, 0.01, 0.0105, 0.011], [0.5, 0.5])
    assert shown_ticks(0.0) == ([-1, -0.5, 0, 0.5, 1], [0.5])


@pytest.mark.parametrize(
    "values",
    [
        (1.0, 2.0),
        (-3.5, 0.0, 1e-9),
        (1e308, -1e308),
        (5e-324, 0.0),
        (1e6, 1e6 + 0.001),
        (1e-30, 3e-30),
        (0.1, 0.1 + 1e-17),
    ],
)
def test_axes_of_odd_values(values):
    ticks, heights = shown_ticks(*values)
    assert len(set(ticks)) == len(ticks) >= 2
    assert ticks == sorted(ticks)
    assert all(0 <= height <= 1 for height in heights)


def test_a_metric_of_the_exported_model_that_is_not_the_last_one_is_explained():
    recorded = history("val_acc", "loss")
    last = {curve.name: curve.last for curve in recorded.curves()}
    export = (("monitor", "val_acc"), ("score", "0.75"), ("metrics.loss", repr(last["loss"])))
    shown = page_of(report(recorded, export=export)).shown
    assert f"Metrics of the exported weights. At the end of the training val_acc was {last['val_acc']:.6g}." in shown
    same = (("monitor", "val_acc"), ("score", repr(last["val_acc"])))
    assert "exported weights" not in page_of(report(recorded, export=same)).shown


def test_nothing_is_requested_from_any_host():
    page = page_of(report())
    assert page.requests == []
    policy = next(found["content"] for tag, found in page.elements if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "prefers-color-scheme: dark" in page.styles[0]


def test_every_text_is_escaped():
    recorded = history(EVIL, "</script><b>", "$name ${x} $$", '["@steps"]', restarts=[5])
    rows = ((EVIL, EVIL),)
    recorded.add_attempt(Attempt(0.0, checkpoint=EVIL))
    made = report(recorded, title=EVIL, reason=EVIL, outcome=Outcome.FAILED, job=rows, topology=rows,
                  settings=(EVIL,), versions=rows, export=rows)  # fmt: skip
    page = page_of(made)
    recorded = history("a", "b", "c", "d", restarts=[5])
    recorded.add_attempt(Attempt(0.0, checkpoint="x"))
    plain = page_of(report(recorded, reason="x", outcome=Outcome.FAILED))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.shown.count("<script>alert('1')</script> & \"quoted\" </td>") >= 10
    assert "\x00" not in page.shown
    assert "$name ${x} $$" in page.shown


def test_a_fit_that_logged_nothing_has_no_curves():
    page = page_of(report(History(), export=(), settings=(), job=(), epochs=0, steps=0))
    assert page.headings == ["topology", "versions"]
    assert "0 epochs, 0 optimizer steps, 1 min 1 s · ended 2027-01-15 08:00:00" in page.shown


def test_values_that_are_not_finite_are_said():
    recorded = History()
    for step in range(4):
        recorded.add("some", step, math.nan if step else 1.0)
        recorded.add("all", step, math.inf)
    page = page_of(report(recorded))
    assert "3 of 4 values NaN or infinite, the first at step 1; they are not drawn" in page.shown
    assert ["data-curve" in card for card in page.cards] == [True, False]
    assert page.shown.count("last NaN") == page.shown.count("last inf") == 1
    assert page.data[1] == [[], []]


def test_the_page_of_as_many_curves_as_are_recorded_is_small():
    recorded = History()
    for number in range(1_100):
        for step in range(40):
            recorded.add(f"metric {number} " + "x" * 280, step, math.sin(step) * 1e-17)
    recorded.add("SGD", 0, 0.1, Kind.LEARNING_RATE)
    text = render(report(recorded), str)
    assert len(text.encode()) < 5_000_000
