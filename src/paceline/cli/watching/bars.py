"""A row of bars that a single outlier does not flatten. Axes: T values, B bars."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array

BARS = 60
"""Most bars: they fit into a terminal of 80 columns."""

LEVELS = "▁▂▃▄▅▆▇"
ABOVE = "█"

ROOM, MOST = 1.2, 3.0
"""The top of the bars is a little above the 95th percentile, to leave room for ordinary scatter, but at most 3 medians:
among few bars, that percentile is an outlier itself."""


def bars(values: Array, width: int = BARS) -> str:
    """Return numbers as a row of bars from 0 to :func:`bars_top`, neighbours averaged if there are too many.

    Values above the top have their own mark.

    >>> bars(np.array([1.0, 2.0, 2.0, np.nan, 2.1, 2.0, 40.0]), width=10)
    '▃▆▆ ▆▆█'
    """
    means_B = _means(values, width)
    top, steps = _top(means_B), len(LEVELS) - 1
    return "".join(
        " " if np.isnan(mean) else ABOVE if mean > top else LEVELS[round(mean / top * steps)] for mean in means_B
    )


def bars_top(values: Array, width: int = BARS) -> float:
    """Return the value at the top of the bars; NaN if nothing is known.

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
