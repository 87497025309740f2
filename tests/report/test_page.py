import math
import random
import sys
from dataclasses import replace

import pytest

from lightning_sm._report.history import History, Kind
from lightning_sm._report.page import render
from lightning_sm._report.report import Outcome
from tests.report.made_up import Page, history, report

EVIL = "<script>alert('1')</script> & \"quoted\" </td> \x00\x1b[31m \ud800 \u202e"


def page_of(made):
    text, problem = render(made)
    text.encode("utf-8")
    return Page(text), problem


@pytest.fixture
def without_bokeh(monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "bokeh"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)


def test_all_that_is_known_is_shown():
    page, _ = page_of(report(history("loss", "acc", restarts=[40])))
    for text in ("job-1", "completed", "1 min 1 s", "torchrun", "trainer.num_nodes = 2 ← resourceconfig.json",
                 "model.pt", "step=40.ckpt", "restarted once", "from scratch", "2027-01-15 08:00:00"):  # fmt: skip
        assert text in page.shown, text
    assert page.headings[-6:] == ["starts", "model", "job", "topology", "settings", "versions"]


@pytest.mark.services
def test_curves_are_drawn_from_what_was_recorded():
    pytest.importorskip("bokeh", reason="the extra lightning-sm[report]")
    page, problem = page_of(report(history("loss", "acc", restarts=[40, 60])))
    assert problem is None
    assert page.headings[:4] == ["metrics", "throughput", "learning-rate", "values"]
    data = page.data
    assert [card["data-name"] for card in page.cards] == ["loss", "acc", "samples per second, all processes", "SGD"]
    for card in page.cards:
        curve = data["curves"][int(card["data-curve"])]
        assert curve["steps"] == list(range(0, 100, 10))
        assert len(curve["values"]) == 10
    for template in data["templates"].values():
        assert template.count(data["steps"]) == template.count(data["values"]) == 1
        assert template.count("#d97706") == 2  # a line for each restart
    assert "Bokeh" in page.shown


def test_nothing_is_requested_from_any_host():
    page, _ = page_of(report())
    assert page.requests == []
    policy = next(found["content"] for tag, found in page.elements if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy


def test_it_is_light_and_dark_and_fits_a_narrow_window():
    page, _ = page_of(report())
    assert "prefers-color-scheme: dark" in page.styles[0]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [
        found for _, found in page.elements
    ]


@pytest.mark.parametrize("has_library", [True, False])
def test_every_text_is_escaped(has_library, request):
    if not has_library:
        request.getfixturevalue("without_bokeh")
    recorded = history(EVIL, "</script><b>", "$name ${x} $$", '["@steps"]', restarts=[5])
    rows = ((EVIL, EVIL),)
    attempts = (replace(recorded.attempts[0], checkpoint=EVIL), *recorded.attempts[1:])
    made = report(recorded, title=EVIL, reason=EVIL, outcome=Outcome.FAILED, job=rows, topology=rows, routing=(EVIL,),
                  versions=rows, export=rows, attempts=attempts, notes=(EVIL,))  # fmt: skip
    page, _ = page_of(made)
    plain, _ = page_of(
        report(history("a", "b", "c", "d", restarts=[5]), reason="x", outcome=Outcome.FAILED, notes=("x",))
    )
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.shown.count("<script>alert('1')</script> & \"quoted\" </td>") >= 12
    assert "\x00" not in page.shown
    assert "$name ${x} $$" in page.shown


def test_without_the_library_the_tables_are_there_and_the_extra_is_named(without_bokeh):
    page, problem = page_of(report())
    assert "lightning-sm[report]" in problem
    assert problem in page.shown
    assert page.cards == []
    assert page.headings[0] == "values"
    assert "0.367879" not in page.shown  # of a step that was not logged
    assert "0.40657" in page.shown


@pytest.mark.services
def test_a_library_that_cannot_be_imported_is_no_failure(monkeypatch):
    pytest.importorskip("bokeh", reason="the extra lightning-sm[report]")
    monkeypatch.setattr("lightning_sm._report.page.load_figures", lambda restarts: 1 / 0)
    page, problem = page_of(report())
    assert "Bokeh cannot be used (ZeroDivisionError: division by zero)" in problem
    assert page.headings[0] == "values"


def test_a_fit_that_logged_nothing_has_no_curves_and_no_problem():
    page, problem = page_of(report(History(), attempts=(), export=(), routing=(), job=(), epochs=0, steps=0))
    assert problem is None
    assert page.headings == ["topology", "versions"]
    assert "0 epochs, 0 optimizer steps" in page.shown


def test_one_value_of_one_metric():
    recorded = History()
    recorded.add("loss", 0, 1.5)
    page, _ = page_of(report(recorded, steps=1))
    assert "1 epoch, 1 optimizer step," in page.shown
    assert "1.5" in page.shown


@pytest.mark.services
def test_values_that_are_not_finite_are_said():
    pytest.importorskip("bokeh", reason="the extra lightning-sm[report]")
    recorded = History()
    for step in range(4):
        recorded.add("some", step, math.nan if step else 1.0)
        recorded.add("all", step, math.inf)
    page, _ = page_of(report(recorded))
    assert "3 of 4 values NaN or infinite, the first at step 1; they are not drawn" in page.shown
    assert ["data-curve" in card for card in page.cards] == [True, False]
    assert page.shown.count("last NaN") == page.shown.count("last inf") == 1
    assert '"values":[]' in page.scripts[0]


def test_a_clock_that_goes_backwards_or_is_wrong_breaks_nothing():
    recorded = history("loss", restarts=[50])
    attempts = (replace(recorded.attempts[0], started=-1e30), replace(recorded.attempts[1], started=0.0))
    page, _ = page_of(report(recorded, attempts=attempts, ended=-5.0, seconds=-3.0))
    assert "0.0 s · ended 1969-12-31 23:59:55" in page.shown
    assert "unknown" in page.shown


def test_two_hundred_metrics_have_a_figure_and_a_row_each():
    recorded = history(*(f"group_{number // 20}/metric_{number}" for number in range(200)), steps=3_000)
    text, _ = render(report(recorded))
    page = Page(text)
    assert sum(tag == "tr" and "data-name" in found for tag, found in page.elements) == 202
    assert {"type": "search", "id": "filter"}.items() <= next(
        found.items() for tag, found in page.elements if tag == "input"
    )
    # One figure serves all curves, so that a page does not grow with what a figure takes.
    assert len(text) < 3_000_000


def test_the_page_of_a_million_points_is_small():
    generator = random.Random(3)
    recorded = History()
    for step in range(50_000):
        for number in range(20):
            recorded.add(f"metric {number}", step, generator.random())
    text, _ = render(report(recorded))
    assert len(text.encode()) < 5_000_000


def test_the_page_of_as_many_curves_as_are_recorded_is_small():
    recorded = History()
    for number in range(3_000):
        for step in range(100):
            recorded.add(f"metric {number} " + "x" * 280, step, math.sin(step) * 1e-17)
    recorded.add("SGD", 0, 0.1, Kind.LEARNING_RATE)
    text, _ = render(report(recorded))
    assert len(text.encode()) < 5_000_000
