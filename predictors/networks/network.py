"""Base class of networks: their weights, and the drivers they were fitted with. Axis: D drivers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._require import require
from paceline.predictors.fitting import Fitting
from paceline.predictors.fleet import FleetPredictor
from paceline.predictors.ranges import driver_names

if TYPE_CHECKING:
    from paceline.datasets import Trace


class Network(FleetPredictor):
    """A predictor with weights that torch fits; its inputs hold drivers in deviations from their mean.

    Parameters
    ----------
    drivers
        Names of the drivers to use; ``None`` leaves the choice to the fit.
    """

    def __init__(self, drivers: Sequence[str] | None) -> None:
        super().__init__()
        self.drivers = None if drivers is None else driver_names(drivers)
        self.weights_: dict[str, Array] = {}
        self.driver_names_: tuple[str, ...] = self.drivers or ()
        self.driver_mean_ = np.zeros(len(self.driver_names_))
        self.driver_scale_ = np.ones(len(self.driver_names_))

    @property
    def driver_names(self) -> tuple[str, ...]:
        """The drivers it reads: those chosen, or those it was fitted with."""
        return self.driver_names_

    def fit(self, traces: Iterable[Trace]) -> Self:
        """Fit the network to all workers of these traces, on the inputs that serving would have seen. Needs torch."""
        require("torch", needed_by=f"{type(self).__name__}.fit", extra="torch")
        return self.fit_streamed(list(traces), Fitting())

    @abstractmethod
    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the network to traces that may be read more than once and never all at once. Needs torch."""

    def _learnt(self) -> dict[str, NDArray[Any]]:
        return {
            **self.weights_,
            "driver_names": np.array(self.driver_names_, dtype=np.str_),
            "driver_mean": self.driver_mean_,
            "driver_scale": self.driver_scale_,
        }

    def _load_learnt(self, learnt: Mapping[str, NDArray[Any]]) -> None:
        learnt = dict(learnt)
        self.driver_names_ = tuple(map(str, learnt.pop("driver_names", self.driver_names_)))
        self.driver_mean_ = np.array(learnt.pop("driver_mean", self.driver_mean_))
        self.driver_scale_ = np.array(learnt.pop("driver_scale", self.driver_scale_))
        for name, values in (("driver_mean", self.driver_mean_), ("driver_scale", self.driver_scale_)):
            if values.shape != (len(self.driver_names_),) or not np.isfinite(values).all():
                raise ValueError(f"{name} must hold a finite number for each of the drivers {self.driver_names_}")
        self.weights_ = {name: np.array(value) for name, value in learnt.items()}
        if odd := [name for name, value in self.weights_.items() if not np.isfinite(value).all()]:
            raise ValueError(f"weights must be finite, but {odd} are not")
