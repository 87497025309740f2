"""The plot of a plan: throughput over hosts, a curve for each option, as SVG that any browser draws by itself."""

import math
from html import escape
from typing import List, Mapping, Sequence

from lightning_sm._plan.model import Prediction

__all__ = ["plot"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 860, 420, 70, 44, 500, 366
# Told apart by colour-blind readers: https://jfly.uni-koeln.de/color/
_COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777")


def plot(title: str, unit: str, scale: float, curves: Mapping[str, Sequence[Prediction]]) -> str:
    """Return the SVG.

    Args:
        title: What is planned, in a line.
        unit: What the vertical axis shows, such as ``samples/s``.
        scale: The throughput of one host in that unit.
        curves: The predictions of each option, by its name. Dashed is what no network would reach.
    """
    hosts = [each.hosts for each in next(iter(curves.values()))]
    most = max(hosts)

    def x(count: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * count / most

    def y(speedup: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * speedup / most

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{escape(title)}</text>',
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 40}" text-anchor="middle">hosts</text>',
        f'<text transform="translate(16 {_BOTTOM}) rotate(-90)">{escape(unit)}</text>',
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#444"/>',
        f'<path d="M{x(0)} {y(0)}L{x(most)} {y(most)}" stroke="#999" stroke-dasharray="4 4"/>',
    ]
    for tick in _ticks(most * scale):
        down = y(tick / scale)
        parts += [
            f'<path d="M{_LEFT} {down:.1f}H{_RIGHT}" stroke="#ddd"/>',
            f'<text x="{_LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{tick:,.6g}</text>',
        ]
    written = -1000.0
    for count in sorted(set(hosts)):
        if x(count) - written >= 20:  # the numbers of few hosts stand close together
            written = x(count)
            parts.append(f'<text x="{written:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{count}</text>')
    for number, (name, predictions) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        points = [(x(each.hosts), y(each.speedup)) for each in predictions]
        line = _TOP + 12 + 22 * number
        parts += [
            *_curve(points, color),
            f'<path d="M{_RIGHT + 16} {line - 4}h18" stroke="{color}" stroke-width="2"/>',
            f'<text x="{_RIGHT + 40}" y="{line}" font-size="11">{escape(name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _ticks(most: float) -> List[float]:
    """Round numbers from 0 to ``most``, at most six of them."""
    power = 10.0 ** math.floor(math.log10(most / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if most / (factor * power) <= 5)
    return [number * step for number in range(math.floor(most / step) + 1)]


def _curve(points: Sequence[Sequence[float]], color: str) -> List[str]:
    line = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
    marks = "".join(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" fill="{color}"/>' for across, down in points)
    return [f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>', marks]
