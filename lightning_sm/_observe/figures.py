"""The figures of a report: SVG that any browser draws by itself, with no library and no script."""

import math
from typing import List, Sequence, Tuple

__all__ = ["LEFT", "RIGHT", "figure"]

#: Where the axis of steps begins and ends, in the units of the figure.
LEFT, RIGHT = 62, 472
_WIDTH, _HEIGHT, _TOP, _BOTTOM = 480, 190, 8, 164
# So few points are marked.
_MARKED = 60


def figure(steps: Sequence[int], values: Sequence[float], restarts: Sequence[int] = ()) -> str:
    """Draw a curve.

    Args:
        steps: The steps, at least one.
        values: The values, which are finite.
        restarts: The steps at which a restarted job resumed, each of which gets a vertical line.
    """
    # Ends that differ by less than their rounding are one value; differences of huge ones must not overflow.
    scale = 10.0 ** max(-300, math.floor(math.log10(max(map(abs, values)) or 1)))
    low, high = _range(min(values) / scale, max(values) / scale)
    first, last = min(steps), max(*steps, min(steps) + 1)

    def x(step: float) -> float:
        return LEFT + (RIGHT - LEFT) * (step - first) / (last - first)

    def y(scaled: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (scaled - low) / (high - low)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" data-first="{first}" data-last="{last}" aria-hidden="true">']
    ticks, digits = _ticks(low, high, 4)
    parts += [
        f'<path class="tick" d="M{LEFT} {y(tick):.1f}H{RIGHT}"/>'
        f'<text x="{LEFT - 5}" y="{y(tick) + 4:.1f}" class="value">{tick * scale:.{digits}g}</text>'
        for tick in ticks
    ]
    parts += [
        f'<text x="{x(tick):.1f}" y="{_BOTTOM + 15}" class="step">{tick:,}</text>'
        for tick in sorted({round(tick) for tick in _ticks(first, last, 5)[0]})
        if first <= tick <= last
    ]
    parts += [
        f'<path class="restart" d="M{x(step):.1f} {_TOP}V{_BOTTOM}"/>' for step in restarts if first <= step <= last
    ]
    points = [(x(step), y(value / scale)) for step, value in zip(steps, values)]
    line = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
    parts.append(f'<polyline class="line" points="{line}"/>')
    if len(points) <= _MARKED:
        marks = "".join(f"M{across:.1f} {down:.1f}h0" for across, down in points)
        parts.append(f'<path class="points" d="{marks}"/>')
    return "".join([*parts, "</svg>"])


def _range(low: float, high: float) -> Tuple[float, float]:
    """The ends of the axis of values; a constant stands in the middle."""
    if high - low <= 1e-12:
        return (low - abs(low) / 10, high + abs(high) / 10) if low else (-1.0, 1.0)
    return low - (high - low) * 0.04, high + (high - low) * 0.04


def _ticks(low: float, high: float, count: int) -> Tuple[List[float], int]:
    """Round numbers between two ends, about ``count`` of them, and the digits that tell them apart."""
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if (high - low) / (factor * power) <= count + 1)
    digits = max(6, math.ceil(math.log10(max(abs(low), abs(high)) / step)) + 1)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)], min(digits, 17)
