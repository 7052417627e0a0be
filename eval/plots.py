"""Pictures of batch time curves and of the health of traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._arrays import Array
from paceline._atomic import atomic_write
from paceline._figures import BLUE, GREY, VERMILION, plain
from paceline._require import require
from paceline.datasets import Trace
from paceline.datasets.health import LAGS, autocorrelations, health
from paceline.datasets.profiles import CURVE
from paceline.predictors.batch_time.curve_fit import curve_seconds, fit_curve

if TYPE_CHECKING:
    import pandas as pd


def curve_figure(profile: pd.DataFrame, path: str | Path) -> Path:
    """Draw each curve of a profile: measured times, the fitted curve and the memory limit. Return the path.

    Parameters
    ----------
    profile
        A tidy profile: see :mod:`paceline.datasets.profiles`.
    path
        The picture to write; the suffix decides its format.

    Raises
    ------
    ValueError
        If the profile holds more than six curves, or a curve with fewer than two different batches.
    ImportError
        If matplotlib is missing.
    """
    require("matplotlib", needed_by="curve_figure", extra="plot")
    from matplotlib.figure import Figure

    curves = list(profile.groupby(CURVE, dropna=False))
    if len(curves) > 6:
        raise ValueError(f"profile must hold at most 6 curves to be drawn, got {len(curves)}: select some")
    figure = Figure(figsize=(7.0, 4.2 * len(curves)), layout="constrained")
    for panel, (names, rows) in zip(np.ravel(figure.subplots(len(curves), 1)), curves, strict=True):
        _draw(panel, ", ".join(str(name) for name in names if name), rows)
    path = Path(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix.lstrip(".") or "png")
    return path


def _draw(panel: Any, title: str, rows: pd.DataFrame) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    size, seconds = (rows[name].to_numpy(dtype=np.float64) for name in ("batch", "seconds"))
    fits = np.isfinite(seconds)
    fit = fit_curve(size[fits], seconds[fits])
    along = np.geomspace(size[fits].min() / 1.2, 1.2 * size[fits].max(), 200)
    off = np.abs(curve_seconds(fit, size[fits]) / seconds[fits] - 1.0)
    panel.plot(along, 1e3 * curve_seconds(fit, along), color=BLUE, linewidth=1.5)
    panel.plot(size[fits], 1e3 * seconds[fits], "o", color=VERMILION, markersize=5, clip_on=False)
    floor, slope, intercept = fit
    line = f"{1e3 * intercept:.3g} ms + {1e3 * slope:.3g} ms x"
    text = f"max({1e3 * floor:.3g} ms, {line})" if floor > 0 else line
    worst = f"{100 * off.max():.0f} % at {size[fits][off.argmax()]:g} samples"
    at = f"{100 * np.median(off):.1f} % off in the median, {worst}"
    panel.set_title(f"{plain(title)}\nt(x) = {text}\n{at}", loc="left", fontsize=10)
    if not fits.all():
        panel.axvline(size[fits].max(), color=GREY, linestyle="--", linewidth=1)
        where = (size[fits].max(), 0.02)
        panel.annotate("memory limit ", where, xycoords=("data", "axes fraction"), ha="right", va="bottom", color=GREY)
    # Both logarithmic: sizes span decades, and what counts are ratios of times, which are distances here.
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(which="major", color=GREY, alpha=0.25, linewidth=0.5)
    panel.set_xlabel("batch, samples")
    panel.set_ylabel("time of a step, ms")
    panel.spines[["top", "right"]].set_visible(False)


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
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, format=path.suffix.lstrip(".") or "png")
    return path


def _shown(series_TW: Array) -> list[int]:
    """Return the workers to draw: all, or some from the least median to the largest."""
    known = np.flatnonzero(np.isfinite(series_TW).any(axis=0))
    order = known[np.argsort(np.nanmedian(series_TW[:, known], axis=0), kind="stable")]
    at = np.unique(np.linspace(0, len(order) - 1, min(8, len(order))).round().astype(int))
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
