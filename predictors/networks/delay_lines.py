"""Pass traces through a network's own serving code, to collect the inputs it will see when it serves.

Axes: T iterations, W workers, D covariates.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from paceline._arrays import Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.datasets import Trace

Rows = dict[str, Array]
Situation = tuple[int, Rows, Array, Array]
"""An iteration, the workers' state before it, the covariates at its start, and its measured log speeds."""


class ServesFromRows(Protocol):
    """A network whose state any log speeds can advance: measured ones, or its own forecasts."""

    state: Rows

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates it reads."""
        ...

    def reset(self, workers: Sequence[str]) -> None:
        """Start with this fleet."""
        ...

    def _covariate_rows(self, covariates: Array | None) -> Array: ...

    def _moved(self, rows: Rows, log_speed_W: Array, covariates_WD: Array) -> Rows: ...

    def _next_log_speed(self, rows: Rows, covariates_WD: Array) -> Array: ...


def situations(model: ServesFromRows, trace: Trace, closed_loop: int = 1) -> Iterator[Situation]:
    """Yield every situation in which the model would have forecast this trace, one iteration after the other.

    With ``closed_loop`` above 1, each is followed by the situations that the model reaches when its own forecasts are
    fed back: up to ``closed_loop`` iterations ahead, with constant covariates, as when it serves at a longer horizon.

    A model trained on those learns to correct its own mistakes: Venkatraman, Hebert and Bagnell, Improving multi-step
    prediction of learned time series models, AAAI 2015.
    """
    served = copy.copy(model)
    served.reset(trace.workers)
    log_speed_TW = np.log(trace.speed)
    covariates_TWD = trace.covariates_named(served.covariate_names)
    for k, log_speed_W in enumerate(log_speed_TW):
        covariates_WD = served._covariate_rows(None if covariates_TWD is None else covariates_TWD[k])
        rows = served.state
        yield k, rows, covariates_WD, log_speed_W
        rolled = rows
        for ahead in range(k + 1, min(k + closed_loop, len(log_speed_TW))):
            rolled = served._moved(rolled, served._next_log_speed(rolled, covariates_WD), covariates_WD)
            yield ahead, rolled, covariates_WD, log_speed_TW[ahead]
        served.state = rows | served._moved(rows, log_speed_W, covariates_WD)
