"""Bars with a mark for what is possible, as SVG that any browser draws by itself."""

from html import escape
from typing import List, NamedTuple, Sequence, Tuple

__all__ = ["Bar", "draw"]

_LEFT, _RIGHT, _WIDTH, _LINE = 230, 640, 760, 22
# Told apart by colour-blind readers: https://jfly.uni-koeln.de/color/
_BAR, _MARK = "#56b4e9", "#d55e00"


class Bar(NamedTuple):
    """A bar, from the least to the greatest value a thin line, and the mark."""

    name: str
    value: float
    least: float
    most: float
    mark: float


def draw(title: str, unit: str, panels: Sequence[Tuple[str, Sequence[Bar]]]) -> str:
    """Return the SVG: below each other the panels, each with its name, a scale of its own and its bars."""
    parts = [f'<text x="16" y="24" font-size="14">{escape(title)}</text>']
    down = 34
    for name, bars in panels:
        parts.append(f'<text x="16" y="{down + 22}" font-weight="bold">{escape(name)}</text>')
        down += 34
        most = max(max(each.most, each.mark) for each in bars)
        for bar in bars:
            parts.extend(_bar(bar, unit, (_RIGHT - _LEFT) / most, down))
            down += _LINE
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {down + 14}" width="{_WIDTH}" '
        f'height="{down + 14}" font-family="sans-serif" font-size="12">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{down + 14}" fill="#fff"/>', *parts, "</svg>", ""])


def _bar(bar: Bar, unit: str, scale: float, down: float) -> List[str]:
    middle, end = down + _LINE / 2, _LEFT + scale * max(bar.most, bar.mark)
    least, most, mark = (_LEFT + scale * each for each in (bar.least, bar.most, bar.mark))
    return [
        f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{_LEFT}" y="{down + 4}" width="{scale * bar.value:.1f}" height="{_LINE - 8}" fill="{_BAR}"/>',
        f'<path d="M{least:.1f} {middle}H{most:.1f}" stroke="#444"/>',
        f'<path d="M{mark:.1f} {down + 1}v{_LINE - 2}" stroke="{_MARK}" stroke-width="2"/>',
        f'<text x="{end + 8:.1f}" y="{middle + 4}">{bar.value:,.0f} {escape(unit)}</text>',
    ]
