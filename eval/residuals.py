"""Errors that forecasts left: whether their distributions fit the speeds, and whether one error tells the next.

Axes: T iterations, W workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array
from paceline.datasets.health import SIGNIFICANT, ljung_box
from paceline.eval.significance import LEVEL, Estimate, joined_error, mean
from paceline.predictors import Forecast


@dataclass(frozen=True, eq=False)
class Residuals:
    """Errors that the forecasts of one job left, in figures.

    Parameters
    ----------
    position
        Mean of the positions of the speeds in their forecast distributions: 0.5 if calibrated.
    spread
        Mean square of these positions about a half, over that of calibrated ones: 1 if calibrated.
    white
        Probability that white noise has autocorrelations as large as each worker's errors, ``[W]``.
    """

    position: Estimate
    spread: Estimate
    white: Array

    @staticmethod
    def joined(jobs: Mapping[str, Residuals], sizes: Mapping[str, int]) -> dict[str, float | str]:
        """Return the figures of all jobs together, which count by these sizes."""
        weights = [size / sum(sizes.values()) for size in sizes.values()]
        position, spread = (
            _Joined([getattr(jobs[trace], name) for trace in sizes], weights) for name in ("position", "spread")
        )
        white = np.concatenate([jobs[trace].white for trace in sizes])
        tested = white[np.isfinite(white)]
        return {
            "position": position.value,
            "spread": float(np.sqrt(spread.value)),
            "intervals": _in_words(position, spread),
            "predictable": float((tested < SIGNIFICANT).mean()) if len(tested) else float("nan"),
        }


class _Joined:
    """A weighted mean of estimates, and its test against a value."""

    def __init__(self, estimates: list[Estimate], weights: list[float]) -> None:
        self.value = float(np.dot(weights, [one.value for one in estimates]))
        self._error, self._degrees = joined_error(estimates, weights)

    def differs(self, right: float, minimum: float) -> bool:
        """Return whether the value is far from the right one, significantly."""
        from scipy.stats import t

        off = abs(self.value - right)
        return off > minimum and off > t.isf(LEVEL / 2, self._degrees) * self._error


def _in_words(position: _Joined, spread: _Joined) -> str:
    # a bias of less than 3 percentiles is not reported
    if position.differs(0.5, 0.03):
        return "too high" if position.value < 0.5 else "too low"
    # neither is a spread within 10% of that of calibrated forecasts
    if spread.differs(1.0, 2 * 0.1):  # of squares, so twice the share
        return "too narrow" if spread.value > 1.0 else "too wide"
    return "right"


def residuals(error_TW: Array, position_TW: Array) -> Residuals:
    """Return what forecasts with these errors and these positions of the measured speeds left."""
    off_TW = position_TW - 0.5
    return Residuals(mean(position_TW), mean(12.0 * np.square(off_TW)), ljung_box(error_TW))


def position(forecast: Forecast, speed: Array) -> Array:
    """Return the probability that a forecast gives to lower speeds than these, ``[W]``: the inverse of its quantiles.

    A speed that is forecast exactly, without any spread, is in the middle. NaN where there is no speed.

    >>> forecast = Forecast(speed=np.array([100.0, 100.0]), spread=np.array([0.1, 0.1]))
    >>> position(forecast, np.array([forecast.quantile(0.2)[0], 100.0])).round(3)
    array([0.2, 0.5])
    """
    from scipy.special import ndtr, ndtri

    sigma = np.sqrt(np.log1p(np.square(forecast.spread)))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.log(speed / forecast.speed) / sigma
        score = np.where((speed == forecast.speed) | np.isinf(sigma), 0.0, score)
        if forecast.quantiles is not None:
            tracked = _score_between(np.log(speed), ndtri(forecast.levels), np.log(forecast.quantiles))
            score = np.where(np.isnan(tracked), score, tracked)
    chance: Array = np.where(np.isnan(speed), np.nan, ndtr(score))
    return chance


def _score_between(log_speed: Array, scores: Array, log_quantiles: Array) -> Array:
    """Return the normal score of each speed, on the line through its neighbours, or the last two outside."""
    above = np.clip((log_quantiles <= log_speed[:, None]).sum(axis=1), 1, len(scores) - 1)
    rows = np.arange(len(log_speed))
    low, high = log_quantiles[rows, above - 1], log_quantiles[rows, above]
    share = np.where(high > low, (log_speed - low) / (high - low), 0.5)
    return np.where(
        np.isnan(log_quantiles).any(axis=1), np.nan, scores[above - 1] + share * (scores[above] - scores[above - 1])
    )
