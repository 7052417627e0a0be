"""Figures: a job with and without balancing, and the leaderboard. Axes: T iterations, W workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.datasets import Trace
from paceline.datasets.whole import written_whole
from paceline.eval.leaderboard import Leaderboard
from paceline.eval.replay import CLAIRVOYANT, EQUAL, Replay
from paceline.predictors.extras import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

COLOURS = {"worst": "#D55E00", "best": "#0072B2", "hindsight": "#009E73", "quiet": "#999999"}
"""Told apart by colour-blind eyes too (Okabe and Ito's palette)."""

WINDOW = 25
"""Iterations averaged in the lower panel of the replay's figure."""


def replay_figure(replay: Replay, trace: Trace, path: str | Path, *, scheme: str) -> Path:
    """Draw the recorded speeds, and the iteration time under equal batches, one scheme and hindsight. Return the path.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    figure = _figure(9.0, 5.6)
    speeds, times = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 1.25]})
    _draw_speeds(speeds, trace)
    equal = float(replay.seconds(EQUAL).mean())
    for name, colour, height in ((EQUAL, "worst", 0.75), (scheme, "best", 0.4), (CLAIRVOYANT, "hindsight", 0.05)):
        seconds = replay.seconds(name)
        numbers = [iteration.number for iteration in replay.iterations[name]]
        times.plot(numbers, 1e3 * _smooth(seconds), color=COLOURS[colour], linewidth=1.3)
        label = f" {name}\n {1e3 * seconds.mean():.1f} ms, {equal / seconds.mean():.2f}x"
        times.annotate(label, (1.0, height), xycoords="axes fraction", color=COLOURS[colour])
    times.set_ylim(bottom=0)
    times.set_ylabel(f"iteration time, ms\n(mean of {WINDOW})")
    times.set_xlabel("iteration")
    return _save(figure, path)


def leaderboard_figure(leaderboard: Leaderboard, path: str | Path) -> Path:
    """Draw every predictor's RMSE relative to the last value, overall and on its worst worker. Return the path."""
    table = leaderboard.overall.iloc[::-1]
    figure = _figure(8.0, 1.2 + 0.42 * len(table))
    axes = figure.subplots()
    heights = np.arange(len(table))
    axes.barh(heights, table["rmse"], height=0.55, color=COLOURS["best"])
    axes.plot(table["worst"], heights, "D", color=COLOURS["worst"], markersize=5, label="worst worker")
    axes.axvline(1.0, color="black", linewidth=1)
    for height, rmse in zip(heights, table["rmse"], strict=True):
        axes.annotate(f"{rmse:.3f}", (0.01, height), va="center", color="white", fontweight="bold")
    axes.set_yticks(heights, table["predictor"])
    axes.set_xlim(left=0)
    axes.set_xlabel("RMSE relative to the last value (left of the line is better)")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    return _save(figure, path)


def _draw_speeds(axes: Axes, trace: Trace) -> None:
    speed_TW = trace.speed
    slowest = int(np.nanargmin(np.nanmean(speed_TW, axis=0)))
    for w, name in enumerate(trace.workers):
        colour, order = (COLOURS["worst"], 3) if w == slowest else (COLOURS["quiet"], 2)
        axes.plot(_smooth(speed_TW[:, w], 5), color=colour, linewidth=0.7, zorder=order)
        if w == slowest:
            axes.annotate(f" slowest: {name}", (1.0, 0.1), xycoords="axes fraction", color=colour)
    axes.annotate(" the others", (1.0, 0.7), xycoords="axes fraction", color=COLOURS["quiet"])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("recorded speed,\nsamples/s")
    axes.set_title(f"{trace.name}: {len(trace.workers)} workers", loc="left", fontweight="bold")


def _smooth(values: Array, window: int = WINDOW) -> Array:
    """Centred running mean that skips NaN and shortens at both ends."""
    known = np.isfinite(values)
    kernel = np.ones(min(window, len(values)))
    total: Array = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    count: Array = np.convolve(known.astype(float), kernel, mode="same")
    mean: Array = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return mean


def _figure(width: float, height: float) -> Any:
    require("matplotlib", needed_by="figures", extra="plot")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=130, format=path.suffix.lstrip(".") or "png")
    return path
