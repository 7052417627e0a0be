"""Ahead: what a predictor learns for one horizon beyond the next iteration, once somebody asks for that horizon.

Axes: W workers, P numbers expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from paceline._arrays import Array
from paceline.predictors.fleet import FleetPredictor

MAX_HORIZONS, MAX_HORIZON = 3, 64
"""Most horizons above 1 learned at the same time, and the farthest: what is expected is kept until it passes."""


class LearnsAhead(Protocol):
    """A predictor that can learn for several horizons."""

    def _fresh_ahead(self, count: int) -> dict[str, Array]:
        """Return what is learned for one horizon about ``count`` new workers."""
        ...

    def _fresh_fleet_ahead(self) -> dict[str, Array]:
        """Return what is learned for one horizon about the whole fleet."""
        ...

    def _width_ahead(self) -> int:
        """Return how many numbers about each worker are kept until the iteration comes that they are about."""
        ...


class Ahead(FleetPredictor):
    """State learned for one horizon, and the forecasts at this horizon of iterations still to come.

    Parameters
    ----------
    owner
        The predictor whose forecasts these are.
    horizon
        Iterations ahead, above 1.
    """

    def __init__(self, owner: LearnsAhead, horizon: int) -> None:
        super().__init__()
        self.owner, self.horizon = owner, horizon

    def initial_state(self, count: int) -> dict[str, Array]:
        expected = np.full((count, self.horizon - 1, self.owner._width_ahead()), np.nan, order="F")
        return self.owner._fresh_ahead(count) | {"expected": expected}

    def initial_shared_state(self) -> dict[str, Array]:
        return self.owner._fresh_fleet_ahead() | {"idle": np.zeros(1), "place": np.zeros(1)}

    @property
    def rows(self) -> dict[str, Array]:
        """Learned state of each worker."""
        return self.state

    @property
    def fleet(self) -> dict[str, Array]:
        """Learned state of the whole fleet."""
        return self.shared_state

    def start_as(self, rows: Mapping[str, Array]) -> None:
        """Start with what is known about each worker's next iteration, where that is of the same kind."""
        self.state.update({name: rows[name].copy(order="F") for name in self.state if name in rows})

    def passed(self, expected_WP: Array) -> Array:
        """Store a later iteration's forecast, and return the stored one of the iteration just finished, ``[W, P]``.

        Numbers at the end that are left out are not known, and not returned.
        """
        # All in place: this is by far the largest array.
        expected_WHP, place, width = self.state["expected"], int(self.fleet["place"][0]), expected_WP.shape[1]
        passed_WP = expected_WHP[:, place, :width].copy(order="F")
        expected_WHP[:, place, :width] = expected_WP
        expected_WHP[:, place, width:] = np.nan
        self.fleet["place"][0] = (place + 1) % expected_WHP.shape[1]
        return passed_WP
