"""Mixture: several predictors at once, each trusted as much as it has deserved on each worker.

Axes: W workers, D drivers, E experts.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.nested import NestedPredictor
from paceline.predictors.report import Report

Array = NDArray[np.float64]

EXPERTS = (
    "last-value",
    "ewma:smoothing=0.5",
    "ewma:smoothing=0.25",
    "ewma:smoothing=0.1",
    "ewma:smoothing=0.03",
    "huber-ewma",
    "running-median",
    "arima",
    "rls",
    "narx",
)
"""Who is asked unless told otherwise."""

DISCOUNT, SHARE = 0.998, 0.01
"""What the past keeps in each iteration, and the part of the trust that all experts share, deserved or not."""

SCALE_SMOOTHING, LARGEST_ERROR = 0.05, 3.0
"""Weight of the newest error in a worker's running scale, and how many scales one iteration may count at most."""

SMALLEST_SCALE = 1e-6


class Mixture(NestedPredictor):
    """Weighted mean of several predictors' log speeds; the weights of each worker follow what its experts deserve.

    The weights are those of Bernstein online aggregation: exponential in each expert's accumulated regret, less its
    square, so that an expert that is right by luck gains little. The past fades, and every expert keeps a small share,
    so that one that was bad may come back when a worker changes.

    Parameters
    ----------
    experts
        Names with arguments as in :func:`paceline.predictors.named`, or predictors. Those that need fitting and are
        not fitted forecast the last value until they are.

    Raises
    ------
    ValueError
        If there is no expert, or no predictor of a name.

    Notes
    -----
    Wintenberger, Optimal learning with Bernstein online aggregation, Machine Learning 106, 2017. The losses are
    linearised (the gradient trick), so that the mixture competes with the best weighted mean of the experts. A model
    file keeps experts given by name only.

    Examples
    --------
    One worker is noise around 100 samples/s, so that the slow average soon has all the trust:

    >>> from paceline.predictors import Mixture, Report
    >>> model = Mixture(["last-value", "ewma:smoothing=0.03"])
    >>> model.reset(["a"])
    >>> for k in range(200):
    ...     model.observe(Report(samples=[100], seconds=[0.9 if k % 2 else 1.1]))
    >>> bool(model.weights[0, 1] > 0.9)
    True
    """

    def __init__(self, experts: Sequence[str | FleetPredictor] = EXPERTS) -> None:
        from paceline.predictors.named import named  # it lists this predictor too

        if isinstance(experts, str) or not len(experts):
            raise ValueError(f"experts must be a list of at least one predictor or name, got {experts!r}")
        super().__init__()
        self.experts = tuple(experts)
        self._inner = tuple(
            named(expert) if isinstance(expert, str) else copy.deepcopy(expert) for expert in self.experts
        )
        self._expected_WE: Array | None = None

    @property
    def weights(self) -> Array:
        """How far each expert is trusted, ``[W, E]``, in the order of ``experts``; each row sums to 1."""
        self._require_fleet()
        regret_WE, square_WE = self._rows["regret"], self._rows["square"]
        count = len(self._inner)
        rate_WE = np.minimum(0.5 / LARGEST_ERROR, np.sqrt(np.log(count + 1.0) / np.maximum(square_WE, 1e-12)))
        merit_WE = rate_WE * (regret_WE - rate_WE * square_WE) + np.log(rate_WE)
        trust_WE = np.exp(merit_WE - merit_WE.max(axis=1, keepdims=True))
        trust_WE /= trust_WE.sum(axis=1, keepdims=True)
        return np.asarray((1.0 - SHARE) * trust_WE + SHARE / count)

    def _fresh(self, count: int) -> dict[str, Array]:
        experts = len(self._inner)
        return {
            "regret": np.zeros((count, experts)),
            "square": np.zeros((count, experts)),
            "scale": np.full(count, np.nan),
        }

    # -- forecasting ---------------------------------------------------------------------------------------------

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        asked = [inner._next_speed(self._columns(inner, drivers_WD), horizon) for inner in self._inner]
        return np.asarray(np.exp(self._mean(np.log(np.stack(asked, axis=1)))))

    def _speed_of(self, samples_W: Array, drivers_WD: Array) -> Array:
        """Return the mixed forecast, and keep the experts' own: what is learnt next is how far each was off."""
        asked = [inner._speed_of(samples_W, self._columns(inner, drivers_WD)) for inner in self._inner]
        self._expected_WE = np.log(np.stack(asked, axis=1))
        return np.asarray(np.exp(self._mean(self._expected_WE)))

    def _mean(self, expected_WE: Array) -> Array:
        """Return the weighted mean over the experts that know the worker, NaN where none does."""
        known_WE = np.isfinite(expected_WE)
        if known_WE.all():
            return np.asarray(np.einsum("we,we->w", self.weights, expected_WE))
        weights_WE = np.where(known_WE, self.weights, 0.0)
        total_W = weights_WE.sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray((weights_WE * np.where(known_WE, expected_WE, 0.0)).sum(axis=1) / total_W)

    # -- learning ------------------------------------------------------------------------------------------------

    def _learn_report(self, report: Report, speed_W: Array, drivers_WD: Array) -> None:
        if self._expected_WE is not None:
            self._learn_weights(np.log(speed_W), self._expected_WE)
        self._expected_WE = None
        for inner in self._inner:
            inner._learn_report(report, speed_W, self._columns(inner, drivers_WD))

    def _learn_weights(self, log_speed_W: Array, expected_WE: Array) -> None:
        rows = self._rows
        mean_W = self._mean(expected_WE)
        error_W = log_speed_W - mean_W
        size_W = np.maximum(np.abs(error_W), SMALLEST_SCALE)
        smoothed_W = rows["scale"] + SCALE_SMOOTHING * (np.minimum(size_W, 5.0 * rows["scale"]) - rows["scale"])
        scale_W = np.where(np.isnan(rows["scale"]), size_W, smoothed_W)
        bounded_W = np.clip(error_W / scale_W, -LARGEST_ERROR, LARGEST_ERROR)
        better_WE = np.clip((expected_WE - mean_W[:, None]) / scale_W[:, None], -LARGEST_ERROR, LARGEST_ERROR)
        gain_WE = np.nan_to_num(bounded_W[:, None] * better_WE)
        seen_W = np.isfinite(error_W)
        kept_W1 = np.where(seen_W, DISCOUNT, 1.0)[:, None]
        rows["regret"] = kept_W1 * rows["regret"] + gain_WE
        rows["square"] = kept_W1 * rows["square"] + np.square(gain_WE)
        rows["scale"] = np.where(seen_W, scale_W, rows["scale"])
