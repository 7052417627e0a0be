"""A small figure of a trace's health: its speeds, their autocorrelation, and their correlation with drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline._require import require
from paceline._whole import written_whole
from paceline.datasets import Trace
from paceline.datasets.health import LAGS, Health, autocorrelations, health
from paceline.eval.figures import BLUE, GREY

MOST_LINES = 8
"""Most workers that are drawn."""


def health_figure(trace: Trace, path: str | Path) -> Path:
    """Draw the first workers' series, their autocorrelations, and each driver's correlation with speed.

    For a trace without speeds, the first driver is drawn instead.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    require("matplotlib", needed_by="health_figure", extra="plot")
    from matplotlib.figure import Figure

    found = health(trace)
    figure = Figure(figsize=(10.0, 3.2), layout="constrained")
    along, memory, drivers = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    name = found.series[0].name if found.series else "speed"
    series_TW = trace.speed if name == "speed" else trace.drivers_named([name])[:, :, 0]  # type: ignore[index]
    along.plot(series_TW[:, :MOST_LINES], linewidth=0.7)
    along.set(title=f"{trace.name}: {name}", xlabel="iteration")
    _draw_memory(memory, series_TW)
    _draw_drivers(drivers, found)
    path = Path(path)
    with written_whole(path) as temporary:
        figure.savefig(temporary, dpi=110, format=path.suffix.lstrip(".") or "png")
    return path


def _draw_memory(panel: Any, series_TW: np.ndarray) -> None:
    correlation_HW = autocorrelations(series_TW)
    bound = 2.0 / np.sqrt(max(np.isfinite(series_TW).sum(axis=0).max(), 1))
    panel.axhspan(-bound, bound, color=GREY, alpha=0.3)
    panel.plot(np.arange(1, LAGS + 1), correlation_HW[:, :MOST_LINES], color=BLUE, linewidth=0.8)
    panel.set(title="autocorrelation", xlabel="lag", ylim=(-1, 1))


def _draw_drivers(panel: Any, found: Health) -> None:
    told = [one for one in found.series if np.isfinite(one.with_speed)]
    panel.barh([one.name for one in told], [one.with_speed for one in told], color=BLUE)
    panel.set(title="driver with log speed", xlim=(-1, 1))
    if not told:
        panel.text(0.0, 0.5, "none to compare", ha="center", transform=panel.get_xaxis_transform())
        panel.set_yticks([])
