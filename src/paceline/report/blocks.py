"""Parts of a page as plain data: sections, tables, charts of lines, and Gantt charts. Axes: T iterations, W workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, mean
from paceline._wording import count

ROWS = 20
"""Rows of a table that the page shows; the JSON beside it holds all."""

POINTS = 300
"""A line over more iterations than this is drawn as the means of this many pieces."""

NAMED = 6
"""Most workers with a line of their own; the others are a band."""


MANY = 20
"""Workers of which a band leaves out the outer tenth."""


def section(title: str, about: str, *blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section: its heading, a sentence on how to read it, and its tables and charts."""
    return {"title": title, "about": about, "blocks": list(blocks)}


def table(
    caption: str, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], *, note: str = ""
) -> dict[str, Any]:
    """Return a table: columns with the way in which each is shown, and rows of values, the most important first."""
    heads = [{"name": name, "how": how} for name, how in columns]
    return {"block": "table", "caption": caption, "columns": heads, "rows": [list(row) for row in rows], "note": note}


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart.

    Parameters
    ----------
    name
        Its name in the legend.
    values
        Its values along the chart, ``[T]``; NaN leaves a gap.
    colour
        Its colour, 0 to 5; -1 is grey. Each colour has a pattern of dashes, for those who do not see it.
    """

    name: str
    values: ArrayLike
    colour: int


@dataclass(frozen=True)
class ChartBand:
    """An area between two values along a chart, ``[T]`` each."""

    name: str
    low: ArrayLike
    high: ArrayLike
    colour: int = -1


def lines(
    title: str,
    about: str,
    along: NDArray[Any],
    drawn: Sequence[ChartLine],
    *,
    x: str,
    unit: str,
    bands: Sequence[ChartBand] = (),
) -> dict[str, Any]:
    """Return a chart of lines over ``along``, ``[T]``; of many iterations, means of neighbours.

    Parameters
    ----------
    title, about
        Its title, and a sentence on how to read it.
    along
        Positions of the values, ascending.
    drawn, bands
        Lines, the most important last, and areas behind them.
    x, unit
        What runs along the chart, and the unit of the values.
    """
    each = -(-len(along) // POINTS)
    thinned = f" Each point is the mean of {each} neighbours." if each > 1 else ""
    return {
        "block": "lines",
        "title": title,
        "about": about + thinned,
        "x": {"name": x, "values": _thin(along)},
        "unit": unit,
        "lines": [{"name": one.name, "colour": one.colour, "values": _thin(one.values)} for one in drawn],
        "bands": [
            {"name": one.name, "colour": one.colour, "low": _thin(one.low), "high": _thin(one.high)} for one in bands
        ],
    }


def of_fleet(values_TW: Array, workers: Sequence[str], first: Sequence[int]) -> tuple[list[ChartLine], list[ChartBand]]:
    """Return lines of some workers, and a band where all others lie, or nine tenths of many.

    >>> names = [f"gpu{k}" for k in range(9)]
    >>> drawn, bands = of_fleet(np.ones((4, 9)), names, [8, 7])
    >>> [line.name for line in drawn], [band.name for band in bands]
    (['gpu8', 'gpu7'], ['7 others'])
    """
    own = list(first)[:NAMED]
    others = [w for w in range(len(workers)) if w not in own]
    drawn = [ChartLine(named(workers[w]), values_TW[:, w], colour) for colour, w in enumerate(own)]
    if not others:
        return drawn, []
    share = "90 % of " if len(others) >= MANY else ""
    low, high = _quantiles(values_TW[:, others], (0.05, 0.95) if share else (0.0, 1.0))
    return drawn, [ChartBand(f"{share}{count(len(others), 'other')}", low, high)]


def gantt(
    title: str,
    about: str,
    workers: Sequence[str],
    seconds_KW: Array,
    *,
    first: Sequence[int],
    until: float | None = None,
) -> dict[str, Any]:
    """Return who computed and who waited in a few iterations, on one row a worker.

    Parameters
    ----------
    title, about
        Its title, and a sentence on how to read it.
    workers
        The fleet.
    seconds_KW
        Time of each worker in K iterations that follow each other; NaN where it did not report.
    first
        The workers with a row of their own; one more row is the median of all others.
    until
        Where the time axis ends, in seconds, so that two charts can be compared; by default where the last bar does.
    """
    ends_K = np.cumsum(np.fmax.reduce(seconds_KW, axis=1))
    begins_K = np.concatenate([[0.0], ends_K[:-1]])
    rows = [_row(named(workers[w]), seconds_KW[:, w], begins_K, ends_K) for w in first]
    others = [w for w in range(len(workers)) if w not in first]
    if others:
        name = named(workers[others[0]]) if len(others) == 1 else f"median of {len(others)}"
        rows.append(_row(name, _quantiles(seconds_KW[:, others], (0.5,))[0], begins_K, ends_K))
    end = _plain(ends_K[-1] if until is None else until)
    return {"block": "gantt", "title": title, "about": about, "rows": rows, "until": end}


def named(worker: str) -> str:
    """Return a worker's name as words: a rank's number alone says nothing.

    >>> named("3"), named("gpu3")
    ('worker 3', 'gpu3')
    """
    return f"worker {worker}" if worker.isdigit() else worker


def _row(name: str, seconds_K: Array, begins_K: Array, ends_K: Array) -> dict[str, Any]:
    known = np.isfinite(seconds_K)
    waited = 1.0 - seconds_K[known].sum() / (ends_K - begins_K)[known].sum() if known.any() else float("nan")
    bars = [
        [_plain(begin), _plain(begin + seconds), _plain(end)]
        for begin, seconds, end in zip(begins_K, seconds_K, ends_K, strict=True)
        if np.isfinite(seconds)
    ]
    return {"name": name, "waits": _plain(waited), "bars": bars}


def _thin(values: ArrayLike) -> list[float | None]:
    values_T = np.asarray(values, dtype=np.float64)
    if len(values_T) <= POINTS:
        return [_plain(value) for value in values_T]
    return [_plain(mean(piece)) for piece in np.array_split(values_T, POINTS)]


def _quantiles(values_TW: Array, levels: Sequence[float]) -> list[Array]:
    """Return quantiles over workers of the known values, ``[T]`` each; NaN where no worker reported."""
    some_T = np.isfinite(values_TW).any(axis=1)
    found = np.full((len(levels), len(values_TW)), np.nan)
    if some_T.any():
        found[:, some_T] = np.nanquantile(np.where(np.isfinite(values_TW), values_TW, np.nan)[some_T], levels, axis=1)
    return list(found)


def _plain(value: float) -> float | None:
    """Return a number with the digits that a chart can show; None if it is not finite."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
