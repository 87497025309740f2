"""Reports of trainings that never were, and a reader of their pages."""

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser

from lightning_sm._observe.history import Attempt, History, Kind
from lightning_sm._observe.report import Outcome, Report

__all__ = ["Page", "history", "report"]

_VOID = {"meta", "link", "input", "br", "hr", "img"}


def history(*names, steps=100, every=10, restarts=()):
    """A history in which every curve falls."""
    recorded = History()
    recorded.add_attempt(Attempt(1.8e9))
    for step in restarts:
        recorded.add_attempt(Attempt(1.8e9 + step, f"step={step}.ckpt", step, 1))
    for step in range(0, steps, every):
        for name in names:
            recorded.add(name, step, math.exp(-step / steps))
        recorded.add("SGD", step, 0.1, Kind.LEARNING_RATE)
        recorded.add("samples per second, all processes", step, 100.0 + step, Kind.THROUGHPUT)
    return recorded


def report(recorded=None, **fields):
    recorded = history("loss") if recorded is None else recorded
    made = Report(
        Outcome.COMPLETED,
        title="job-1",
        ended=1.8e9,
        seconds=61.0,
        epochs=1,
        steps=100,
        job=(("name", "job-1"),),
        topology=(("launcher", "torchrun"),),
        settings=("trainer.num_nodes = 2 ← resourceconfig.json",),
        versions=(("torch", "2.0"),),
        history=recorded,
        export=(("file", "model.pt"),),
    )
    return replace(made, **fields)


class Page(HTMLParser):
    """Reads a page as a browser would, and fails where elements do not match."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text, self.styles = [], [], [], []
        self.scripts, self.rows = [], []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        inner = self.open[-1] if self.open else None
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data
        {"script": self.scripts, "style": self.styles}.get(inner, self.text).append(data)

    @property
    def shown(self):
        return " ".join(" ".join(self.text).split())

    @property
    def values(self):
        """The table of values: last, lowest, highest and number by name."""
        return {row[0]: row[1:] for row in self.rows if len(row) == 5}

    @property
    def headings(self):
        return [attributes["id"] for tag, attributes in self.elements if tag == "details"]

    @property
    def cards(self):
        return [attributes for tag, attributes in self.elements if tag == "article"]

    @property
    def lines(self):
        """The points of each curve that is drawn."""
        found = [attributes["points"].split() for tag, attributes in self.elements if tag == "polyline"]
        return [[tuple(map(float, point.split(","))) for point in points] for points in found]

    @property
    def data(self):
        return json.loads(self.scripts[0])

    @property
    def requests(self):
        """What the page would load."""
        found = [
            value
            for _, attributes in self.elements
            for name, value in attributes.items()
            if name in ("src", "href", "action", "srcset", "poster", "data") and not value.startswith(("#", "data:"))
        ]
        return found + re.findall(r"@import|url\((?!data:)", "".join(self.styles))
