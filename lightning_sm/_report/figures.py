"""The figures of a report: drawn by Bokeh in the reader's browser, from a template that all curves share."""

import json
from dataclasses import dataclass
from typing import Any, Mapping, Sequence

__all__ = ["STEPS", "VALUES", "Figures", "load_figures"]

#: What stands in a template for the steps and the values of a curve, as JSON.
STEPS, VALUES = '["@steps"]', '["@values"]'

# Readable on a light and on a dark background, so that one figure serves both.
_TEXT, _GRID, _LINE, _RESTART = "#808890", "#80889040", "#3b82d6", "#d97706"
_HEIGHT = 220


@dataclass(frozen=True)
class Figures:
    """What draws the curves.

    Args:
        script: The library's JavaScript.
        version: The library and its version.
        templates: Figures as JSON: ``line`` for many points, ``points`` for few, which also marks each of them.
    """

    script: str
    version: str
    templates: Mapping[str, str]


def load_figures(restarts: Sequence[int] = ()) -> Figures:
    """Import Bokeh and make the templates.

    Args:
        restarts: The steps at which a restarted job resumed, each of which gets a vertical line.

    Raises:
        ImportError: Bokeh is not installed.
        Exception: Whatever an installed Bokeh raises with a NumPy that it does not fit.
    """
    import bokeh
    from bokeh.resources import Resources

    templates = {name: _template(restarts, marks=name == "points") for name in ("line", "points")}
    script = Resources(mode="inline", components=["bokeh"]).js_raw
    return Figures("\n".join(script), f"Bokeh {bokeh.__version__}", templates)


def _template(restarts: Sequence[int], *, marks: bool) -> str:
    from bokeh.embed import json_item
    from bokeh.models import ColumnDataSource, HoverTool, Span
    from bokeh.plotting import figure

    source = ColumnDataSource({"step": json.loads(STEPS), "value": json.loads(VALUES)})
    plot = figure(height=_HEIGHT, sizing_mode="stretch_width", tools="pan,box_zoom,reset", active_drag="box_zoom")
    line = plot.line("step", "value", source=source, line_width=1.5, line_color=_LINE)
    if marks:
        plot.scatter("step", "value", source=source, size=5, fill_color=_LINE, line_color=_LINE)
    tooltips = [("step", "@step{0,0}"), ("value", "@value{%.6g}")]
    plot.add_tools(HoverTool(renderers=[line], tooltips=tooltips, formatters={"@value": "printf"}, mode="vline"))
    for step in restarts:
        span = Span(location=step, dimension="height", line_color=_RESTART, line_dash="dashed", line_width=1)
        plot.add_layout(span)
    _style(plot)
    return json.dumps(json_item(plot))


def _style(plot: Any) -> None:
    plot.background_fill_alpha = plot.border_fill_alpha = 0.0
    plot.outline_line_color = None
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.toolbar_location = "above"
    plot.min_border = 4
    plot.xgrid.grid_line_color = None
    plot.ygrid.grid_line_color = _GRID
    plot.x_range.range_padding = 0.02
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.axis_label_text_color = axis.major_label_text_color = _TEXT
        axis.axis_line_color = axis.major_tick_line_color = _GRID
        axis.minor_tick_line_color = None
        axis.axis_label_text_font_style = "normal"
    plot.xaxis.axis_label = "step"
