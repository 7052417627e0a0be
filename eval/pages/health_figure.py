"""A small figure of a trace's health: its speeds, their autocorrelation, and their correlation with covariates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline._figures import BLUE, GREY, plain
from paceline._require import require
from paceline._whole import written_whole
from paceline.datasets import Trace
from paceline.datasets.health import LAGS, autocorrelations, health

MOST_LINES = 8
"""Most workers that are drawn as lines."""


def health_figure(trace: Trace, path: str | Path) -> Path:
    """Draw the series of workers, their autocorrelations, and each covariate's correlation with speed.

    Of many workers, eight are drawn, from the slowest to the fastest; the title says so, and a grey band is where all
    lie. For a trace without speeds, the first covariate is drawn instead. A panel that would be empty is left out.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    require("matplotlib", needed_by="health_figure", extra="plot")
    from matplotlib.figure import Figure

    found = health(trace)
    name = found.series[0].name if found.series else "speed"
    series_TW = trace.speed if name == "speed" else trace.covariates_named([name])[:, :, 0]  # type: ignore[index]
    shown = _shown(series_TW)
    correlation_HW = autocorrelations(series_TW[:, shown])
    compared = [one for one in found.series if np.isfinite(one.with_speed)]
    panels = [2.0, *([1.0] if np.isfinite(correlation_HW).any() else []), *([1.0] if compared else [])]
    figure = Figure(figsize=(3.6 + 2.2 * len(panels), 3.2), layout="constrained")
    along, *others = np.atleast_1d(figure.subplots(1, len(panels), width_ratios=panels))
    _draw_series(along, trace, name, series_TW, shown)
    if np.isfinite(correlation_HW).any():
        _draw_memory(others.pop(0), correlation_HW, int(np.isfinite(series_TW).sum(axis=0).max()))
    if compared:
        panel = others.pop(0)
        panel.barh([plain(one.name) for one in compared], [one.with_speed for one in compared], color=BLUE)
        panel.set(title="covariate with log speed", xlabel="correlation", xlim=(-1, 1))
        panel.title.set_fontsize(10)
    path = Path(path)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=110, format=path.suffix.lstrip(".") or "png")
    return path


def _shown(series_TW: Array) -> list[int]:
    """Return the workers to draw: all, or some from the least median to the largest."""
    known = np.flatnonzero(np.isfinite(series_TW).any(axis=0))
    order = known[np.argsort(np.nanmedian(series_TW[:, known], axis=0), kind="stable")]
    at = np.unique(np.linspace(0, len(order) - 1, min(MOST_LINES, len(order))).round().astype(int))
    return [int(w) for w in order[at]] if len(order) else [0]


def _draw_series(panel: Any, trace: Trace, name: str, series_TW: Array, shown: list[int]) -> None:
    workers = series_TW.shape[1]
    if len(shown) < workers:
        there = np.isfinite(series_TW).any(axis=1)
        low, high = (np.full(len(series_TW), np.nan) for _ in range(2))
        low[there], high[there] = np.nanmin(series_TW[there], axis=1), np.nanmax(series_TW[there], axis=1)
        panel.fill_between(np.arange(len(series_TW)), low, high, color=GREY, alpha=0.2, linewidth=0)
    panel.plot(series_TW[:, shown], linewidth=0.7)
    few = f"{workers} worker{'s' * (workers > 1)}"
    of = few if len(shown) == workers else f"{len(shown)} of {few} (grey: all)"
    unit = "samples/s" if name == "speed" else unit_of(trace, name)
    panel.set(title=f"{plain(trace.name)}: {of}", xlabel="iteration", ylabel=plain(f"{name}, {unit}" if unit else name))
    panel.title.set_fontsize(10)


def unit_of(trace: Trace, covariate: str) -> str:
    """Return a covariate's unit, as its reader wrote it into ``meta``; empty if it is not known.

    >>> unit_of(Trace([[1]], [[1]], meta={"units": "cpu: percent; memory: GB"}), "memory")
    'GB'
    """
    for part in trace.meta.get("units", "").split("; "):
        name, _, unit = part.partition(": ")
        if name == covariate:
            return unit
    return ""


def _draw_memory(panel: Any, correlation_HW: Array, count: int) -> None:
    bound = 2.0 / np.sqrt(max(count, 1))
    panel.axhspan(-bound, bound, color=GREY, alpha=0.3)
    panel.plot(np.arange(1, LAGS + 1), correlation_HW, color=BLUE, linewidth=0.8)
    panel.set(title="correlation with itself\n(grey: noise)", xlabel="lag, iterations", ylim=(-1, 1))
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.title.set_fontsize(10)
