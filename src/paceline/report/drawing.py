"""Charts as paths in a box of 1000 x 300, from a page's data: what the template needs to draw them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from paceline._text import duration, percent

UNKNOWN = "not known"


def as_text(value: Any, style: str = "text") -> str:
    """Return a value as text, in one of the ways of ``WAYS``; an unknown number is *not known*.

    Examples
    --------
    >>> as_text(0.1234, "percent"), as_text(0.0263, "seconds"), as_text(5400.0, "seconds"), as_text(None, "times")
    ('12%', '26.3 ms', '90 min', 'not known')
    >>> as_text([0.61, 0.65, 0.7], "range"), as_text(12345, "count"), as_text("gpu0")
    ('0.650 (0.610 to 0.700)', '12,345', 'gpu0')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    return WAYS[style](value)


def _format_range(value: tuple[float | None, ...]) -> str:
    low, middle, high = (as_text(one, "ratio") for one in value)
    return f"{middle} ({low} to {high})" if low != UNKNOWN else middle


WAYS: Mapping[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,.0f}",
    "number": lambda value: f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}",
    "percent": percent,
    "ratio": lambda value: f"{value:.3f}",
    "times": lambda value: f"{value:.2f}x",
    "seconds": duration,
    "range": _format_range,
}
"""Ways to show a value; a range is its low end, its middle and its high end."""


def answer(question: str, headline: str, *sentences: str) -> dict[str, str]:
    """Return one row of a verdict: what it answers, the answer in a word or a figure, and its sentences."""
    return {"asks": question, "headline": headline, "text": " ".join(sentences)}


CHART_WIDTH = 1000.0
GANTT_ROW_HEIGHT = 22.0
"""Height of a row of a Gantt chart."""

Values = Sequence[float | None]


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers from ``low`` to ``high``, about so many.

    >>> ticks(0.0, 48.7), ticks(0.021, 0.026, 3)
    ([0.0, 10.0, 20.0, 30.0, 40.0], [0.022, 0.024, 0.026])
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.7 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{k * step:.12g}") for k in range(first, last + 1)]


def line_chart(chart: Mapping[str, Any]) -> dict[str, Any]:
    """Return the paths, ticks and words of a chart of lines."""
    x_values = chart["x"]["values"]
    left, right = _x_limits(x_values)
    low, high = _y_limits(
        [one["values"] for one in chart["lines"]] + [one[end] for one in chart["bands"] for end in ("low", "high")]
    )
    axis_limits = (left, right, low, high)
    return {
        "lines": [{**one, "path": _line_path(x_values, one["values"], axis_limits)} for one in chart["lines"]],
        "bands": [
            {**one, "path": _band_path(x_values, one["low"], one["high"], axis_limits)} for one in chart["bands"]
        ],
        "across": [(percent_along(value, left, right), f"{value:,.12g}") for value in ticks(left, right)],
        "up": [(percent_along(value, low, high), f"{value:,.12g}") for value in ticks(low, high, 4)],
        "words": f"{chart['title']}. " + " ".join(_describe_line(one, chart["unit"]) for one in chart["lines"]),
        "from": left,
        "to": right,
        "step": (right - left) / max(len(x_values) - 1, 1),
    }


def gantt_chart(chart: Mapping[str, Any]) -> dict[str, Any]:
    """Return the boxes, ticks and words of a Gantt chart, in milliseconds or seconds."""
    until = chart["until"] or 1.0
    scale, unit = (1e3, "ms") if until < 1.0 else (1.0, "s")
    rows = [
        {
            "name": row["name"],
            "waits": row["waits"],
            "top": GANTT_ROW_HEIGHT * k,
            "boxes": [[round(CHART_WIDTH * value / until, 2) for value in bar] for bar in row["bars"]],
        }
        for k, row in enumerate(chart["rows"])
    ]
    waits = (f"{row['name']} waits {as_text(row['waits'], 'percent')}." for row in rows)
    return {
        "rows": rows,
        "high": GANTT_ROW_HEIGHT * len(rows),
        "unit": unit,
        "across": [(percent_along(v, 0.0, until * scale), f"{v:,.12g}") for v in ticks(0.0, until * scale)],
        "words": f"{chart['title']}. " + " ".join(waits),
        "from": 0.0,
        "to": until * scale,
        "step": until * scale / 200,
        "scale": scale,
    }


def range_scale(rows: Sequence[Sequence[Any]], column: int) -> dict[str, Any]:
    """Return the scale of a column of ranges: where each end lies in percent, and where 1 does."""
    known = [value for row in rows for value in row[column] if value is not None]
    low, high = min([1.0, *known]), max([1.0, *known])
    low, high = low - 0.04 * (high - low or 1.0), high + 0.04 * (high - low or 1.0)
    return {"low": low, "high": high, "one": percent_along(1.0, low, high)}


def percent_along(value: float, low: float, high: float) -> float:
    """Return where a value lies between two ends, in percent."""
    return round(100 * (value - low) / (high - low), 3)


def _x_limits(x_values: Values) -> tuple[float, float]:
    known = [value for value in x_values if value is not None]
    left, right = (known[0], known[-1]) if known else (0.0, 1.0)
    half = max(0.5, 1e-9 * abs(left))  # of a single value, which may be too large for a step of 1
    return (left, right) if right > left else (left - half, left + half)


def _y_limits(series: Iterable[Values]) -> tuple[float, float]:
    """Return the ends of the upward axis: it begins at 0 unless all values lie far above."""
    known = [value for row in series for value in row if value is not None]
    if not known:
        return 0.0, 1.0
    low, high = min(known), max(known)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return (0.0 if 0 <= low < high / 2 or low == high >= 0 else low - margin), high + margin


def _line_path(x_values: Values, values: Values, axis_limits: tuple[float, ...]) -> str:
    """Return a path through the known values; it is interrupted where one is not known."""
    pieces = [[_format_point(x, y, axis_limits) for x, y in points] for points in _known_segments(x_values, values)]
    subpaths = [piece if len(piece) > 1 else [f"{piece[0]}h.01"] for piece in pieces]  # a lone point is a dot
    return "".join(f"M{'L'.join(piece)}" for piece in subpaths)


def _band_path(x_values: Values, low: Values, high: Values, axis_limits: tuple[float, ...]) -> str:
    """Return the outline of the area between two lines, closed wherever one is not known."""
    outlines = (
        [_format_point(x, y, axis_limits) for x, y, _ in points]
        + [_format_point(x, y, axis_limits) for x, _, y in reversed(points)]
        for points in _known_segments(x_values, low, high)
    )
    return "".join(f"M{'L'.join(outline)}Z" for outline in outlines)


def _known_segments(*rows: Values) -> Iterator[list[Any]]:
    """Yield points, one number of each row, that follow each other without an unknown number."""
    for is_known, points in groupby(zip(*rows, strict=True), key=lambda point: None not in point):
        if is_known:
            yield list(points)


def _format_point(x: float, y: float, axis_limits: tuple[float, ...]) -> str:
    left, right, low, high = axis_limits
    across, up = CHART_WIDTH * (x - left) / (right - left), 300.0 * (high - y) / (high - low)
    return f"{round(across, 1):g} {round(up, 1):g}"


def _describe_line(line: Mapping[str, Any], unit: str) -> str:
    known = [value for value in line["values"] if value is not None]
    if not known:
        return f"{line['name']}: not known."
    middle = sum(known) / len(known)
    return f"{line['name']}: {middle:,.3g} {unit} in the mean, from {min(known):,.3g} to {max(known):,.3g}."
