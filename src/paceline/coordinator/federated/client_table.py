"""All that is known of clients: their rows, and two predictors of what they compute and communicate.

The clients are the fleet of both predictors, in the same order; a client that is not asked in a round has no report.
Axes: N rows, one for each known client; W clients of one round.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.federated.clients import Clients, Rows
from paceline.coordinator.federated.following import Following
from paceline.coordinator.federated.round_reasons import ForecastSource
from paceline.coordinator.federated.unseen import UNKNOWN_SPREAD, drawn
from paceline.predictors import Curves, Forecast, Predictor, Report

PRIOR_SPEED = 1.0
"""Speed in samples/s before anybody reported: only ratios count, and all are equal."""

BRIEFEST_COMM = 1e-6
"""Communication is forecast as a speed, in models a second, so a time of 0 counts as this many seconds."""

PARTS = {"speed": ("computed", PRIOR_SPEED), "comm": ("communicated", 1.0 / BRIEFEST_COMM)}
"""The two predictors by name, with the column that counts their reports and the forecast before any."""


@runtime_checkable
class Resizes(Protocol):
    """Optional part of a predictor's contract: many workers join or leave at once, where one by one takes too long."""

    def join_all(self, workers: Sequence[str]) -> None:
        """Add workers at the end of the fleet; the others keep their state."""
        ...

    def leave_all(self, workers: Sequence[str]) -> None:
        """Remove workers; the others keep their state."""
        ...


@dataclass(frozen=True, eq=False)
class Expected:
    """Forecast of one quantity for the clients of a round.

    Parameters
    ----------
    speed
        In samples/s, or models/s, ``[W]``.
    spread
        Relative deviation, ``[W]``; infinite where nothing is known.
    source
        Basis of the forecast, as `ForecastSource`, ``[W]``.
    curves
        Seconds for a number of samples, or of models, ``[W]``.
    """

    speed: Array
    spread: Array
    source: Sizes
    curves: Curves


class Known:
    """Clients by id with the forecasts of their speed and of their time to communicate, kept in step.

    Parameters
    ----------
    predictor
        Predictor, copied for speeds and for times to communicate.
    most
        How many clients are known at once.
    again
        As for `Following`.
    """

    def __init__(self, predictor: Predictor, most: int, again: int) -> None:
        self.clients = Clients(most)
        self.following = Following(self.clients, again)
        self.predictors = {part: copy.deepcopy(predictor) for part in PARTS}
        self._forecast: dict[str, Forecast] = {}

    def join(self, names: Sequence[str], round_index: int) -> Rows:
        """Return the row of each client, ``[W]``; new clients get a row, for which the longest unseen are forgotten."""
        oldest = self.clients.in_the_way(names)
        if oldest:
            self.leave(oldest)
        new = self.clients.new(names)
        if new:
            self.clients.join(new, round_index=round_index)
            for part, predictor in self.predictors.items():
                self._extend(predictor, new, anything_learnt=bool(self.clients.column(PARTS[part][0]).any()))
        return self.clients.rows(names)

    def leave(self, names: Sequence[str]) -> None:
        """Forget clients."""
        self.clients.leave(names)
        for predictor in self.predictors.values():
            if isinstance(predictor, Resizes):
                predictor.leave_all(names)
            else:
                for name in names:
                    predictor.leave(name)
        self._forecast = {}

    def observe(self, part: str, rows: Rows, samples_W: Array, seconds_W: Array) -> None:
        """Learn the reports of these rows, and count an iteration without a report for all others."""
        samples_N, seconds_N = np.full((2, len(self.clients)), np.nan)
        samples_N[rows], seconds_N[rows] = samples_W, seconds_W
        report = Report(samples=samples_N, seconds=seconds_N)
        if len(self.clients):
            self.predictors[part].observe(report)
        self.clients.column(PARTS[part][0])[rows] += np.isfinite(report.speed[rows])
        self._forecast.pop(part, None)

    def expected(self, part: str, rows: Rows, device_W: Sizes, ceiling_W: Array | float = np.inf) -> Expected:
        """Return the forecast for these rows, -1 for a client that is not known; its device type may be.

        ``ceiling_W`` is the most that is forecast of those that did not answer in time. What was learnt of them stays
        as it is, for they may as well have been switched off.
        """
        counted, prior = PARTS[part]
        own_W = self.clients.taken(counted, rows) > 0
        log_M, told = self._log_told(part)
        mean_W, spread_W, source_W = drawn(log_M, self.clients.column("device")[told], device_W, np.log(prior))
        speed_W, own = np.exp(mean_W), rows[own_W]
        if len(own):
            forecast = self._forecast_of(part)
            speed_W[own_W], spread_W[own_W], source_W[own_W] = (
                forecast.speed[own],
                forecast.spread[own],
                ForecastSource.OWN,
            )
        # A prior alone is not knowledge: a ceiling would make it look like some.
        held_W = (ceiling_W < speed_W) & (source_W != ForecastSource.NOTHING)
        speed_W, source_W = np.where(held_W, ceiling_W, speed_W), np.where(held_W, ForecastSource.SILENCE, source_W)
        curves, free_W = Curves.from_speed(speed_W), own_W & ~held_W
        if free_W.any():
            for name in ("floor", "slope", "intercept", "limit"):
                getattr(curves, name)[free_W] = getattr(forecast.curves, name)[rows[free_W]]
        return Expected(speed_W, spread_W, source_W, curves)

    def usual(self, part: str) -> float:
        """Return the geometric mean of the forecasts of all clients that ever reported; NaN if none did."""
        log_M, _ = self._log_told(part)
        return float(np.exp(log_M.mean())) if len(log_M) else float("nan")

    def usual_spread(self) -> float:
        """Return the usual deviation of a log speed from its forecast, for clients that reported only once."""
        told = np.flatnonzero(self.clients.column("computed"))
        spread_M = self._forecast_of("speed").spread[told] if len(told) else np.empty(0)
        compared_M = spread_M[np.isfinite(spread_M)]
        return float(np.sqrt(np.mean(np.square(compared_M)))) if len(compared_M) else UNKNOWN_SPREAD

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything, as arrays with a row a client."""
        states = {part: predictor.state_dict() for part, predictor in self.predictors.items()}
        states = {"clients": self.clients.state_dict(), **states}
        return {f"{part}/{name}": value for part, state in states.items() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a state, into a new object only: an incomplete state may fail half-way.

        Raises
        ------
        ValueError
            If it is not whole, holds more clients than may be known, or comes from another predictor.
        """
        count, most = len(state["clients/names"]), self.clients.most
        if count > most:
            raise ValueError(f"the state holds {count} clients, but most_clients is {most}")
        try:
            self.clients.load_state_dict(_part(state, "clients"))
        except KeyError as error:
            raise ValueError(f"the state is not whole, it lacks {error}: was it saved by another version?") from error
        for part, predictor in self.predictors.items():
            predictor.load_state_dict(_part(state, part))
            if list(predictor.workers) != self.clients.names:
                raise ValueError(f"the state is not whole: the predictor of {part} holds other clients")

    # -- what it is made of --------------------------------------------------------------------------------------

    def _extend(self, predictor: Predictor, new: Sequence[str], *, anything_learnt: bool) -> None:
        if not anything_learnt:  # at once, as there is nothing to keep
            predictor.reset(self.clients.names)
        elif isinstance(predictor, Resizes):
            predictor.join_all(new)
        else:
            for name in new:
                predictor.join(name)

    def _forecast_of(self, part: str) -> Forecast:
        """Return the forecast of all rows, made once a round."""
        if part not in self._forecast:
            self._forecast[part] = self.predictors[part].predict()
        return self._forecast[part]

    def _log_told(self, part: str) -> tuple[Array, Rows]:
        """Return the log forecasts of all that ever reported, and their rows."""
        told = np.flatnonzero(self.clients.column(PARTS[part][0]))
        return (np.log(self._forecast_of(part).speed[told]) if len(told) else np.empty(0)), told


def _part(state: Mapping[str, NDArray[Any]], part: str) -> dict[str, NDArray[Any]]:
    return {name[len(part) + 1 :]: value for name, value in state.items() if name.startswith(f"{part}/")}
