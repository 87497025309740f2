"""Makes the page from a ``Report``: one HTML file with everything in it, which requests nothing from any host."""

import json
import math
import os
import time
from html import escape
from string import Template
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple

from lightning_sm._failure import escape_unprintable
from lightning_sm._report.figures import LEFT, RIGHT, figure
from lightning_sm._report.history import MAX_CURVE_POINTS, MAX_POINTS, Attempt, Curve, Kind, thin
from lightning_sm._report.report import Report, Rows

__all__ = ["render"]

_TEMPLATE = os.path.join(os.path.dirname(__file__), "page.html")
_MAX_RESTART_LINES = 50


def render(report: Report) -> str:
    """Return the page.

    Args:
        report: What the page shows.
    """
    limit = min(max(4, MAX_POINTS // max(1, len(report.curves))), MAX_CURVE_POINTS)
    drawn = [_Drawn(curve, *thin(curve.steps, curve.values, limit)) for curve in report.curves]
    sections = [*_curve_sections(drawn, report), *_table_sections(report)]
    with open(_TEMPLATE, encoding="utf-8") as file:
        template = Template(file.read())
    return template.substitute(
        title=_text(report.title),
        outcome=_text(report.outcome.value),
        summary=_text(_summary(report)),
        reason="" if not report.reason else f'<pre class="{report.outcome.value}">{_text(report.reason)}</pre>',
        notes="\n".join(f'<p class="soft">{_text(note)}</p>' for note in report.notes),
        links="".join(f'<a href="#{key}">{_text(heading)}</a>' for key, heading, _, _ in sections),
        sections="\n".join(map(_section, sections)),
        footer="lightning-sm · times are UTC",
        left=LEFT,
        right=RIGHT,
        data=_script_json([[each.steps, [float(f"{value:.6g}") for value in each.values]] for each in drawn]),
    )


class _Drawn(NamedTuple):
    """A curve, and the points of it that are drawn."""

    curve: Curve
    steps: List[int]
    values: List[float]


def _script_json(value: object) -> str:
    """JSON that may stand in a ``script`` element, whatever text is in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")


_Section = Tuple[str, str, str, bool]


def _section(section: _Section) -> str:
    key, heading, body, is_open = section
    opened = " open" if is_open else ""
    return f'<details id="{key}"{opened}><summary><h2>{_text(heading)}</h2></summary>\n{body}\n</details>'


def _curve_sections(drawn: Sequence[_Drawn], report: Report) -> List[_Section]:
    sections: List[_Section] = []
    restarts = [attempt.step for attempt in report.attempts[1:]][-_MAX_RESTART_LINES:]
    for kind in Kind:
        of_kind = [(number, each) for number, each in enumerate(drawn) if each.curve.kind is kind]
        if of_kind:
            cards = "\n".join(_card(number, each, restarts) for number, each in of_kind)
            name = kind.value if len(of_kind) == 1 else f"{kind.value} ({len(of_kind)})"
            key = kind.value.lower().replace(" ", "-")
            sections.append((key, name, f'<div class="grid">{cards}</div>', True))
    if drawn:
        sections.append(("values", "Values", _values(report.curves), len(drawn) <= 12))
    return sections


def _card(number: int, drawn: _Drawn, restarts: Sequence[int]) -> str:
    curve = drawn.curve
    name = _text(curve.name)
    note = f'<p class="soft">{_text(_not_finite(curve))}</p>' if curve.not_finite else ""
    last = f'<p class="soft">last {_number(curve.last)}<span class="at"></span></p>'
    if not drawn.steps:
        return f'<article class="curve" data-name="{name}"><h3>{name}</h3>{last}{note}</article>'
    plot = figure(drawn.steps, drawn.values, restarts)
    return (
        f'<article class="curve" data-name="{name}" data-curve="{number}"><h3>{name}</h3>{last}{note}{plot}</article>'
    )


def _not_finite(curve: Curve) -> str:
    total = curve.count + curve.not_finite
    return (
        f"{curve.not_finite:,} of {total:,} values NaN or infinite, the first at step {curve.first_not_finite:,}; "
        "they are not drawn"
    )


def _values(curves: Sequence[Curve]) -> str:
    head = "".join(f'<th class="number">{name}</th>' for name in ("last", "lowest", "highest", "values"))
    rows = []
    for curve in (curve for kind in Kind for curve in curves if curve.kind is kind):
        numbers = [curve.last, min(curve.values, default=None), max(curve.values, default=None)]
        cells = "".join(f'<td class="number">{_number(number)}</td>' for number in numbers)
        count = f"{curve.count:,}" + (f" + {curve.not_finite:,} not finite" if curve.not_finite else "")
        name = _text(curve.name)
        rows.append(f'<tr data-name="{name}"><td>{name}</td>{cells}<td class="number">{count}</td></tr>')
    return f'<div class="wide"><table><tr><th>name</th>{head}</tr>\n{_lines(rows)}</table></div>'


def _table_sections(report: Report) -> List[_Section]:
    sections: List[_Section] = []
    if report.attempts:
        restarts = len(report.attempts) - 1
        name = "Starts" if not restarts else f"Starts (restarted {'once' if restarts == 1 else f'{restarts} times'})"
        sections.append(("starts", name, _attempts(report.attempts), True))
    for key, name, rows in (
        ("model", "Exported model", report.export),
        ("job", "Job", report.job),
        ("topology", "Topology", report.topology),
    ):
        if rows:
            sections.append((key, name, _pairs(rows) + (_of_another_moment(report) if key == "model" else ""), True))
    if report.routing:
        lines = "".join(f"<tr><td><code>{_text(line)}</code></td></tr>\n" for line in report.routing)
        sections.append(("settings", "SageMaker settings", f'<div class="wide"><table>{lines}</table></div>', True))
    if report.versions:
        sections.append(("versions", "Versions", _pairs(report.versions), True))
    return sections


def _of_another_moment(report: Report) -> str:
    """A note where a metric of the exported model is not the last one of the training."""
    last = {curve.name: curve.last for curve in report.curves if curve.kind is Kind.METRIC}
    rows = dict(report.export)
    shown = {name[len("metrics.") :]: value for name, value in report.export if name.startswith("metrics.")}
    shown.update({rows["monitor"]: rows["score"]} if {"monitor", "score"} <= rows.keys() else {})
    other = [name for name, value in shown.items() if name in last and not _is_close(value, last[name])]
    if not other:
        return ""
    names = ", ".join(f"{name} was {_number(last[name])}" for name in other)
    return f'<p class="soft">{_text(f"Metrics of the exported weights. At the end of the training {names}.")}</p>'


def _is_close(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=1e-5)
    except ValueError:
        return False


def _pairs(rows: Rows) -> str:
    lines = _lines(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f'<div class="wide"><table class="pairs">{lines}</table></div>'


def _attempts(attempts: Sequence[Attempt]) -> str:
    head = '<tr><th>started</th><th>resumed from</th><th class="number">step</th><th class="number">epoch</th></tr>'
    rows = []
    for attempt in attempts:
        source = "from scratch" if attempt.checkpoint is None else attempt.checkpoint
        cells = f"<td>{_time(attempt.started)}</td><td>{_text(source)}</td>"
        numbers = "".join(f'<td class="number">{number:,}</td>' for number in (attempt.step, attempt.epoch))
        rows.append(f"<tr>{cells}{numbers}</tr>")
    return f'<div class="wide"><table>{head}\n{_lines(rows)}</table></div>'


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
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "unknown"


def _number(value: Optional[float]) -> str:
    return "" if value is None else "NaN" if math.isnan(value) else f"{value:.6g}"


def _text(text: str) -> str:
    return escape(escape_unprintable(str(text)), quote=True)
