"""Makes the page from a ``Report``: one HTML file with everything in it, which requests nothing from any host."""

import json
import math
import os
import time
from html import escape
from string import Template
from typing import Callable, Iterable, Iterator, Optional, Sequence, Tuple

from lightning_sm._failure import REDACTED, escape_unprintable, is_secret_name
from lightning_sm._observe.figures import LEFT, RIGHT, figure
from lightning_sm._observe.history import Attempt, Curve, Kind
from lightning_sm._observe.report import Report, Rows

__all__ = ["render"]

_TEMPLATE = os.path.join(os.path.dirname(__file__), "page.html")
_MAX_RESTART_LINES = 50
# Values are shown without being asked for if there are not more.
_FEW = 12

# The identifier of a section, its heading, its content, and whether it is shown at once.
_Section = Tuple[str, str, str, bool]


def render(report: Report, redact: Callable[[str], str]) -> str:
    """Return the page.

    Args:
        report: What the page shows.
        redact: Removes the secrets from a text.
    """
    page, curves = _Page(redact), report.history.curves()
    found = (*page.curves(curves, report.history.attempts), *page.tables(report, curves))
    sections = [section for section in found if section[2]]
    left_out = report.history.num_left_out
    note = f"{left_out} logged names are not shown: too many, or no numbers." if left_out else ""
    with open(_TEMPLATE, encoding="utf-8") as file:
        template = Template(file.read())
    return template.substitute(
        title=page.text(report.title),
        outcome=report.outcome.value,
        summary=_summary(report),
        reason=f'<pre class="{report.outcome.value}">{page.text(report.reason)}</pre>' if report.reason else "",
        notes=_soft(note),
        links="".join(f'<a href="#{key}">{heading}</a>' for key, heading, _, _ in sections),
        sections="\n".join(
            f'<details id="{key}"{" open" if is_open else ""}><summary><h2>{heading}</h2></summary>\n{body}\n</details>'
            for key, heading, body, is_open in sections
        ),
        footer="lightning-sm · times are UTC",
        left=LEFT,
        right=RIGHT,
        data=_script_json([[curve.steps, [float(f"{value:.6g}") for value in curve.values]] for curve in curves]),
    )


def _script_json(value: object) -> str:
    """JSON that may stand in a ``script`` element, whatever text is in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")


class _Page:
    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact

    def text(self, text: object) -> str:
        """Text of anybody's, without secrets, as HTML."""
        return _html(self._redact(str(text)))

    def curves(self, curves: Sequence[Curve], attempts: Sequence[Attempt]) -> Iterator[_Section]:
        """The figures of each kind, and a table of all values."""
        restarts = [attempt.step for attempt in attempts[1:]][-_MAX_RESTART_LINES:]
        for kind in Kind:
            cards = [self._card(index, curve, restarts) for index, curve in enumerate(curves) if curve.kind is kind]
            if cards:
                heading = kind.value if len(cards) == 1 else f"{kind.value} ({len(cards)})"
                body = f'<div class="grid">{_lines(cards)}</div>'
                yield kind.value.lower().replace(" ", "-"), heading, body, True
        rows = [self._values(curve) for kind in Kind for curve in curves if curve.kind is kind]
        head = ("name", "last", "lowest", "highest", "values")
        yield "values", "Values", _table(rows, head), len(curves) <= _FEW

    def _card(self, index: int, curve: Curve, restarts: Sequence[int]) -> str:
        name, note = _html(curve.name), ""
        if curve.not_finite:
            counts = f"{curve.not_finite:,} of {curve.count + curve.not_finite:,} values NaN or infinite"
            note = f"{counts}, the first at step {curve.first_not_finite:,}; they are not drawn"
        plot = figure(curve.steps, curve.values, restarts) if curve.steps else ""
        drawn = f' data-curve="{index}"' if plot else ""
        last = f'<p class="soft">last {_number(curve.last)}<span class="at"></span></p>'
        return f'<article class="curve" data-name="{name}"{drawn}><h3>{name}</h3>{last}{_soft(note)}{plot}</article>'

    def _values(self, curve: Curve) -> str:
        count = f"{curve.count:,}" + (f" + {curve.not_finite:,} not finite" if curve.not_finite else "")
        extremes = (min(curve.values, default=None), max(curve.values, default=None))
        numbers = [*map(_number, (curve.last, *extremes)), count]
        name = _html(curve.name)
        return f'<tr data-name="{name}"><td>{name}</td>{_cells(numbers)}</tr>'

    def tables(self, report: Report, curves: Sequence[Curve]) -> Iterator[_Section]:
        """What is known of starts, model, job, processes, settings and versions."""
        restarts = len(report.history.attempts) - 1
        times = "" if restarts < 1 else f" (restarted {'once' if restarts == 1 else f'{restarts} times'})"
        starts = [
            f"<tr><td>{_time(each.started)}</td><td>{self.text(each.checkpoint or 'from scratch')}</td>"
            f"{_cells([f'{each.step:,}', f'{each.epoch:,}'])}</tr>"
            for each in report.history.attempts
        ]
        settings = [f"<tr><td><code>{self.text(line)}</code></td></tr>" for line in report.settings]
        head = ("started", "resumed from", "step", "epoch")
        yield "starts", f"Starts{times}", _table(starts, head, numbers=2), True
        yield "model", "Exported model", self._pairs(report.export) + self._differing(report.export, curves), True
        yield "job", "Job", self._pairs(report.job), True
        yield "topology", "Topology", self._pairs(report.topology), True
        yield "settings", "SageMaker settings", _table(settings), True
        yield "versions", "Versions", self._pairs(report.versions), True

    def _pairs(self, rows: Rows) -> str:
        """A table of names and texts. A name may say that its text is a secret, of whatever form."""
        shown = ((name, REDACTED if is_secret_name(name) else value) for name, value in rows)
        lines = [f"<tr><th>{self.text(name)}</th><td>{self.text(value)}</td></tr>" for name, value in shown]
        return _table(lines, kind="pairs")

    def _differing(self, export: Rows, curves: Sequence[Curve]) -> str:
        """A note where a metric of the exported model is not the last one of the training."""
        rows = dict(export)
        shown = {name[len("metrics.") :]: value for name, value in export if name.startswith("metrics.")}
        shown.update({rows["monitor"]: rows["score"]} if {"monitor", "score"} <= rows.keys() else {})
        last = {curve.name: curve.last for curve in curves if curve.kind is Kind.METRIC}
        other = [
            name
            for name, value in shown.items()
            if name in last and not math.isclose(float(value), last[name], rel_tol=1e-5)
        ]
        names = ", ".join(f"{_html(name)} was {_number(last[name])}" for name in other)
        return _soft(f"Metrics of the exported weights. At the end of the training {names}." if names else "")


def _table(rows: Sequence[str], head: Sequence[str] = (), *, numbers: int = 4, kind: str = "plain") -> str:
    """A table with an optional head, whose last columns hold numbers; nothing without rows."""
    if not rows:
        return ""
    first = len(head) - numbers
    cells = "".join(
        f'<th class="{"number" if index >= first else "text"}">{name}</th>' for index, name in enumerate(head)
    )
    return f'<div class="wide"><table class="{kind}">{f"<tr>{cells}</tr>" if head else ""}{_lines(rows)}</table></div>'


def _cells(numbers: Iterable[str]) -> str:
    return "".join(f'<td class="number">{number}</td>' for number in numbers)


def _html(text: str) -> str:
    return escape(escape_unprintable(text), quote=True)


def _soft(note: str) -> str:
    return f'<p class="soft">{note}</p>' if note else ""


def _lines(rows: Iterable[str]) -> str:
    return "".join(f"{row}\n" for row in rows)


def _summary(report: Report) -> str:
    epochs = "1 epoch" if report.epochs == 1 else f"{report.epochs:,} epochs"
    steps = "1 optimizer step" if report.steps == 1 else f"{report.steps:,} optimizer steps"
    return f"{epochs}, {steps}, {_duration(report.seconds)} · ended {_time(report.ended)}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.1f} s"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _number(value: Optional[float]) -> str:
    return "" if value is None else "NaN" if math.isnan(value) else f"{value:.6g}"
