"""Base class of networks: their weights, and the covariates they were fitted with.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._require import require
from paceline.predictors.fitting import Fitting, Survey, as_traces
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.ranges import covariate_names
from paceline.predictors.report import FASTEST, SLOWEST

if TYPE_CHECKING:
    from paceline.datasets import Trace


Rows = dict[str, Array]

LOG_SPEEDS = (np.log(SLOWEST), np.log(FASTEST))
"""The least and the greatest log speed that a network forecasts."""


class Network(FleetPredictor):
    """A predictor with weights that torch fits; its inputs hold covariates in deviations from their mean.

    Parameters
    ----------
    covariates
        Names of the covariates to use; ``None`` leaves the choice to the fit.
    """

    def __init__(self, covariates: Sequence[str] | None) -> None:
        super().__init__()
        self.covariates = None if covariates is None else covariate_names(covariates)
        self.weights_: dict[str, Array] = {}
        self.covariate_names_: tuple[str, ...] = self.covariates or ()
        self.covariate_mean_ = np.zeros(len(self.covariate_names_))
        self.covariate_scale_ = np.ones(len(self.covariate_names_))

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads: those chosen, or those it was fitted with."""
        return self.covariate_names_

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Fit the network to these traces, on inputs as in serving. Needs torch. A fleet being served is reset."""
        return self.fit_streamed(as_traces(traces), Fitting())

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the network to traces that may be read more than once and never all at once. Needs torch."""
        require("torch", needed_by=f"{type(self).__name__}.fit", extra="torch")
        survey = fitting.surveyed(traces)
        if not fitting.warm:
            self.covariate_names_ = self._chosen_covariates(survey)
            self.covariate_mean_, self.covariate_scale_ = survey.mean_and_scale(self.covariate_names_)
            self.weights_ = {}
        self._fit_weights(traces, survey, fitting)
        self.reset(self.workers)
        return self

    def _chosen_covariates(self, survey: Survey) -> tuple[str, ...]:
        return survey.shared_covariates(self.covariates)

    @abstractmethod
    def _fit_weights(self, traces: Iterable[Trace], survey: Survey, fitting: Fitting) -> None:
        """Collect windows, and fit the weights to them, beginning with those that there are."""

    def situations(self, trace: Trace) -> Iterator[tuple[int, Rows, Array, Array]]:
        """Yield every iteration in which it would have forecast this trace, on inputs as it sees them in serving.

        Each comes with the workers' state before it, the covariates at its start, and its measured log speeds.
        """
        served = copy.copy(self)
        served.reset(trace.workers)
        covariates_TWD = trace.covariates_named(served.covariate_names)
        for k, log_speed_W in enumerate(np.log(trace.speed)):
            covariates_WD = served._covariate_rows(None if covariates_TWD is None else covariates_TWD[k])
            rows = served.state
            yield k, rows, covariates_WD, log_speed_W
            served.state = rows | served._moved(rows, log_speed_W, covariates_WD)

    # -- serving -------------------------------------------------------------------------------------------------

    def update(self, speed_W: Array, covariates_WD: Array) -> None:
        self.state = self._moved(self.state, np.log(speed_W), covariates_WD)

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        return np.exp(self._log_speed_ahead(covariates_WD, horizon))

    def _log_speed_ahead(self, covariates_WD: Array, horizon: int) -> Array:
        rows = self.state
        for _ in range(horizon - 1):  # further ahead, its own forecast is fed back and the covariates stay
            rows = self._moved(rows, self._next_log_speed(rows, covariates_WD), covariates_WD)
        return self._next_log_speed(rows, covariates_WD)

    @abstractmethod
    def _next_log_speed(self, rows: Rows, covariates_WD: Array) -> Array:
        """Return the log of the next speed."""

    @abstractmethod
    def _moved(self, rows: Rows, log_speed_W: Array, covariates_WD: Array) -> Rows:
        """Return the state one iteration later, after these log speeds (NaN where there is none)."""

    # -- saving --------------------------------------------------------------------------------------------------

    def fitted_state(self) -> dict[str, NDArray[Any]]:
        return {
            **self.weights_,
            "covariate_names": np.array(self.covariate_names_, dtype=np.str_),
            "covariate_mean": self.covariate_mean_,
            "covariate_scale": self.covariate_scale_,
        }

    def load_fitted_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        state = dict(state)
        self.covariate_names_ = tuple(map(str, state.pop("covariate_names", self.covariate_names_)))
        self.covariate_mean_ = np.array(state.pop("covariate_mean", self.covariate_mean_))
        self.covariate_scale_ = np.array(state.pop("covariate_scale", self.covariate_scale_))
        for name, values in (("covariate_mean", self.covariate_mean_), ("covariate_scale", self.covariate_scale_)):
            if values.shape != (len(self.covariate_names_),) or not np.isfinite(values).all():
                raise ValueError(f"{name} must hold a finite number for each of the covariates {self.covariate_names_}")
        self.weights_ = {name: np.array(value) for name, value in state.items()}
        if odd := [name for name, value in self.weights_.items() if not np.isfinite(value).all()]:
            raise ValueError(f"weights must be finite, but {odd} are not")


def scale_of(rows: Rows) -> Array:
    """Return the running scale of each worker's changes in log speed, ``[W]``, never zero."""
    return np.asarray(np.fmax(rows["scale"], 1e-3))  # fmax ignores NaN, which is unknown
