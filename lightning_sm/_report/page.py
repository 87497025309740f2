"""Makes the page from a ``Report``: one HTML file with everything in it, which requests nothing from any host."""

import json
import math
import os
import time
from html import escape
from string import Template
from typing import Iterable, List, Optional, Sequence, Tuple

from lightning_sm._failure.reason import escape_unprintable
from lightning_sm._report.figures import STEPS, VALUES, Figures, load_figures
from lightning_sm._report.history import MAX_CURVE_POINTS, MAX_POINTS, Attempt, Curve, Kind, thin
from lightning_sm._report.report import Report, Rows

__all__ = ["NO_FIGURES", "render"]

#: What the page and the log say where the plotting library is missing.
NO_FIGURES = "The report has no curves, only their tables: {}. HINT: pip install 'lightning-sm[report]'."
_TEMPLATE = os.path.join(os.path.dirname(__file__), "page.html")
_MAX_RESTART_LINES = 50


def render(report: Report) -> Tuple[str, Optional[str]]:
    """Return the page, and why it has no curves, if it has none.

    Args:
        report: What the page shows.
    """
    figures, problem = _figures(report)
    notes = [*report.notes, *([] if problem is None else [problem])]
    sections = [*_curve_sections(report.curves, with_plots=figures is not None), *_table_sections(report)]
    with open(_TEMPLATE, encoding="utf-8") as file:
        template = Template(file.read())
    drawn_by = "" if figures is None else f" · curves drawn by {figures.version}"
    page = template.substitute(
        title=_text(report.title),
        outcome=_text(report.outcome.value),
        summary=_text(_summary(report)),
        reason="" if not report.reason else f'<pre class="{report.outcome.value}">{_text(report.reason)}</pre>',
        notes="\n".join(f'<p class="soft">{_text(note)}</p>' for note in notes),
        links="".join(f'<a href="#{key}">{_text(heading)}</a>' for key, heading, _, _ in sections),
        sections="\n".join(map(_section, sections)),
        footer=_text(f"lightning-sm{drawn_by} · times are UTC"),
        data=_script_json(_data(report.curves, figures)),
        library="" if figures is None else figures.script.replace("</script", "<\\/script"),
    )
    return page, problem


def _figures(report: Report) -> Tuple[Optional[Figures], Optional[str]]:
    if not any(curve.steps for curve in report.curves):
        return None, None
    restarts = [attempt.step for attempt in report.attempts[1:]][-_MAX_RESTART_LINES:]
    try:
        return load_figures(restarts), None
    except ImportError:
        return None, NO_FIGURES.format("Bokeh is not installed")
    except Exception as error:  # an old Bokeh with a new NumPy raises AttributeError, for one
        return None, NO_FIGURES.format(f"Bokeh cannot be used ({type(error).__name__}: {error})")


def _data(curves: Sequence[Curve], figures: Optional[Figures]) -> object:
    if figures is None:
        return {"curves": []}
    limit = max(4, MAX_POINTS // max(1, len(curves)))
    drawn = []
    for curve in curves:
        steps, values = thin(curve.steps, curve.values, min(limit, MAX_CURVE_POINTS))
        drawn.append({"steps": steps, "values": [float(f"{value:.6g}") for value in values]})
    return {"curves": drawn, "templates": figures.templates, "steps": STEPS, "values": VALUES}


def _script_json(value: object) -> str:
    """JSON that may stand in a ``script`` element, whatever text is in it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")


_Section = Tuple[str, str, str, bool]


def _section(section: _Section) -> str:
    key, heading, body, is_open = section
    opened = " open" if is_open else ""
    return f'<details id="{key}"{opened}><summary><h2>{_text(heading)}</h2></summary>\n{body}\n</details>'


def _curve_sections(curves: Sequence[Curve], *, with_plots: bool) -> List[_Section]:
    sections: List[_Section] = []
    numbered = list(enumerate(curves))
    for kind in Kind:
        of_kind = [(number, curve) for number, curve in numbered if curve.kind is kind]
        if of_kind and with_plots:
            cards = "\n".join(_card(number, curve) for number, curve in of_kind)
            name = kind.value if len(of_kind) == 1 else f"{kind.value} ({len(of_kind)})"
            key = kind.value.lower().replace(" ", "-")
            sections.append((key, name, f'<div class="grid">{cards}</div>', True))
    if curves:
        sections.append(("values", "Values", _values(curves), not with_plots or len(curves) <= 12))
    return sections


def _card(number: int, curve: Curve) -> str:
    name = _text(curve.name)
    note = f'<p class="soft">{_text(_not_finite(curve))}</p>' if curve.not_finite else ""
    last = f'<p class="soft">last {_number(curve.last)}</p>'
    plot = f'<div class="plot" id="plot-{number}"></div>' if curve.steps else ""
    drawn = f' data-curve="{number}"' if curve.steps else ""
    return f'<article class="curve" data-name="{name}"{drawn}><h3>{name}</h3>{last}{note}{plot}</article>'


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
            sections.append((key, name, _pairs(rows), True))
    if report.routing:
        lines = "".join(f"<tr><td><code>{_text(line)}</code></td></tr>\n" for line in report.routing)
        sections.append(("settings", "SageMaker settings", f'<div class="wide"><table>{lines}</table></div>', True))
    if report.versions:
        sections.append(("versions", "Versions", _pairs(report.versions), True))
    return sections


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
