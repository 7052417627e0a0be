"""Adopted: lets a mixture or another wrapper hold any predictor that keeps only the public contract.

Axes: W workers, D covariates.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.predictors.fitting import Fitting, as_traces, fit_with
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.named import named
from paceline.predictors.protocol import Forecast, Predictor, Report

if TYPE_CHECKING:
    from paceline.datasets import Trace

PREFIX = "learned/adopted/"


def adopted(predictor: str | Predictor) -> FleetPredictor:
    """Return a predictor that a wrapper can hold: a new one by name, or a copy of the given one.

    Raises
    ------
    ValueError
        If there is no predictor of that name.
    """
    if isinstance(predictor, str):
        return named(predictor)
    mine = copy.deepcopy(predictor)
    return mine if isinstance(mine, FleetPredictor) else Adopted(mine)


class Adopted(FleetPredictor):
    """A user's own predictor, called only through the public contract.

    Parameters
    ----------
    predictor
        Any object that keeps the contract: see :class:`paceline.predictors.Predictor`.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates that it reads."""
        return tuple(self.predictor.covariate_names)

    def fit(self, traces: Trace | Iterable[Trace]) -> Self:
        """Fit the predictor to these traces."""
        self.predictor.fit(as_traces(traces))
        return self

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the predictor to a stream, if it can be fitted to one."""
        fit_with(self.predictor, traces, fitting)
        return self

    def reset(self, workers: Sequence[str]) -> None:
        super().reset(workers)
        self.predictor.reset(self.workers)

    def join(self, worker: str) -> None:
        super().join(worker)
        self.predictor.join(worker)

    def leave(self, worker: str) -> None:
        super().leave(worker)
        self.predictor.leave(worker)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.predictor.rename(old, new)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return super().state_dict() | {PREFIX + name: value for name, value in self.predictor.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().load_state_dict({name: value for name, value in state.items() if not name.startswith(PREFIX)})
        mine = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
        self.predictor.load_state_dict(mine)

    def initial_state(self, count: int) -> dict[str, Array]:
        return {"seen": np.zeros(count)}

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        # The contract is a forecast for every worker, from a prior if necessary. Wrappers need NaN for unknown workers,
        # so that a prior is never weighted against a measurement.
        return np.where(self.state["seen"] > 0, self.make_forecast(covariates_WD, horizon).speed, np.nan)

    def make_forecast(self, covariates_WD: Array, horizon: int) -> Forecast:
        return self.predictor.predict(covariates=covariates_WD if self.covariate_names else None, horizon=horizon)

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        self.predictor.observe(replace(report, covariates=covariates_WD if self.covariate_names else None))
        self.state["seen"] = self.state["seen"] + np.isfinite(speed_W)
