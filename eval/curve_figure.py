"""A figure of measured batch times, the curves fitted to them, and a proportional line for comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._require import require
from paceline._whole import written_whole
from paceline.datasets.profiles import CURVE
from paceline.eval.figures import BLUE, GREY, VERMILION
from paceline.predictors.batch_time.curve_fit import curve_seconds, fit_curve

if TYPE_CHECKING:
    import pandas as pd

MOST_CURVES = 6
"""Most curves in one figure: more would be indistinguishable."""


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
    if len(curves) > MOST_CURVES:
        raise ValueError(f"profile must hold at most {MOST_CURVES} curves to be drawn, got {len(curves)}: select some")
    figure = Figure(figsize=(7.0, 4.2 * len(curves)), layout="constrained")
    for panel, (names, rows) in zip(np.ravel(figure.subplots(len(curves), 1)), curves, strict=True):
        _draw(panel, ", ".join(str(name) for name in names if name), rows)
    path = Path(path)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix.lstrip(".") or "png")
    return path


def _draw(panel: Any, title: str, rows: pd.DataFrame) -> None:
    size, seconds = (rows[name].to_numpy(dtype=np.float64) for name in ("batch", "seconds"))
    fits = np.isfinite(seconds)
    fit = fit_curve(size[fits], seconds[fits])
    along = np.linspace(0.0, 1.05 * size[fits].max(), 200)
    panel.plot(along, 1e3 * curve_seconds(fit, along), color=BLUE, linewidth=1.5)
    panel.plot(size[fits], 1e3 * seconds[fits], "o", color=VERMILION, markersize=5, clip_on=False)
    floor, slope, intercept = fit
    line = f"{1e3 * intercept:.3g} ms + {1e3 * slope:.3g} ms x"
    text = f"max({1e3 * floor:.3g} ms, {line})" if floor > 0 else line
    panel.set_title(f"{title}\nt(x) = {text}", loc="left", fontsize=10)
    if not fits.all():
        panel.axvline(size[fits].max(), color=GREY, linestyle="--", linewidth=1)
        panel.annotate("memory limit ", (size[fits].max(), 0), ha="right", va="bottom", color=GREY)
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("batch, samples")
    panel.set_ylabel("time of a step, ms")
    panel.spines[["top", "right"]].set_visible(False)
