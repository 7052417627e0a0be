"""Linear models of the next change in log speed that learn while they serve: their inputs, and RLS.

Axes: W workers, D covariates, R remembered log speeds or references, F inputs, T iterations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, all_finite
from paceline.predictors.averages import smooth
from paceline.predictors.fitting import FitOptions
from paceline.predictors.fleet import DAMAGED, FleetPredictor, load_finite, validated_covariate_names

if TYPE_CHECKING:
    from paceline.datasets import Trace


WorkerStates = dict[str, Array]

LAGS, SMOOTHINGS = 6, np.array([0.5, 0.2, 0.05])
"""Number of past log speeds, and smoothings of the averages of log speed, that serve as inputs."""

NUM_SPEED_INPUTS = LAGS - 1 + len(SMOOTHINGS)
"""Inputs made of these: all but the last log speed, from which the others are measured."""

SCALE_SMOOTHING = 0.05
"""Weight of the newest change in a worker's running scale."""

HUBER_BOUND = 2.0
"""Errors beyond this many scales count linearly, and inputs beyond it get less weight."""


def initial_inputs(num_workers: int, covariates: int) -> WorkerStates:
    """Return the memory of ``num_workers`` workers that have not reported."""
    return {
        "log_speed": np.full((num_workers, LAGS), np.nan),
        "averages": np.full((num_workers, len(SMOOTHINGS)), np.nan),
        "scale": np.full(num_workers, np.nan),
        "seen": np.zeros(num_workers),
        "last_covariates": np.full((num_workers, covariates), np.nan),
        "covariate_mean": np.full((num_workers, covariates), np.nan),
        "covariate_spread": np.zeros((num_workers, covariates)),
    }


def make_inputs(worker_states: WorkerStates, covariates_WD: Array, scale_W: Array, extra_columns: int = 0) -> Array:
    """Return how far references are from the last speed, then covariates from their mean and last value, in scales.

    ``extra_columns`` columns between the two are left for the caller to fill.
    """
    covariates, last_W1 = covariates_WD.shape[1], worker_states["log_speed"][:, :1]
    begin = NUM_SPEED_INPUTS + extra_columns
    inputs_WF = np.zeros((len(last_W1), begin + 2 * covariates), order="F")
    np.subtract(worker_states["log_speed"][:, 1:], last_W1, out=inputs_WF[:, : LAGS - 1])
    np.subtract(worker_states["averages"], last_W1, out=inputs_WF[:, LAGS - 1 : NUM_SPEED_INPUTS])
    inputs_WF[:, :NUM_SPEED_INPUTS] /= scale_W[:, None]
    if covariates:
        # Relative to the mean, so that the unit of a covariate does not matter.
        floor_WD = 1e-9 * np.abs(worker_states["covariate_mean"]) + 1e-150
        spread_WD = np.maximum(np.sqrt(worker_states["covariate_spread"]), floor_WD)
        driven_WF = inputs_WF[:, begin:]
        np.divide(covariates_WD - worker_states["covariate_mean"], spread_WD, out=driven_WF[:, :covariates])
        np.divide(covariates_WD - worker_states["last_covariates"], spread_WD, out=driven_WF[:, covariates:])
        # covariates count as at most 4 deviations from their mean, or from their last value
        np.minimum(np.maximum(driven_WF, -4.0), 4.0, out=driven_WF)
    if not all_finite(inputs_WF):
        inputs_WF[np.isnan(inputs_WF)] = 0.0  # an unknown input adds nothing to the forecast
    return inputs_WF


def target_change(worker_states: WorkerStates, log_speed_W: Array, scale_W: Array) -> Array:
    """Return the change to this log speed in scales, NaN for a worker without any change before to scale by."""
    target_W = (log_speed_W - worker_states["log_speed"][:, 0]) / scale_W
    if not all_finite(worker_states["scale"]):
        target_W[np.isnan(worker_states["scale"])] = np.nan
    return np.asarray(target_W)


def max_step(inputs_WF: Array) -> Array:
    """Return the farthest that a step may go: as far as the worker has moved lately, and a little more."""
    return np.asarray(np.maximum.reduce(np.abs(inputs_WF[:, :NUM_SPEED_INPUTS]), axis=1) + HUBER_BOUND)


def bound_step(step: Array, max_step_W: Array) -> Array:
    """Return steps no farther than their reach: weights that have gone astray do bounded harm."""
    return np.asarray(np.minimum(np.maximum(step, -max_step_W), max_step_W))


def example_penalty(error_W: Array, inputs_WF: Array, inputs: int) -> Array:
    """Return the factor by which an example counts less, 1 for a usual one: Huber's, of its error and of its inputs.

    ``inputs`` is the number of all inputs, with those that are 0 throughout and left out.
    """
    square_W = np.add.reduce(np.square(inputs_WF), axis=1)
    far_W = np.maximum(square_W / (HUBER_BOUND**2 * inputs), 1.0)
    return np.asarray(np.maximum(np.abs(error_W) / HUBER_BOUND, 1.0) * far_W)


def advance_inputs(worker_states: WorkerStates, log_speed_W: Array, covariates_WD: Array, scale_W: Array) -> None:
    """Move the delay line, averages, scale and covariates on; a worker that did not report keeps its own."""
    change_W = np.abs(log_speed_W - worker_states["log_speed"][:, 0])
    moved_WR = np.empty_like(worker_states["log_speed"])
    moved_WR[:, 0], moved_WR[:, 1:] = log_speed_W, worker_states["log_speed"][:, :-1]
    bounded_W = np.minimum(change_W, 5.0 * scale_W)
    later_W = worker_states["scale"] + SCALE_SMOOTHING * (bounded_W - worker_states["scale"])
    seen_W = np.isfinite(log_speed_W)
    later_W = np.where(np.isnan(worker_states["scale"]), change_W, later_W)
    worker_states["scale"] = np.where(np.isfinite(change_W), later_W, worker_states["scale"])
    worker_states["log_speed"] = np.where(seen_W[:, None], moved_WR, worker_states["log_speed"])
    worker_states["averages"] = smooth(worker_states["averages"], log_speed_W[:, None], SMOOTHINGS)
    if covariates_WD.shape[1]:
        _advance_covariates(worker_states, covariates_WD)
    worker_states["seen"] = worker_states["seen"] + seen_W


def _advance_covariates(worker_states: WorkerStates, covariates_WD: Array) -> None:
    off_WD = covariates_WD - worker_states["covariate_mean"]
    # plain means of the first 50 values, then running ones
    rate_W1 = np.maximum(0.02, 1.0 / (worker_states["seen"] + 1.0))[:, None]
    mean_WD = worker_states["covariate_mean"] + rate_W1 * off_WD
    spread_WD = worker_states["covariate_spread"] + rate_W1 * (np.square(off_WD) - worker_states["covariate_spread"])
    if not all_finite(mean_WD):  # a first sample becomes the mean, and a missing one changes nothing
        unknown_WD, first_WD = np.isnan(covariates_WD), np.isnan(worker_states["covariate_mean"])
        mean_WD = np.where(unknown_WD, worker_states["covariate_mean"], np.where(first_WD, covariates_WD, mean_WD))
        spread_WD = np.where(unknown_WD | first_WD, worker_states["covariate_spread"], spread_WD)
        covariates_WD = np.where(unknown_WD, worker_states["last_covariates"], covariates_WD)
    worker_states |= {"covariate_spread": spread_WD, "covariate_mean": mean_WD, "last_covariates": covariates_WD}


def running_scale(worker_states: WorkerStates) -> Array:
    """Return the running scale of each worker's changes in log speed, ``[W]``, never zero."""
    return np.asarray(np.fmax(worker_states["scale"], 1e-3))


PRIOR_VARIANCE = 0.05
"""Variance of each weight before anything is learned. Weights start at zero, which forecasts the last value."""

FORGETTING = 0.998
"""Factor by which the weight of the past shrinks in each iteration: one counts half after 350."""


def rls_step(
    weights_WF: Array, covariance_WFF: Array, inputs_WF: Array, error_W: Array, penalty_W: Array, max_trace: float
) -> None:
    """Take one weighted step of recursive least squares in place, against the error of each worker's forecast.

    Without an error (NaN) a worker learns nothing. An example counts ``penalty_W`` times less, at least 1. Forgetting
    inflates the covariance, without end where inputs stay zero, so its trace is bounded.
    """
    seen_W = np.isfinite(error_W)
    # of endless noise nothing is learned
    error_W, noise_W = np.where(seen_W, error_W, 0.0), np.where(seen_W, FORGETTING * penalty_W, np.inf)
    moved_WF = np.einsum("wfg,wg->wf", covariance_WFF, inputs_WF)
    total_W = noise_W + np.add.reduce(inputs_WF * moved_WF, axis=1)
    weights_WF += moved_WF * (error_W / total_W)[:, None]
    learned_WF = moved_WF * (1.0 / np.sqrt(total_W))[:, None]
    covariance_WFF -= learned_WF[:, :, None] * learned_WF[:, None, :]
    trace_W = np.add.reduce(covariance_WFF.diagonal(0, 1, 2), axis=1)
    factor_W = np.minimum(1.0 / FORGETTING, max_trace / np.maximum(trace_W, 1e-300))
    covariance_WFF *= np.where(seen_W, factor_W, 1.0)[:, None, None]


def add_examples(fleet: dict[str, Array], counted_FW: Array, inputs_WF: Array, target_W: Array) -> bool:
    """Add weighted examples of all workers to shared normal equations, and return whether to solve them now.

    The last column of ``products`` is the right side. Later inputs that were left out are 0. After 64 iterations the
    solution moves slowly, and is needed only every eight.
    """
    places, count = inputs_WF.shape[1], int(fleet["iterations"][0])
    products_FF = FORGETTING * fleet["products"]  # a new array, as what was asked before holds the old one
    products_FF[:places, :places] += counted_FW @ inputs_WF
    products_FF[:places, -1] += counted_FW @ target_W
    fleet.update(products=products_FF, iterations=fleet["iterations"] + 1.0)
    return count < 64 or count % 8 == 0


def solve_ridge(products_FF: Array, ridge: float, prior_F: Array) -> Array:
    """Return the weights that solve these normal equations; what they are away from the prior costs ``ridge``."""
    penalized_FF = products_FF[:, :-1] + ridge * np.eye(len(products_FF))
    return np.asarray(np.linalg.solve(penalized_FF, products_FF[:, -1] + ridge * prior_F), dtype=np.float64)


class RLS(FleetPredictor):
    """Robust recursive least squares: a linear ARX model of each worker that never stops learning.

    It forecasts the next log speed as a difference from the last one, in units of the worker's running scale, from past
    speeds, averages and covariates. With all weights at zero it forecasts the last value. Errors get Huber's weights,
    and the covariance is bounded, so that neither an outlier nor a long constant stretch makes it diverge.

    Parameters
    ----------
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share (none before that), ``()`` none.

    Notes
    -----
    Fitting is optional. It learns where a new worker's weights start: at the median of the fitted workers, with a
    variance that is smaller the better those agree.

    Examples
    --------
    A worker alternates between 100 and 50 samples/s; after a while the forecast alternates too:

    >>> from paceline.predictors import RLS, Report
    >>> model = RLS()
    >>> model.reset(["a"])
    >>> for k in range(101):
    ...     model.observe(Report(samples=[100], seconds=[1 + k % 2]))
    >>> bool(model.predict().speed[0] < 55)
    True
    """

    def __init__(self, covariates: Sequence[str] | None = None) -> None:
        super().__init__()
        self.covariates = None if covariates is None else validated_covariate_names(covariates)
        self.covariate_names_: tuple[str, ...] = self.covariates or ()
        self._cached: tuple[Array, Array, Array, Array] | None = None
        self._set_zero_prior()

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        summary = fit_options.summarize(traces)
        # With a warm start workers start from the earlier prior, and move it as far as they move.
        if not fit_options.warm_start:
            self.covariate_names_ = summary.select_covariates(self.covariates, shared_only=True)
            self._set_zero_prior()
        learned = []
        for trace in fit_options.drop_held_out(traces):
            served = copy.copy(self)
            served.reset(trace.workers)
            covariates_TWD = trace.covariates_named(self.covariate_names_)
            for k, speed_W in enumerate(trace.speed):
                served.update(
                    speed_W, served._validated_covariates(None if covariates_TWD is None else covariates_TWD[k])
                )
            learned.append(served.state["weights"])
        weights_WF = np.concatenate(learned)
        center_F = np.median(weights_WF, axis=0)
        # 1.4826 turns the median absolute deviation into the standard deviation of normal numbers.
        variance_F = np.square(1.4826 * np.median(np.abs(weights_WF - center_F), axis=0))
        self.prior_weights_ = center_F
        # at least 0.002 even where all fitted workers agree: a new worker may differ
        self.prior_variance_ = np.clip(variance_F, 0.002, PRIOR_VARIANCE)
        self.reset(self.workers)
        return self

    def _set_zero_prior(self) -> None:
        inputs = NUM_SPEED_INPUTS + 2 * len(self.covariate_names_)
        self.prior_weights_ = np.zeros(inputs)
        self.prior_variance_ = np.full(inputs, PRIOR_VARIANCE)

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        return {
            "covariate_names": np.array(self.covariate_names_, dtype=np.str_),
            "prior_weights": self.prior_weights_,
            "prior_variance": self.prior_variance_,
        }

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.covariate_names_ = tuple(map(str, state.get("covariate_names", self.covariate_names_)))
        self._set_zero_prior()
        self.prior_weights_ = load_finite(state, "prior_weights", self.prior_weights_)
        self.prior_variance_ = load_finite(state, "prior_variance", self.prior_variance_)
        if not (self.prior_variance_ > 0).all():
            raise ValueError(f"the saved prior_variance must be above 0: {DAMAGED}")

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return initial_inputs(num_workers, len(self.covariate_names_)) | {
            "weights": np.tile(self.prior_weights_, (num_workers, 1)),
            "covariance": np.tile(np.diag(self.prior_variance_), (num_workers, 1, 1)),
        }

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        worker_states, (inputs_WF, scale_W) = self.state, self._inputs(covariates_WD)
        step_W = bound_step(np.add.reduce(inputs_WF * worker_states["weights"], axis=1), max_step(inputs_WF))
        return np.asarray(np.exp(worker_states["log_speed"][:, 0] + scale_W * step_W))

    def _inputs(self, covariates_WD: Array) -> tuple[Array, Array]:
        """Return the inputs, and each worker's scale, cached from the forecast until its iteration is learned."""
        cached, memory_WR = self._cached, self.state["log_speed"]
        if cached is None or cached[0] is not memory_WR or cached[1] is not covariates_WD:
            scale_W = running_scale(self.state)
            cached = self._cached = (memory_WR, covariates_WD, make_inputs(self.state, covariates_WD, scale_W), scale_W)
        return cached[2], cached[3]

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        log_speed_W, (inputs_WF, scale_W) = np.log(speed_W), self._inputs(covariates_WD)
        target_W = target_change(self.state, log_speed_W, scale_W)
        error_W = target_W - np.add.reduce(inputs_WF * self.state["weights"], axis=1)
        rls_step(
            self.state["weights"],
            self.state["covariance"],
            inputs_WF,
            error_W,
            example_penalty(error_W, inputs_WF, inputs_WF.shape[1]),
            max_trace=float(self.prior_variance_.sum()),
        )
        self._cached = None
        advance_inputs(self.state, log_speed_W, covariates_WD, scale_W)
