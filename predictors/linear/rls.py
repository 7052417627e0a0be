"""RLS: a linear autoregression with covariates per worker, learned robustly while it serves.

Axes: W workers, D covariates, R references, F inputs, T iterations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.predictors.fitting import Fitting, as_traces
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.linear import inputs
from paceline.predictors.linear.inputs import (
    REFERENCES,
    bounded,
    doubt_of,
    farness,
    inputs_of,
    reach_of,
    scale_of,
    target_of,
)
from paceline.predictors.linear.recursive import learn
from paceline.predictors.ranges import covariate_names

if TYPE_CHECKING:
    from paceline.datasets import Trace


PRIOR_VARIANCE = 0.05
"""Variance of each weight before anything is learned. Weights start at zero, which forecasts the last value."""


class RLS(FleetPredictor):
    """Robust recursive least squares: a linear ARX model of each worker that never stops learning.

    It forecasts the next log speed as a difference from the last one, in units of the worker's running scale, from past
    speeds, averages and covariates. With all weights at zero it forecasts the last value. Errors get Huber's weights,
    and the covariance is bounded, so that neither an outlier nor a long constant stretch makes it diverge.

    Parameters
    ----------
    covariates
        Names of the covariates to use; ``None`` takes all that the fitted traces share (none before that), ``()`` none.
    forgetting
        Factor by which the weight of the past shrinks in each iteration, in (0.9, 1]. With 0.998 an iteration counts
        half after 350; where the way that covariates act changes for good, 0.99 follows sooner and is noisier before.

    Raises
    ------
    ValueError
        If the forgetting is out of range, or the traces to fit lack a covariate.

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

    def __init__(self, covariates: Sequence[str] | None = None, forgetting: float = 0.998) -> None:
        if not 0.9 < forgetting <= 1.0:
            raise ValueError(f"forgetting must lie in (0.9, 1], got {forgetting}")
        super().__init__()
        self.covariates = None if covariates is None else covariate_names(covariates)
        self.forgetting = forgetting
        self.covariate_names_: tuple[str, ...] = self.covariates or ()
        self._cached: tuple[Array, Array, Array, Array] | None = None
        self._set_zero_prior()

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads: those chosen, or those it was fitted with."""
        return self.covariate_names_

    # -- the prior that fitting learns ---------------------------------------------------------------------------

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Learn where the weights of a new worker start, from these traces. A fleet being served is reset."""
        return self.fit_streamed(as_traces(traces), Fitting())

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Learn from traces that may be read more than once and never all at once."""
        survey = fitting.surveyed(traces)
        if not fitting.warm:  # otherwise workers start from the earlier prior, and move it as far as they move
            self.covariate_names_ = survey.shared_covariates(self.covariates)
            self._set_zero_prior()
        weights_WF = np.concatenate([self._learned_weights(trace) for trace in fitting.without_held_out(traces)])
        center_F = np.median(weights_WF, axis=0)
        # 1.4826 turns the median absolute deviation into the standard deviation of normal numbers.
        variance_F = np.square(1.4826 * np.median(np.abs(weights_WF - center_F), axis=0))
        self.prior_weights_ = center_F
        # at least 0.002 even where all fitted workers agree: a new worker may differ
        self.prior_variance_ = np.clip(variance_F, 0.002, PRIOR_VARIANCE)
        self.reset(self.workers)
        return self

    def _set_zero_prior(self) -> None:
        inputs = REFERENCES + 2 * len(self.covariate_names_)
        self.prior_weights_ = np.zeros(inputs)
        self.prior_variance_ = np.full(inputs, PRIOR_VARIANCE)

    def _learned_weights(self, trace: Trace) -> Array:
        served = copy.copy(self)
        served.reset(trace.workers)
        covariates_TWD = trace.covariates_named(self.covariate_names_)
        for k, speed_W in enumerate(trace.speed):
            served.update(speed_W, served._covariate_rows(None if covariates_TWD is None else covariates_TWD[k]))
        return served.state["weights"]

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        return {
            "covariate_names": np.array(self.covariate_names_, dtype=np.str_),
            "prior_weights": self.prior_weights_,
            "prior_variance": self.prior_variance_,
        }

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        self.covariate_names_ = tuple(map(str, state.get("covariate_names", self.covariate_names_)))
        self._set_zero_prior()
        self.prior_weights_ = np.array(state.get("prior_weights", self.prior_weights_))
        self.prior_variance_ = np.array(state.get("prior_variance", self.prior_variance_))
        inputs = (REFERENCES + 2 * len(self.covariate_names_),)
        for name, values in (("prior_weights", self.prior_weights_), ("prior_variance", self.prior_variance_)):
            if values.shape != inputs or not np.isfinite(values).all():
                raise ValueError(f"{name} must hold {inputs[0]} finite numbers, got the shape {values.shape}")
        if not (self.prior_variance_ > 0).all():
            raise ValueError("prior_variance must be above 0")

    # -- serving -------------------------------------------------------------------------------------------------

    def initial_state(self, count: int) -> dict[str, Array]:
        return inputs.fresh(count, len(self.covariate_names_)) | {
            "weights": np.tile(self.prior_weights_, (count, 1)),
            "covariance": np.tile(np.diag(self.prior_variance_), (count, 1, 1)),
        }

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        rows, (inputs_WF, scale_W) = self.state, self._inputs(covariates_WD)
        step_W = bounded(np.add.reduce(inputs_WF * rows["weights"], axis=1), reach_of(inputs_WF))
        return np.asarray(np.exp(rows["log_speed"][:, 0] + scale_W * step_W))

    def _inputs(self, covariates_WD: Array) -> tuple[Array, Array]:
        """Return the inputs, and each worker's scale, cached from the forecast until its iteration is learned."""
        cached, memory_WR = self._cached, self.state["log_speed"]
        if cached is None or cached[0] is not memory_WR or cached[1] is not covariates_WD:
            scale_W = scale_of(self.state)
            cached = self._cached = (memory_WR, covariates_WD, inputs_of(self.state, covariates_WD, scale_W), scale_W)
        return cached[2], cached[3]

    # -- learning ------------------------------------------------------------------------------------------------

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        log_speed_W, (inputs_WF, scale_W) = np.log(speed_W), self._inputs(covariates_WD)
        target_W = target_of(self.state, log_speed_W, scale_W)
        weights_WF, covariance_WFF = self.state["weights"], self.state["covariance"]
        error_W = target_W - np.add.reduce(inputs_WF * weights_WF, axis=1)
        doubt_W, largest = doubt_of(error_W, farness(inputs_WF, inputs_WF.shape[1])), float(self.prior_variance_.sum())
        learn(weights_WF, covariance_WFF, inputs_WF, error_W, doubt_W, self.forgetting, largest)
        self._cached = None
        inputs.move(self.state, log_speed_W, covariates_WD, scale_W)
