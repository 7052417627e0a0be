"""Figure of a live experiment: loss over samples and over time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline._require import require
from paceline._whole import written_whole
from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.outcome import ExperimentOutcome
from paceline.lab.setting import EQUAL

COLORS = ("#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which color-blind readers can distinguish."""


def loss_figure(outcome: ExperimentOutcome, path: str | Path) -> Path:
    """Draw the loss of every scheme over samples and over its own training time. Return the path.

    Parameters
    ----------
    outcome
        Result of an experiment.
    path
        The file to write; its suffix selects the format (``.png``, ``.svg``, ``.pdf``).

    Raises
    ------
    ImportError
        If matplotlib is missing.
    """
    require("matplotlib", needed_by="loss_figure", extra="plot")
    from matplotlib.figure import Figure

    path = Path(path)
    figure = Figure(figsize=(9.0, 3.6), dpi=120, layout="constrained")
    over_samples, over_time = figure.subplots(1, 2, sharey=True)
    last = max(len(outcome.losses(scheme)) for scheme in outcome.setting.schemes)
    for scheme, color in zip((EQUAL, *outcome.setting.schemes), ("#000000", *COLORS), strict=False):
        loss = _smoothed(outcome.losses(scheme))
        thousands = np.arange(1, len(loss) + 1) * outcome.setting.global_batch / 1000
        seconds = outcome.seconds(scheme)
        before = len(loss) - len(seconds)
        style = {"color": color, "label": scheme, "linewidth": 2.5 if scheme == EQUAL else 1.2}
        over_samples.plot(thousands[:last], loss[:last], **style)
        over_time.plot(seconds[: last - before], loss[before:last], **style)
    over_samples.set(xlabel="thousand samples", ylabel="loss", yscale="log", title="after equal samples")
    over_time.set(xlabel="seconds of training", title="after equal time")
    over_time.legend(frameon=False)
    figure.suptitle(str(DISTURBANCES[outcome.setting.contention]))
    with written_whole(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:])
    return path


def _smoothed(loss_K: NDArray[np.float64], window: int = 15) -> NDArray[np.float64]:
    """Return the moving average over ``window`` iterations."""
    sums = np.cumsum(np.insert(loss_K, 0, 0.0))
    ends = np.arange(1, len(loss_K) + 1)
    starts = np.maximum(ends - window, 0)
    smooth: NDArray[np.float64] = (sums[ends] - sums[starts]) / (ends - starts)
    return smooth
