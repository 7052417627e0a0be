"""Figures: a job with and without balancing, and the leaderboard. Axes: T iterations, W workers."""

from __future__ import annotations

import warnings
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline._arrays import Array
from paceline._figures import BLACK, BLUE, GREEN, GREY, VERMILION, new_figure, plain, saved
from paceline.datasets import Trace
from paceline.eval.leaderboard import Leaderboard
from paceline.eval.replay.synchronous import EQUAL, ORACLE, Replay

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WINDOW = 25
"""Iterations averaged in the lower panel of the replay's figure."""


MOST_LINES = 12
"""Most workers with a line of their own; of more, bands are drawn."""


def replay_figure(replay: Replay, trace: Trace, path: str | Path, *, scheme: str | None = None) -> Path:
    """Draw the recorded speeds, and iteration times with equal batches, one scheme and hindsight. Return the path.

    Parameters
    ----------
    replay, trace
        A replayed job, and its trace.
    path
        The file to write; the suffix decides its format (``.png``, ``.svg``, ``.pdf``).
    scheme
        The scheme to draw; ``None`` takes the fastest.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    figure = new_figure(9.0, 5.6)
    speeds, times = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [1, 1.25]})
    _draw_speeds(speeds, trace)
    _draw_times(times, replay, scheme or _fastest(replay))
    times.set_xlim(0, len(trace) - 1)
    return saved(figure, path)


def leaderboard_figure(leaderboard: Leaderboard, path: str | Path) -> Path:
    """Draw every predictor's RMSE relative to the last value, with its interval over workers. Return the path.

    A dot is the geometric mean over all workers, its line the range in which that mean lies with 95 % confidence, and a
    diamond the worst worker. The axis begins where the values do: from 0, their differences would be hidden.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    figure = new_figure(8.0, 1.4 + 0.42 * len(leaderboard.overall))
    axes = figure.subplots()
    table = leaderboard.overall.iloc[::-1]
    heights = np.arange(len(table))
    low, high = np.array([_interval(leaderboard, name) for name in table["predictor"]]).T
    colours = [BLUE if rmse < 1 else GREY for rmse in table["rmse"]]
    axes.hlines(heights, low, high, color=colours, linewidth=2)
    axes.scatter(table["rmse"], heights, color=colours, s=42, zorder=3)
    axes.plot(table["worst"], heights, "D", color=VERMILION, markersize=5, markeredgecolor="white")
    axes.axvline(1.0, color=BLACK, linewidth=1)
    right = max(1.0, high.max(), table["worst"].max())
    for height, rmse in zip(heights, table["rmse"], strict=True):
        axes.annotate(f"{rmse:.3f}", (1.0, height), xycoords=("axes fraction", "data"), va="center")
    axes.set_yticks(heights, [plain(name) for name in table["predictor"]])
    left = min(1.0, low.min(), table["rmse"].min())
    axes.set_xlim(left - 0.03 * (right - left), right + 0.06 * (right - left))
    axes.set_xlabel("RMSE relative to the last value: left of the line is better")
    axes.set_title("dots: mean over workers, 95 % interval; diamonds: the worst worker", loc="right", fontsize=10)
    return saved(figure, path)


def _interval(leaderboard: Leaderboard, predictor: str) -> tuple[float, float]:
    """Return the ends of the 95 % interval of a predictor's geometric mean over workers; of one worker, its value."""
    rows = leaderboard.workers
    ratios = rows.loc[rows["predictor"] == predictor, "rmse"].to_numpy(dtype=np.float64)
    ratios = ratios[ratios > 0]
    if not len(ratios):
        return float("nan"), float("nan")
    middle = np.log(ratios).mean()
    half = 1.96 * np.log(ratios).std(ddof=1) / np.sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    return float(np.exp(middle - half)), float(np.exp(middle + half))


def _draw_speeds(axes: Axes, trace: Trace) -> None:
    speed_TW = np.stack([_smooth(speed_T, 5) for speed_T in trace.speed.T], axis=1)
    slowest = int(np.argmin([speed_T[np.isfinite(speed_T)].mean() for speed_T in speed_TW.T]))
    others = [w for w in range(len(trace.workers)) if w != slowest]
    if len(others) > MOST_LINES:
        _draw_bands(axes, speed_TW[:, others])
    else:
        axes.plot(speed_TW[:, others], color=GREY, linewidth=0.8)
    axes.plot(speed_TW[:, slowest], color=VERMILION, linewidth=1.0)
    axes.set_ylim(bottom=0)
    about = "the others" + (":\nmedian, half, 90 %" if len(others) > MOST_LINES else "")
    labels = [(about, GREY, speed_TW[:, others])] if others else []
    _label_ends(
        axes, [*labels, (f"{plain(trace.workers[slowest])}, the slowest", VERMILION, speed_TW[:, [slowest]])], 0.14
    )
    axes.set_ylabel("recorded speed,\nsamples/s")
    axes.set_title(f"{plain(trace.name)}: {len(trace.workers)} workers", loc="left", fontweight="bold")


def _draw_bands(axes: Axes, speed_TW: Array) -> None:
    """Draw where half and nine tenths of the workers lie: single lines of many workers are a solid grey."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # no worker may have reported
        quantile_QT = np.nanquantile(speed_TW, [0.05, 0.25, 0.5, 0.75, 0.95], axis=1)
    along = np.arange(len(speed_TW))
    for low, high, alpha in ((0, 4, 0.25), (1, 3, 0.4)):
        axes.fill_between(along, quantile_QT[low], quantile_QT[high], color=GREY, alpha=alpha, linewidth=0)
    axes.plot(along, quantile_QT[2], color=GREY, linewidth=1.2)


def _draw_times(axes: Axes, replay: Replay, scheme: str) -> None:
    equal, labels = replay.seconds(EQUAL).mean(), []
    colours = {EQUAL: BLACK, ORACLE: GREEN} | {scheme: BLUE}
    for name in dict.fromkeys([EQUAL, scheme, ORACLE]):
        seconds = replay.seconds(name)
        smooth = 1e3 * _smooth(seconds)
        axes.plot([i.number for i in replay.iterations[name]], smooth, color=colours[name], linewidth=1.6)
        gain = "" if name == EQUAL else f", {equal / seconds.mean():.2f}x as fast"
        labels.append((f"{name}\n{1e3 * seconds.mean():.1f} ms{gain}", colours[name], smooth[:, None]))
    axes.set_ylim(bottom=0)
    _label_ends(axes, labels, 0.21)
    axes.set_ylabel(f"iteration time, ms\n(mean of {WINDOW})")
    axes.set_xlabel("iteration")


def _fastest(replay: Replay) -> str:
    means = {name: replay.seconds(name).mean() for name in replay.iterations if name not in (EQUAL, ORACLE)}
    return min(means, key=means.__getitem__, default=ORACLE)


def _label_ends(axes: Axes, labels: list[tuple[str, str, Array]], gap: float) -> None:
    """Write each label beside the end of its lines, at least ``gap`` of the axes apart."""
    top = axes.get_ylim()[1]
    ends = [float(lines[np.isfinite(lines)][-WINDOW:].mean()) / top for _, _, lines in labels]
    heights = _apart(ends, gap)
    for (text, colour, _), height in zip(labels, heights, strict=True):
        axes.annotate(text, (1.015, height), xycoords="axes fraction", va="center", color=colour)


def _apart(heights: list[float], gap: float) -> list[float]:
    """Move heights, in order, so that neighbours are at least ``gap`` apart and the lowest is not below half of it.

    >>> [round(height, 2) for height in _apart([0.5, 0.45, 0.0], 0.2)]
    [0.5, 0.3, 0.1]
    """
    order = np.argsort(np.array(heights), kind="stable")[::-1]
    moved = list(heights)
    for above, below in pairwise(order):
        moved[below] = min(moved[below], moved[above] - gap)
    least = gap / 2
    for i in order[::-1]:
        moved[i] = max(moved[i], least)
        least = moved[i] + gap
    return moved


def _smooth(values: Array, window: int = WINDOW) -> Array:
    """Centred running mean that skips NaN and shortens at both ends."""
    known = np.isfinite(values)
    kernel = np.ones(min(window, len(values)))
    total: Array = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    count: Array = np.convolve(known.astype(float), kernel, mode="same")
    mean: Array = np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0)
    return mean
