"""Known clients: a row of an array for each, found by its id. Axes: N rows, W clients of one round."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Mask, Sizes, substate
from paceline.coordinator.federated.rounds import ForecastSource, RoundReport
from paceline.predictors import Curves, Forecast, Predictor, Report

ClientIndices = NDArray[np.intp]

FIT_MOMENTS = ("fit_count", "fit_x", "fit_y", "fit_xx", "fit_xy", "fit_yy")
"""Columns of the sums behind the fit of a client's time against its samples; see `BatchTimeFits`."""

CLIENT_COLUMNS: dict[str, tuple[type, float]] = {
    "data": (np.float64, np.nan),
    "memory": (np.float64, np.inf),
    "fits": (np.float64, np.inf),
    "device": (np.int64, 0),
    "silent": (np.int64, 0),
    "left_out": (np.int64, 0),
    "rejected": (np.int64, 0),
    "computed": (np.int64, 0),
    "communicated": (np.int64, 0),
    "ceiling": (np.float64, np.inf),
    "state": (np.int64, 0),
    "turn": (np.int64, 0),
    "base": (np.float64, 0.0),
    **dict.fromkeys(FIT_MOMENTS, (np.float64, 0.0)),
}
"""Columns that are kept of each client, with the value for a new one.

``data`` and ``memory`` as it says, and what ``fits`` as learned when it ran out of memory, in samples; ``silent``,
``left_out`` and ``rejected`` rounds in a row; ``computed`` and ``communicated`` reports that a predictor got;
``ceiling`` the largest speed that its silence allows, in samples/s; the rest is that of `BatchTimeFits`.
"""


def prior_log_speed(log_M: Array, device_M: Sizes, device_W: Sizes, prior: float) -> tuple[Array, Array, Sizes]:
    """Return mean and deviation of each client's log speed by its device type, and the `ForecastSource`, ``[W]``.

    Where no client of the type has reported, those of all clients; where nobody has, the prior, infinitely uncertain.
    """
    if not len(log_M):
        unknown = np.full(len(device_W), ForecastSource.NOTHING, dtype=np.int64)
        return np.full(len(device_W), prior), np.full(len(device_W), np.inf), unknown
    count_D = np.bincount(device_M, minlength=int(device_W.max(initial=0)) + 1)
    mean_D = np.bincount(device_M, log_M, len(count_D)) / np.maximum(count_D, 1)
    squares_D = np.bincount(device_M, np.square(log_M - mean_D[device_M]), len(count_D))
    fleet = float(np.var(log_M, ddof=1)) if len(log_M) > 1 else 0.2**2
    # two clients of a type count as much for its deviation as that of all clients does
    variance_D = (squares_D + 2.0 * fleet) / (np.maximum(count_D, 1) + 1.0) * (1 + 1 / np.maximum(count_D, 1))
    # Clients whose type is not known have nothing in common: index 0 is no type.
    typed_W = (device_W > 0) & (count_D[device_W] > 0)
    mean_W = np.where(typed_W, mean_D[device_W], log_M.mean())
    variance_W = np.where(typed_W, variance_D[device_W], fleet * (1 + 1 / len(log_M)))
    return mean_W, np.sqrt(variance_W), np.where(typed_W, ForecastSource.DEVICE, ForecastSource.FLEET)


# Speed in samples/s before any report: only ratios count.
FORECAST_QUANTITIES = {"speed": ("computed", 1.0), "comm": ("communicated", 1e6)}
"""The two predictors by name, with the column that counts their reports and the forecast before any."""


class Clients:
    """Clients by id in the order of joining: what is kept of each in columns, and forecasts, kept in step.

    Speeds and times to communicate are forecast by two copies of the predictor.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.columns: dict[str, NDArray[Any]] = {name: np.empty(0, kind) for name, (kind, _) in CLIENT_COLUMNS.items()}
        self._row_by_client: dict[str, int] = {}
        self._devices: dict[str, int] = {"": 0}
        self._predictors = {part: copy.deepcopy(predictor) for part in FORECAST_QUANTITIES}

    def __len__(self) -> int:
        return len(self._row_by_client)

    def __contains__(self, name: str) -> bool:
        return name in self._row_by_client

    @property
    def names(self) -> list[str]:
        """Names of the known clients, in the order in which they joined."""
        return list(self._row_by_client)

    def indices(self, client_names: Sequence[str]) -> ClientIndices:
        """Return the row of each, -1 where it is not known, ``[W]``."""
        return np.array([self._row_by_client.get(name, -1) for name in client_names], dtype=np.intp)

    def column_values(self, column: str, index_W: ClientIndices) -> Array:
        """Return a column at these rows as float64, ``[W]``; a row of -1 gets the value of a new client."""
        values_W: Array = np.full(len(index_W), CLIENT_COLUMNS[column][1], dtype=np.float64)
        values_W[index_W >= 0] = self.columns[column][index_W[index_W >= 0]]
        return values_W

    def join(self, client_names: Sequence[str]) -> ClientIndices:
        """Return the row of each client, ``[W]``; new clients get a row."""
        new = [name for name in client_names if name not in self._row_by_client]
        if new:
            self._row_by_client |= {name: len(self) + i for i, name in enumerate(new)}
            for column, (kind, fresh) in CLIENT_COLUMNS.items():
                self.columns[column] = np.append(self.columns[column], np.full(len(new), fresh, kind))
            for part, predictor in self._predictors.items():
                if not self.columns[FORECAST_QUANTITIES[part][0]].any():  # no report was learned: a reset loses nothing
                    predictor.reset(self.names)
                elif hasattr(predictor, "join_all"):
                    predictor.join_all(new)
                else:
                    for name in new:
                        predictor.join(name)
        return self.indices(client_names)

    def leave(self, client: str) -> None:
        """Forget a client; those behind it move up."""
        row = self._row_by_client[client]
        self._row_by_client = {
            other: row for row, other in enumerate(other for other in self._row_by_client if other != client)
        }
        self.columns = {column: np.delete(values, row) for column, values in self.columns.items()}
        for predictor in self._predictors.values():
            predictor.leave(client)

    def device_indices(self, devices: Sequence[str]) -> Sizes:
        """Return the index of each device type, ``[W]``; one not met before gets the next while there are any."""
        known = self._devices
        for device in devices:
            # Device types that are kept apart: they are names that clients send, so their number must be bounded.
            if device not in known and len(known) < 10_000:
                known[device] = len(known)
        return np.array([known.get(device, known[""]) for device in devices], dtype=np.int64)

    def observe(self, quantity: str, index_W: ClientIndices, samples_W: Array, seconds_W: Array) -> None:
        """Learn the reports of these rows, and count an iteration without a report for all others."""
        samples_N, seconds_N = np.full((2, len(self)), np.nan)
        samples_N[index_W], seconds_N[index_W] = samples_W, seconds_W
        report = Report(samples=samples_N, seconds=seconds_N)
        if len(self):
            self._predictors[quantity].observe(report)
        self.columns[FORECAST_QUANTITIES[quantity][0]][index_W] += np.isfinite(report.speed[index_W])

    def forecast_for(
        self, quantity: str, index_W: ClientIndices, device_W: Sizes, max_speed_W: Array | float = np.inf
    ) -> tuple[Forecast, Sizes]:
        """Return the forecast for these rows, -1 for a client that is not known, and its `ForecastSource`, ``[W]``.

        It is in samples/s, or models/s. ``max_speed_W`` is the most that is forecast of those that did not answer in
        time. What was learned of them stays as it is, for they may as well have been switched off.
        """
        counted, prior = FORECAST_QUANTITIES[quantity]
        seen_W = self.column_values(counted, index_W) > 0
        log_M, reported = self._reported_log_forecasts(quantity)
        mean_W, spread_W, source_W = prior_log_speed(log_M, self.columns["device"][reported], device_W, np.log(prior))
        speed_W, seen = np.exp(mean_W), index_W[seen_W]
        if len(seen):
            forecast = self._predictors[quantity].predict()
            speed_W[seen_W], spread_W[seen_W] = forecast.speed[seen], forecast.spread[seen]
            source_W[seen_W] = ForecastSource.CLIENT
        # A prior alone is not knowledge: a ceiling would make it look like some.
        held_W = (max_speed_W < speed_W) & (source_W != ForecastSource.NOTHING)
        speed_W, source_W = np.where(held_W, max_speed_W, speed_W), np.where(held_W, ForecastSource.SILENCE, source_W)
        curves, free_W = Curves.from_speed(speed_W), seen_W & ~held_W
        if free_W.any():
            for name in ("floor", "slope", "intercept", "limit"):
                getattr(curves, name)[free_W] = getattr(forecast.curves, name)[index_W[free_W]]
        return Forecast(speed_W, spread_W, batch_time=curves), source_W

    def mean_forecast(self, quantity: str) -> float:
        """Return the geometric mean of the forecasts of all clients that ever reported; NaN if none did."""
        log_M, _ = self._reported_log_forecasts(quantity)
        return float(np.exp(log_M.mean())) if len(log_M) else float("nan")

    def typical_spread(self) -> float:
        """Return the usual deviation of a log speed from its forecast, for clients that reported only once."""
        reported = np.flatnonzero(self.columns["computed"])
        spread_M = self._predictors["speed"].predict().spread[reported] if len(reported) else np.empty(0)
        compared_M = spread_M[np.isfinite(spread_M)]
        return float(np.sqrt(np.mean(np.square(compared_M)))) if len(compared_M) else 0.2

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything, as arrays with a row a client."""
        devices = np.array(list(self._devices), dtype=np.str_)
        own = {"names": np.array(self.names, dtype=np.str_), "devices": devices, **self.columns}
        states = {"clients": own, **{part: predictor.state_dict() for part, predictor in self._predictors.items()}}
        return {f"{part}/{name}": value.copy() for part, state in states.items() for name, value in state.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Load a state, into a new object only: one that is incomplete or of another predictor may fail half-way."""
        own = substate(state, "clients")
        names = [str(name) for name in own["names"]]
        if wrong := [name for name in CLIENT_COLUMNS if len(own.get(name, ())) != len(names)]:
            raise ValueError(
                f"the state must have one entry for each client in every column, but {wrong} do not: load "
                "one that this version of paceline saved"
            )
        self._row_by_client = {name: row for row, name in enumerate(names)}
        self._devices = {str(device): index for index, device in enumerate(own["devices"])}
        self.columns = {name: np.array(own[name], dtype=kind) for name, (kind, _) in CLIENT_COLUMNS.items()}
        for part, predictor in self._predictors.items():
            predictor.load_state_dict(substate(state, part))
            if list(predictor.workers) != names:
                raise ValueError(f"the predictor of {part} in the state has other clients than the state itself")

    def _reported_log_forecasts(self, quantity: str) -> tuple[Array, ClientIndices]:
        """Return the log forecasts of all that ever reported, and their rows."""
        reported = np.flatnonzero(self.columns[FORECAST_QUANTITIES[quantity][0]])
        return (
            np.log(self._predictors[quantity].predict().speed[reported]) if len(reported) else np.empty(0)
        ), reported


MIN_BATCH_TIME_SLOPE = 0.1
"""The smallest slope of log time over log batch that counts as following the batch.

Steps that cost as much besides their samples as nine batches follow by a tenth.
"""

TEST_BATCH_RATIO = 2.0
"""Factor between the two batches of a test, towards the mean batch."""

MIN_TEST_REPORTS = 4
"""Reports before a client may be suspected or found not to follow."""


class FitState(IntEnum):
    """Whether a client's time is known to follow its batch."""

    TRUSTED = 0
    TESTED = 1
    FLAT = 2


class BatchTimeFits:
    """Fits time against samples for every client, to detect clients whose time does not follow their batch.

    The fits are kept in the clients' columns. After ``retest_after`` reports a client whose time follows may be tested
    again, and one whose time does not is.
    """

    def __init__(self, clients: Clients, retest_after: int) -> None:
        self.clients = clients
        self.retest_after = retest_after

    def learn(
        self, index_W: ClientIndices, samples_W: Array, seconds_W: Array, size_W: Array, batch: float
    ) -> tuple[ClientIndices, ClientIndices]:
        """Learn these clients' times; return the rows newly found not to follow their batch, and those that do again.

        Samples and seconds are of all local steps; ``size_W`` is what each was given in a step, and ``batch`` the mean
        of all that were asked.
        """
        columns, x_W, y_W = self.clients.columns, np.log(samples_W), np.log(seconds_W)
        newest_6W = np.stack([np.ones(len(index_W)), x_W, y_W, x_W * x_W, x_W * y_W, y_W * y_W])
        before_6W = np.stack([columns[moment][index_W] for moment in FIT_MOMENTS])
        # A client that imported and compiled seems not to follow: a first report before a larger batch is left out.
        second_W = (before_6W[0] == 1) & (columns["state"][index_W] == FitState.TRUSTED)
        before_6W = np.where(second_W & (x_W > before_6W[1]), 0.0, before_6W)
        # about the last ten reports count
        moment_6W = 0.9 * before_6W + newest_6W
        slope_W, error_W, varied_W = _log_log_slope(moment_6W)
        high_W, low_W = slope_W + 1.64 * error_W, slope_W - 1.64 * error_W  # 95% of slopes lie beyond either
        state_W, turn_W = columns["state"][index_W], columns["turn"][index_W] + 1
        trusted_W, tested_W = state_W == FitState.TRUSTED, state_W == FitState.TESTED
        astray_W = np.abs(np.log(size_W / batch))
        # Factor between a client's batch and the mean batch, either way, from which a wrong fit does noticeable harm.
        fits_ill_W = varied_W & (high_W < 0.5) & (astray_W >= np.log(1.3))
        # Where the batch hardly moves no fit means anything: a client far from the mean is tested all the same, rarely.
        unknown_W = ~varied_W & (astray_W >= np.log(TEST_BATCH_RATIO))
        # a client whose batch hardly moves is tested five times more seldom
        due_W, rested_W = turn_W >= MIN_TEST_REPORTS, turn_W >= -4 * self.retest_after
        suspect_W = trusted_W & ((fits_ill_W & (due_W | ((turn_W < 0) & rested_W))) | (unknown_W & due_W))
        over_W = tested_W & (turn_W >= 8)
        follows_W = (low_W > MIN_BATCH_TIME_SLOPE) | (over_W & ((slope_W > MIN_BATCH_TIME_SLOPE) | ~varied_W))
        cleared_W = ~trusted_W & follows_W
        is_flat_W = varied_W & due_W & (high_W < MIN_BATCH_TIME_SLOPE)
        found_W = tested_W & ~cleared_W & (over_W | is_flat_W)
        columns["base"][index_W[suspect_W]] = size_W[suspect_W]
        changes = [suspect_W, cleared_W, found_W]
        columns["state"][index_W] = np.select(changes, [FitState.TESTED, FitState.TRUSTED, FitState.FLAT], state_W)
        columns["turn"][index_W] = np.select(changes, [0, -5 * self.retest_after, 0], turn_W)
        # Only what is tried from here on is a test.
        for moment, sum_W, newest_W in zip(FIT_MOMENTS, moment_6W, newest_6W, strict=True):
            columns[moment][index_W] = np.where(suspect_W, newest_W, sum_W)
        return index_W[found_W], index_W[cleared_W & (state_W == FitState.FLAT)]

    def state(self, index_W: ClientIndices) -> Sizes:
        """Return the `FitState` of each, ``[W]``; a row of -1 is a client that is not known."""
        return self.clients.column_values("state", index_W).astype(np.int64)

    def sizes(self, index_W: ClientIndices, batch: int, min_batch: int) -> Array:
        """Return the batches of clients that are not balanced now, ``[W]``; NaN for all others."""
        state_W = self.state(index_W)
        turn_W, base_W = self.clients.column_values("turn", index_W), self.clients.column_values("base", index_W)
        towards_W = np.where(base_W > batch, base_W / TEST_BATCH_RATIO, base_W * TEST_BATCH_RATIO)
        tested_W = np.where(turn_W % 2 == 0, np.floor(towards_W), base_W)
        is_retest_W = turn_W % self.retest_after == self.retest_after - 1
        flat_W = np.floor(np.where(is_retest_W, max(batch / TEST_BATCH_RATIO, 1.0), batch))
        fixed_W = np.select([state_W == FitState.TESTED, state_W == FitState.FLAT], [tested_W, flat_W], np.nan)
        size_W: Array = np.maximum(fixed_W, min(min_batch, batch))
        return size_W

    def seconds(self, index_W: ClientIndices) -> Array:
        """Return the usual time of clients whose time does not follow their batch, ``[W]``; NaN for all others."""
        flat_W = self.state(index_W) == FitState.FLAT
        count_W = np.where(flat_W, self.clients.column_values("fit_count", index_W), 1.0)
        return np.where(flat_W, np.exp(self.clients.column_values("fit_y", index_W) / count_W), np.nan)


def _log_log_slope(moment_6W: Array) -> tuple[Array, Array, Mask]:
    """Return the slope of the log time over the log samples, its deviation, and who has batches apart, ``[W]``."""
    count_W, x_W, y_W, xx_W, xy_W, yy_W = moment_6W
    sxx_W, sxy_W, syy_W = xx_W - x_W * x_W / count_W, xy_W - x_W * y_W / count_W, yy_W - y_W * y_W / count_W
    # Smallest deviation of the batches, in the log, that makes a fit meaningful.
    varied_W: Mask = sxx_W > 0.1**2 * count_W
    slope_W = np.where(varied_W, sxy_W / np.where(varied_W, sxx_W, 1.0), 0.0)
    rest_W = np.maximum(syy_W - slope_W * sxy_W, 0.0) / np.maximum(count_W - 2.0, 1.0)
    error_W = np.sqrt(np.maximum(rest_W, 0.1**2) / np.where(varied_W, sxx_W, 1e-9))
    return slope_W, error_W, varied_W


def plausible_speeds(report: RoundReport, typical_speed: float, max_speed_ratio: float) -> Mask:
    """Return which speeds are plausible, ``[W]``: within ``max_speed_ratio`` times the typical speed, either way.

    Where the server measured the round trip, any slowness within it is accepted, and nothing beyond it.
    ``typical_speed`` is the mean speed of all clients so far, NaN before any report.
    """
    speed_W = report.speed
    usable_W = np.isfinite(speed_W)
    if not usable_W.any():
        return usable_W
    with np.errstate(invalid="ignore"):
        usable_W &= ~(report.seconds > _max_elapsed_seconds(report))
    if math.isnan(typical_speed):
        # The lower of two medians: of two clients that disagree the faster is the one to doubt.
        known_W = np.sort(speed_W[np.isfinite(speed_W)])
        typical_speed = float(known_W[(len(known_W) - 1) // 2])
    ratio_W = np.where(usable_W, speed_W, typical_speed) / typical_speed
    # A stalled client may be as slow as it likes, if the server saw that time pass.
    confirmed_W = np.isfinite(report.elapsed) | (ratio_W >= 1.0 / max_speed_ratio)
    accepted_W: Mask = usable_W & (ratio_W <= max_speed_ratio) & confirmed_W
    return accepted_W


def plausible_comm_times(report: RoundReport, accepted_W: Mask, typical: float, max_speed_ratio: float) -> Mask:
    """Return which times to communicate are plausible, ``[W]``: within what the server saw pass, or not absurdly long.

    ``accepted_W`` masks the plausible speeds, and ``typical`` is the mean time so far, NaN before any report. The rest
    of a round trip after a computing time that cannot be is no time to communicate.
    """
    comm_W, seconds_W = report.communication, report.seconds[accepted_W]
    typical = max(np.nan_to_num(typical), float(np.median(seconds_W)) if len(seconds_W) else 0.0)
    seen_W = _max_elapsed_seconds(report)
    bound_W = np.where(np.isnan(seen_W), max_speed_ratio * typical, seen_W)
    measured_W = np.isfinite(report.comm_seconds) | accepted_W
    timed_W: Mask = measured_W & report.used & np.isfinite(comm_W) & (comm_W <= bound_W)
    return timed_W


def _max_elapsed_seconds(report: RoundReport) -> Array:
    """Return the longest time that a reply can have taken by the server's clock, ``[W]``; NaN if not measured."""
    # Two clocks may differ by this factor, and by this many seconds, and both be right.
    return 1.01 * report.elapsed + 0.01
