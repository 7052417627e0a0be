"""Forecast of a predictor for the next iteration. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, read_only
from paceline._curves import Curves


@dataclass(frozen=True, eq=False)
class Forecast:
    """The next speeds, and how far they may be off. Its arrays are read-only.

    Parameters
    ----------
    speed
        Expected speed of each worker, ``[W]``, in samples/s: always positive and finite.
    spread
        Relative standard deviation of the forecast's error, ``[W]``; infinite before the first report.
    batch_time
        Batch time curves, if the predictor knows them.
    levels, quantiles
        Probabilities in rising order, and the speeds not exceeded with each of them, ``[W, levels]``, if the predictor
        tracks them; NaN where they are not known yet.
    """

    speed: Array
    spread: Array
    batch_time: Curves | None = None
    levels: tuple[float, ...] = ()
    quantiles: Array | None = None

    def __post_init__(self) -> None:
        for name in ("speed", "spread", "quantiles"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, read_only(values))
        if (c := self.batch_time) is not None:
            lines = map(read_only, (c.floor, c.slope, c.intercept, c.limit))
            object.__setattr__(self, "batch_time", Curves(*lines))

    def quantile(self, q: float) -> Array:
        """Return the speed that is not exceeded with probability ``q``, ``[W]``, in samples/s.

        Tracked quantiles are interpolated. Without any, the error is taken to be log-normal with the forecast's spread.
        Where the spread is infinite nothing is known: the quantile is 0 below the median and infinite above it.

        >>> forecast = Forecast(speed=np.array([100.0]), spread=np.array([0.1]))
        >>> forecast.quantile(0.1).round(1), forecast.quantile(0.5)
        (array([88.]), array([100.]))
        """
        from scipy.special import ndtri

        if not 0.0 < q < 1.0:
            raise ValueError(f"q must lie strictly between 0 and 1, got {q}")
        z = float(ndtri(q))
        sigma = np.sqrt(np.log1p(np.square(self.spread)))
        # At the median z * sigma would be 0 * inf, which is NaN, where the spread is infinite.
        normal = self.speed.copy() if z == 0.0 else self.speed * np.exp(z * sigma)
        if self.quantiles is None:
            return normal
        tracked = _interpolated(z, ndtri(self.levels), np.log(self.quantiles))
        return np.where(np.isnan(tracked), normal, np.exp(tracked))

    @property
    def curves(self) -> Curves:
        """The batch time curves for the solver: those forecast, or time = samples / speed if there are none."""
        return Curves.from_speed(self.speed) if self.batch_time is None else self.batch_time


def _interpolated(score: float, scores: Array, log_speed: Array) -> Array:
    """Return the log speed at a normal score, on the line through its neighbors, or through the last two outside."""
    i = int(np.clip(np.searchsorted(scores, score), 1, len(scores) - 1))
    share = (score - scores[i - 1]) / (scores[i] - scores[i - 1])
    return np.asarray(log_speed[:, i - 1] + share * (log_speed[:, i] - log_speed[:, i - 1]))
