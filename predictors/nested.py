"""Predictors made of other predictors, which join, leave, save and resume with the outer one.

Axes: W workers, D covariates, P numbers expected.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Mask
from paceline.predictors.fitting import FitOptions, fit_with
from paceline.predictors.fleet import FleetPredictor, require_int
from paceline.predictors.named import named
from paceline.predictors.protocol import Forecast, Predictor, Report

if TYPE_CHECKING:
    from paceline.datasets import Trace


MAX_HORIZON = 64
"""The farthest horizon that is learned: what is expected is kept until it passes."""


class HorizonState(FleetPredictor):
    """State learned for one horizon above 1, and the forecasts at this horizon of iterations still to come."""

    def __init__(self, owner: NestedPredictor, horizon: int) -> None:
        super().__init__()
        self.owner, self.horizon = owner, horizon

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        expected = np.full((num_workers, self.horizon - 1, self.owner._horizon_record_width()), np.nan, order="F")
        return self.owner._initial_horizon_state(num_workers) | {"expected": expected}

    def initial_shared_state(self) -> dict[str, Array]:
        return self.owner._initial_shared_horizon_state() | {"idle": np.zeros(1), "place": np.zeros(1)}

    def swap_forecast(self, expected_WP: Array) -> Array:
        """Store a later iteration's forecast, and return that of the iteration just finished, ``[W, P]``.

        Numbers at the end that are left out are not known, and not returned.
        """
        # All in place: this is by far the largest array.
        expected_WHP, place, width = self.state["expected"], int(self.shared_state["place"][0]), expected_WP.shape[1]
        past_forecast_WP = expected_WHP[:, place, :width].copy(order="F")
        expected_WHP[:, place, :width] = expected_WP
        expected_WHP[:, place, width:] = np.nan
        self.shared_state["place"][0] = (place + 1) % expected_WHP.shape[1]
        return past_forecast_WP


ADAPTER_PREFIX = "learned/adopted/"


def as_fleet_predictor(predictor: str | Predictor) -> FleetPredictor:
    """Return a new predictor by its name, or a copy of one; a user's own class gets a :class:`PredictorAdapter`."""
    if isinstance(predictor, str):
        return named(predictor)
    mine = copy.deepcopy(predictor)
    return mine if isinstance(mine, FleetPredictor) else PredictorAdapter(mine)


class PredictorAdapter(FleetPredictor):
    """Adapter of a user's own predictor, which is called only through the public contract."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    @property
    def covariate_names(self) -> tuple[str, ...]:
        return tuple(self.predictor.covariate_names)

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        fit_with(self.predictor, traces, fit_options)
        return self

    def _children(self) -> Sequence[Predictor]:
        return (self.predictor,)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        theirs = self.predictor.state_dict()
        return super().state_dict() | {ADAPTER_PREFIX + name: value for name, value in theirs.items()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        theirs = [name for name in state if name.startswith(ADAPTER_PREFIX)]
        super().load_state_dict({name: value for name, value in state.items() if name not in theirs})
        self.predictor.load_state_dict({name.removeprefix(ADAPTER_PREFIX): state[name] for name in theirs})

    def initial_state(self, num_workers: int) -> dict[str, Array]:
        return {"seen": np.zeros(num_workers)}

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        # NaN for unknown workers, so that a prior is never weighted against a measurement.
        return np.where(self.state["seen"] > 0, self.make_forecast(covariates_WD, horizon).speed, np.nan)

    def make_forecast(self, covariates_WD: Array, horizon: int) -> Forecast:
        return self.predictor.predict(covariates=covariates_WD if self.covariate_names else None, horizon=horizon)

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        self.predictor.observe(replace(report, covariates=covariates_WD if self.covariate_names else None))
        self.state["seen"] = self.state["seen"] + np.isfinite(speed_W)


class NestedPredictor(FleetPredictor):
    """Base class of predictors that hold others in ``_inner``.

    It calls the inner ones below their guards, because the outer one has checked the report and keeps the spread.
    """

    _inner: tuple[FleetPredictor, ...] = ()
    _cached_layout: tuple[tuple[str, ...], list[NDArray[np.intp] | None]] | None = None
    _cached_pairs: tuple[Array, Sequence[tuple[FleetPredictor, Array]]] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._horizon_states: dict[int, HorizonState] = {}

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates that any of the inner predictors reads."""
        return self._covariate_layout()[0]

    def _covariate_layout(self) -> tuple[tuple[str, ...], list[NDArray[np.intp] | None]]:
        """Return all covariates, and the places of those that each inner predictor reads, ``None`` if it reads all.

        Cached until the next fit: every forecast asks.
        """
        if self._cached_layout is None:
            names = tuple(dict.fromkeys(self._all_covariates()))
            read = [inner.covariate_names for inner in self._inner]
            places = [None if mine == names else np.array(list(map(names.index, mine)), np.intp) for mine in read]
            self._cached_layout = (names, places)
        return self._cached_layout

    def _all_covariates(self) -> Sequence[str]:
        return [name for inner in self._inner for name in inner.covariate_names]

    def fit_streamed(self, traces: Iterable[Trace], fit_options: FitOptions) -> Self:
        for inner in self._inner:
            fit_with(inner, traces, fit_options)
        self._cached_layout = self._cached_pairs = None
        self.reset(self.workers)
        return self

    def reset(self, workers: Sequence[str]) -> None:
        self._horizon_states = {}
        super().reset(workers)

    def _forget(self, reset_W: Mask) -> None:
        super()._forget(reset_W)
        for part in self._children():
            part._forget(reset_W)

    def _horizon_state(self, horizon: int) -> HorizonState | None:
        """Return the state for a horizon, learned once it was asked for; ``None`` for the next, or beyond limits."""
        ahead = self._horizon_states.get(horizon)
        # three horizons above 1 are learned at a time
        if ahead is None and 1 < horizon <= MAX_HORIZON and len(self._horizon_states) < 3:
            ahead = self._horizon_states[horizon] = HorizonState(self, horizon)
            ahead.reset(self.workers)
            self._init_horizon_state(ahead)
        if ahead is not None:
            ahead.shared_state["idle"][0] = 0.0
        return ahead

    def _active_horizons(self) -> list[HorizonState]:
        """Return the states for horizons asked for in the last 256 iterations, and drop the others."""
        for ahead in list(self._horizon_states.values()):
            ahead.shared_state["idle"][0] += 1.0
            if ahead.shared_state["idle"][0] > 256:
                del self._horizon_states[ahead.horizon]
        return list(self._horizon_states.values())

    def _init_horizon_state(self, horizon_state: HorizonState) -> None:
        """Start the state for a horizon from the state for the next iteration."""
        horizon_state.state.update({n: self.state[n].copy(order="F") for n in horizon_state.state if n in self.state})

    def _initial_horizon_state(self, num_workers: int) -> dict[str, Array]:
        return self.initial_state(num_workers)

    def _initial_shared_horizon_state(self) -> dict[str, Array]:
        return {}

    def _horizon_record_width(self) -> int:
        return 1

    def _children(self) -> list[FleetPredictor]:
        return [*self._inner, *self._horizon_states.values()]

    def _named_children(self) -> dict[str, FleetPredictor]:
        inner = {f"inner{i}": inner for i, inner in enumerate(self._inner)}
        return inner | {f"ahead{horizon}": ahead for horizon, ahead in self._horizon_states.items()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        state = super().state_dict()
        for part, predictor in self._named_children().items():
            entries = {n: value for n, value in predictor.state_dict().items() if n != "workers"}
            state |= {name.replace("/", f"/{part}/", 1): value for name, value in entries.items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        outer, inside = {}, dict[str, dict[str, NDArray[Any]]]()
        for name, value in state.items():
            if found := re.fullmatch("([^/]*)/((?:inner|ahead)[0-9]+)/(.*)", name):
                kind, part, rest = found.groups()
                inside.setdefault(part, {})[f"{kind}/{rest}"] = value
            else:
                outer[name] = value
        super().load_state_dict(outer)
        for part in sorted(inside):
            if part.startswith("ahead"):
                horizon = require_int("horizon", int(part.removeprefix("ahead")), minimum=2, maximum=MAX_HORIZON)
                self._horizon_states[horizon] = HorizonState(self, horizon)
        for part, predictor in self._named_children().items():
            predictor.load_state_dict({"workers": np.array(self.workers), **inside.get(part, {})})
        self._cached_layout = self._cached_pairs = None

    def _pair_with_covariates(self, covariates_WD: Array) -> Sequence[tuple[FleetPredictor, Array]]:
        """Return each inner predictor with the covariates that it reads: the same object for the same covariates."""
        if self._cached_pairs is None or self._cached_pairs[0] is not covariates_WD:
            pairs = []
            for inner, places in zip(self._inner, self._covariate_layout()[1], strict=True):
                # taken from the transpose, where a covariate's column is contiguous
                inner_covariates_WD = covariates_WD if places is None else covariates_WD.T.take(places, axis=0).T
                pairs.append((inner, inner_covariates_WD))
            self._cached_pairs = (covariates_WD, pairs)
        return self._cached_pairs[1]
