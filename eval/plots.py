"""Pictures of batch time curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._files import atomic_write
from paceline._require import require
from paceline._text import to_printable
from paceline.datasets.profiles import CURVE_COLUMNS
from paceline.predictors.curve_fit import curve_seconds, fit_curve

if TYPE_CHECKING:
    import pandas as pd

GRAY, BLUE, VERMILION = "#767676", "#0072B2", "#D55E00"
"""Colors that color-blind readers can distinguish as well (Okabe and Ito's palette)."""


def curve_figure(profile: pd.DataFrame, path: str | Path) -> Path:
    """Draw each curve of a profile: measured times, the fitted curve and the memory limit. Return the path.

    Raises
    ------
    ValueError
        If the profile holds more than six curves, or a curve with fewer than two different batches.
    """
    require("matplotlib", needed_by="curve_figure", extra="plot")
    from matplotlib.figure import Figure

    curves = list(profile.groupby(CURVE_COLUMNS, dropna=False))
    if len(curves) > 6:
        raise ValueError(f"profile must hold at most 6 curves to be drawn, got {len(curves)}: select some")
    figure = Figure(figsize=(7.0, 4.2 * len(curves)), layout="constrained")
    for panel, (names, rows) in zip(np.ravel(figure.subplots(len(curves), 1)), curves, strict=True):
        _draw_curve(panel, ", ".join(str(name) for name in names if name), rows)
    path = Path(path)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix.lstrip(".") or "png")
    return path


def _draw_curve(panel: Any, title: str, rows: pd.DataFrame) -> None:
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
    worst = f"{100 * off.max():.0f}% at {size[fits][off.argmax()]:g} samples"
    at = f"{100 * np.median(off):.1f}% off in the median, {worst}"
    name = to_printable(title).replace("$", r"\$")  # which would start a formula of matplotlib's
    panel.set_title(f"{name}\nt(x) = {text}\n{at}", loc="left", fontsize=10)
    if not fits.all():
        panel.axvline(size[fits].max(), color=GRAY, linestyle="--", linewidth=1)
        where = (size[fits].max(), 0.02)
        panel.annotate("memory limit ", where, xycoords=("data", "axes fraction"), ha="right", va="bottom", color=GRAY)
    # Both logarithmic: sizes span decades, and what counts are ratios of times, which are distances here.
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.grid(which="major", color=GRAY, alpha=0.25, linewidth=0.5)
    panel.set_xlabel("batch, samples")
    panel.set_ylabel("time of a step, ms")
    panel.spines[["top", "right"]].set_visible(False)
