"""Draw the figures of ``docs/explanation/how_it_works.md``: ``python docs/figures/how_it_works.py``.

They are drawn from the library itself: the solver's split, and forecasts on a recorded job. Axes: T iterations, W
workers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import numpy as np

from paceline.datasets import recorded
from paceline.eval import iter_backtest
from paceline.predictors import Auto, Curves, LastValue
from paceline.solver import split

mpl.use("svg")
import matplotlib.pyplot as plt

NEUTRAL, OWN, OTHER = "#808080", "#0f8276", "#d98324"
"""Colors that can be told apart, and read on white and on black."""

STYLE = {
    "svg.hashsalt": "paceline",
    "svg.fonttype": "path",
    "font.size": 11,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), NEUTRAL),
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SPEEDS_W = np.array([100.0, 60.0, 30.0])
BATCH = 192
FROM, UNTIL = 300, 420
"""Iterations of the recorded job that are shown."""


def curves_of(speed_W: np.ndarray) -> Curves:
    """Return curves of workers whose time is in proportion to their samples."""
    zero_W = np.zeros(len(speed_W))
    return Curves(floor=zero_W, slope=1 / speed_W, intercept=zero_W, limit=np.full(len(speed_W), np.inf))


def waiting(path: Path) -> None:
    """Draw an iteration of three workers with equal batches and with the split: computing, then waiting."""
    curves = curves_of(SPEEDS_W)
    schemes = {"equal batches": np.full(3, BATCH // 3), "balanced": split(curves, BATCH).sizes}
    figure, panels = plt.subplots(1, 2, figsize=(9, 2.4), sharex=True, sharey=True, layout="constrained")
    for panel, (name, sizes_W) in zip(panels, schemes.items(), strict=True):
        seconds_W = sizes_W / SPEEDS_W
        names = [f"{speed:.0f} samples/s" for speed in SPEEDS_W]
        panel.barh(names, seconds_W, color=OWN, label="computes")
        panel.barh(names, seconds_W.max() - seconds_W, left=seconds_W, color=NEUTRAL, alpha=0.3, label="waits")
        for row, size in enumerate(sizes_W):
            panel.text(0.03, row, f"{size} samples", va="center", color="white")
        panel.set(title=f"{name}: {seconds_W.max():.2f} s", xlabel="s")
        panel.invert_yaxis()
    panels[0].invert_yaxis()
    panels[1].legend(frameon=False, loc="lower right")
    save(figure, path)


def levels(path: Path) -> None:
    """Draw three batch time curves and the time at which their batch sizes sum to the global batch."""
    curves = Curves(
        floor=np.array([0.6, 0.3, 0.2]),
        slope=np.array([0.006, 0.012, 0.02]),
        intercept=np.array([0.2, 0.1, 0.05]),
        limit=np.full(3, np.inf),
    )
    chosen = split(curves, BATCH)
    size_X = np.arange(1, 141)
    figure, panel = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for row, color in enumerate((OWN, OTHER, NEUTRAL)):
        seconds_X = np.maximum(curves.floor[row], curves.intercept[row] + curves.slope[row] * size_X)
        panel.plot(size_X, seconds_X, color=color, label=f"worker {row}: {chosen.sizes[row]} samples")
        panel.plot(chosen.sizes[row], chosen.seconds[row], "o", color=color)
    panel.axhline(chosen.makespan, color=NEUTRAL, linestyle=":")
    panel.set(xlabel="batch size (samples)", ylabel="time (s)", ylim=(0, 2.2), xlim=(0, 140))
    panel.legend(frameon=False, title=f"{BATCH} samples in {chosen.makespan:.2f} s")
    save(figure, path)


def forecasts(path: Path) -> None:
    """Draw the recorded speed of one worker, the last value as a forecast, and that of Auto with its 90% interval."""
    trace = recorded.load("digits-attention-moving")
    figure, panel = plt.subplots(figsize=(9, 3.2), layout="constrained")
    shown_T = np.arange(FROM, UNTIL)
    panel.plot(shown_T, trace.speed[FROM:UNTIL, 0], color=NEUTRAL, lw=1, label="measured")
    for model, color in ((LastValue(), OTHER), (Auto(), OWN)):
        steps = [step for step in iter_backtest(model, trace) if FROM <= step.iteration < UNTIL]
        forecast_T = [step.forecast.speed[0] for step in steps]
        panel.plot([step.iteration for step in steps], forecast_T, color=color, lw=1.2, label=type(model).__name__)
        if isinstance(model, Auto):
            low_T, high_T = ([step.forecast.quantile(q)[0] for step in steps] for q in (0.05, 0.95))
            panel.fill_between(shown_T, low_T, high_T, color=color, alpha=0.2, lw=0)
    panel.set(xlabel="iteration", ylabel="samples per second")
    panel.legend(frameon=False, ncols=3, loc="upper center")
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    """Write a figure that is the same whenever it is drawn."""
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)


FIGURES = {"waiting.svg": waiting, "levels.svg": levels, "forecasts.svg": forecasts}


def main(folder: Path) -> None:
    """Draw all figures into a folder."""
    with plt.rc_context(STYLE):
        for name, draw in FIGURES.items():
            draw(folder / name)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", type=Path, default=Path(__file__).parent, help="where they are written")
    main(options.parse_args().folder)
