"""Significance of differences: Diebold-Mariano tests and block-bootstrap intervals.

A ratio of two predictors' errors is a mean over iterations that resemble their neighbors. Its standard error comes
from the lowest frequencies of its contributions, with the few degrees of freedom that these have: E. Lazarus, D. Lewis,
J. Stock and M. Watson, "HAR inference: recommendations for practice", JBES 36, 2018; for forecasts L. Coroneo and F.
Iacone, "Comparing predictive accuracy in small samples using fixed-smoothing asymptotics", J. Appl. Econometrics 35,
2020. With a kernel and normal quantiles instead, equal predictors lead too often.

Axes: T iterations, W workers, K cosines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array
from paceline.eval.backtest import mean_over_time

SIGNIFICANCE_LEVEL = 0.05
"""A difference is significant if chance alone gives one as large less often than this."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure of one job, and what each iteration contributes to its error, ``[T]``, with mean 0."""

    value: float
    contributions: Array

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.value - other.value, self.contributions - other.contributions)

    def error(self, num_cosines: int | None = None) -> tuple[float, int]:
        """Return the standard error, and its degrees of freedom: the number of cosines whose squares it is made of.

        Fewer ``num_cosines`` than usual are for contributions that resemble their neighbors for long.
        """
        from scipy.fft import dct

        count = num_cosines or _default_num_cosines(len(self.contributions))
        slowest_K = dct(self.contributions, norm="ortho")[1 : count + 1]
        return float(np.sqrt(np.square(slowest_K).mean() / len(self.contributions))), len(slowest_K)


def _default_num_cosines(iterations: int) -> int:
    return int(max(6, round(0.2 * iterations ** (2 / 3))))  # of fewer, all are taken


@dataclass(frozen=True, eq=False)
class ErrorEstimates:
    """Errors of a predictor on one job: the mean over workers of their logs, and of losses beside a common scale.

    The ratio and its interval come from the logs. The test comes from the losses: one iteration with a large error
    moves their difference and its standard error alike, and so does not look like a lead.
    """

    log: Estimate
    loss: Estimate

    def __sub__(self, other: ErrorEstimates) -> ErrorEstimates:
        return ErrorEstimates(self.log - other.log, self.loss - other.loss)


@dataclass(frozen=True, kw_only=True)
class ErrorComparison:
    """One predictor's error over another's; ``str`` of it says in words whether the difference is significant.

    Parameters
    ----------
    ratio
        Geometric mean over workers of the ratio of their errors: below 1 the first is better.
    low, high
        Bounds of its 95% interval, by the block bootstrap.
    p
        Chance of a difference as large if the two are equally good (Diebold and Mariano's test).
    """

    ratio: float
    low: float
    high: float
    p: float

    @property
    def is_significant(self) -> bool:
        """True if both the test and the interval say that there is a difference."""
        return self.p < SIGNIFICANCE_LEVEL and not self.low <= 1.0 <= self.high

    @property
    def verdict(self) -> str:
        """``"better"`` or ``"worse"``, or ``"not significant"`` where chance alone may give the difference."""
        return "not significant" if not self.is_significant else "better" if self.ratio < 1.0 else "worse"

    def __str__(self) -> str:
        gain, low, high = (100.0 * (1.0 - ratio) for ratio in (self.ratio, self.high, self.low))
        text = f"{abs(gain):.1f}% {'less' if gain >= 0 else 'more'} error"
        if gain < 0:
            low, high = -high, -low
        end = "significant" if self.is_significant else "not significant"
        return f"{text} ({low:z.1f} to {high:z.1f}%): {end}"


def compare(error: ArrayLike, other_error: ArrayLike) -> ErrorComparison:
    """Return how the errors of one predictor compare with another's on the same job, and whether that is significant.

    Parameters
    ----------
    error, other_error
        Forecast less measured speed, ``[T, W]``; NaN where a worker did not report.

    Raises
    ------
    ValueError
        If the shapes differ, or there are fewer than 20 iterations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> both = rng.normal(size=(1000, 4))
    >>> print(compare(0.9 * both, both))
    10.0% less error (10.0 to 10.0%): significant
    >>> print(compare(both, rng.normal(size=(1000, 4))))
    0.9% less error (-2.1 to 3.8%): not significant
    """
    error_TW, other_TW = np.asarray(error, dtype=np.float64), np.asarray(other_error, dtype=np.float64)
    if error_TW.shape != other_TW.shape or error_TW.ndim != 2 or len(error_TW) < 20:
        raise ValueError(
            "error and other_error must both have the shape [iterations, workers], with 20 iterations or more, got "
            f"{error_TW.shape} and {other_TW.shape}"
        )
    scale_W = np.sqrt(mean_over_time(np.square(error_TW)) + mean_over_time(np.square(other_TW)))
    difference = squared_error_estimates(error_TW, scale_W) - squared_error_estimates(other_TW, scale_W)
    return compare_over_jobs([difference], [1.0])


def squared_error_estimates(error_TW: Array, scale_W: Array) -> ErrorEstimates:
    """Return the figures of root mean squared errors; each worker's losses are beside its scale, ``[W]``."""
    return ErrorEstimates(_log_root_mean(np.square(error_TW)), mean_estimate(np.square(error_TW / scale_W)))


def _log_root_mean(loss_TW: Array) -> Estimate:
    there_TW, mean_W = np.isfinite(loss_TW), mean_over_time(loss_TW)
    with np.errstate(divide="ignore", invalid="ignore"):  # a predictor without any error has no scale
        contribution_TW = np.where(there_TW, loss_TW / mean_W - 1.0, 0.0) / there_TW.mean(axis=0)
        return Estimate(float(0.5 * np.log(mean_W).mean()), 0.5 * contribution_TW.mean(axis=1))


def mean_estimate(values_TW: Array) -> Estimate:
    """Return the mean over workers of their means over time."""
    there_TW, mean_W = np.isfinite(values_TW), mean_over_time(values_TW)
    moves_TW = np.where(there_TW, values_TW - mean_W, 0.0) / there_TW.mean(axis=0)
    return Estimate(float(mean_W.mean()), moves_TW.mean(axis=1))


def compare_over_jobs(
    differences: Sequence[ErrorEstimates], weights: Sequence[float], *, num_compared: int = 2
) -> ErrorComparison:
    """Return the lead that differences of two predictors' errors, one for each job, show over jobs of these weights.

    ``num_compared`` is the number of predictors of which these two were picked as the best and another: the test is
    then Tukey's. Weights sum to 1.
    """
    logs, losses = [one.log for one in differences], [one.loss for one in differences]
    value, loss = (float(np.dot(weights, [one.value for one in figures])) for figures in (logs, losses))
    p = _p_value(loss, *weighted_mean_error(losses, weights), num_compared) if value * loss > 0 else 1.0
    low, high = value, value
    if np.isfinite(value):
        low, high = _bootstrap_interval(logs, weights, value, weighted_mean_error(logs, weights)[1])
    return ErrorComparison(ratio=float(np.exp(value)), low=float(np.exp(low)), high=float(np.exp(high)), p=p)


def weighted_mean_error(estimates: Sequence[Estimate], weights: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of a weighted mean over jobs, and its degrees of freedom (Welch, Satterthwaite)."""
    errors, degrees = zip(*(one.error() for one in estimates), strict=True)
    parts = np.square(np.multiply(weights, errors))
    if not parts.any():
        return 0.0, float(sum(degrees))
    return float(np.sqrt(parts.sum())), float(parts.sum() ** 2 / (parts**2 / degrees).sum())


def _p_value(value: float, error: float, degrees: float, num_compared: int) -> float:
    from scipy.stats import studentized_range, t

    if error == 0.0:
        return 0.0
    score = abs(value) / error
    # The range of several means takes numeric integration; of two it is Student's t.
    return float(
        2 * t.sf(score, degrees)
        if num_compared == 2
        else studentized_range.sf(np.sqrt(2) * score, num_compared, degrees)
    )


def _bootstrap_interval(
    differences: Sequence[Estimate], weights: Sequence[float], value: float, degrees: float
) -> tuple[float, float]:
    """Return the ends of the 95% interval, from resampled blocks, widened for how few blocks there are."""
    from scipy.stats import norm, t

    rng = np.random.default_rng(0)
    resampled = sum(
        weight * _resample_means(one.contributions, rng) for weight, one in zip(weights, differences, strict=True)
    )
    high, low = (
        np.quantile(resampled, [1 - SIGNIFICANCE_LEVEL / 2, SIGNIFICANCE_LEVEL / 2])
        * t.isf(SIGNIFICANCE_LEVEL / 2, degrees)
        / norm.isf(SIGNIFICANCE_LEVEL / 2)
    )
    return value - float(high), value - float(low)


def _resample_means(contribution_T: Array, rng: np.random.Generator) -> Array:
    """Return means of iterations drawn in circular blocks, as long as the slowest cosine that counts is."""
    length = -(-len(contribution_T) // (2 * _default_num_cosines(len(contribution_T))))
    blocks = -(-len(contribution_T) // length)
    summed = np.concatenate([[0.0], np.cumsum(np.concatenate([contribution_T, contribution_T[:length]]))])
    # with 2000 resamples, ends of 95% intervals are off by about 3% of their length
    starts = rng.integers(len(contribution_T), size=(2000, blocks))
    means: Array = (summed[starts + length] - summed[starts]).sum(axis=1) / (blocks * length)
    return means
