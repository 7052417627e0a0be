"""A row of bars that one outlier does not flatten. Axes: T values, B bars."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array

BARS = 60
"""So many bars at most: they fit into a terminal of 80 columns."""

LEVELS = "▁▂▃▄▅▆▇"
ABOVE = "█"

ROOM, MOST = 1.2, 3.0
"""Bars end a little above the 95th percentile, so that ordinary scatter has room, and at 3 medians in any case: among
few bars that percentile is an outlier itself."""


def bars(values: Array, width: int = BARS) -> str:
    """Return numbers as a row of bars from 0 to :func:`bars_top`, neighbours averaged where there are too many.

    What lies above the top has a mark of its own.

    >>> bars(np.array([1.0, 2.0, 2.0, np.nan, 2.1, 2.0, 40.0]), width=10)
    '▃▆▆ ▆▆█'
    """
    means_B = _means(values, width)
    top, steps = _top(means_B), len(LEVELS) - 1
    return "".join(
        " " if np.isnan(mean) else ABOVE if mean > top else LEVELS[round(mean / top * steps)] for mean in means_B
    )


def bars_top(values: Array, width: int = BARS) -> float:
    """Return the number at which the bars end; NaN where nothing is known.

    >>> bars_top(np.array([1.0, 2.0, 2.0, np.nan, 2.1, 2.0, 40.0]), width=10)
    2.52
    """
    return _top(_means(values, width))


def _means(values: Array, width: int) -> list[float]:
    parts = np.array_split(values, min(width, len(values)))
    return [float(part[np.isfinite(part)].mean()) if np.isfinite(part).any() else np.nan for part in parts]


def _top(means_B: list[float]) -> float:
    known = [mean for mean in means_B if np.isfinite(mean)]
    if not known:
        return float("nan")
    usual = float(np.quantile(known, 0.95, method="lower"))
    return min(max(known), ROOM * usual, MOST * float(np.median(known))) or 1.0
