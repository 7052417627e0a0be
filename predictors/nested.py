"""Base class of predictors made of other predictors: the inner ones join, leave, save and resume with the outer one.

Axes: W workers, D covariates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Mask
from paceline.predictors.ahead import MAX_HORIZON, MAX_HORIZONS, Ahead
from paceline.predictors.fitting import Fitting, fit_with
from paceline.predictors.fleet import FleetPredictor, require_int

if TYPE_CHECKING:
    from paceline.datasets import Trace


class NestedPredictor(FleetPredictor):
    """Base class of predictors that hold others in ``_inner``.

    It calls the inner ones below their guards, because the outer one has checked the report and keeps the spread.
    """

    _inner: tuple[FleetPredictor, ...] = ()
    _read: tuple[tuple[str, ...], list[NDArray[np.intp] | None]] | None = None
    _split: tuple[Array, Sequence[tuple[FleetPredictor, Array]]] | None = None

    def __init__(self) -> None:
        super().__init__()
        self._ahead: dict[int, Ahead] = {}

    @property
    def covariate_names(self) -> tuple[str, ...]:
        """The covariates that any of the inner predictors reads."""
        return (self._read or self._reading())[0]

    def _reading(self) -> tuple[tuple[str, ...], list[NDArray[np.intp] | None]]:
        """Return all covariates, and the places of those that each inner predictor reads, ``None`` if it reads all.

        Cached until the next fit: every forecast asks.
        """
        if self._read is None:
            names = tuple(dict.fromkeys(self._all_covariates()))
            self._read = (names, [_places(inner.covariate_names, names) for inner in self._inner])
        return self._read

    def _all_covariates(self) -> Sequence[str]:
        """Return the names of the covariates that it reads; they may repeat."""
        return [name for inner in self._inner for name in inner.covariate_names]

    def fit_streamed(self, traces: Iterable[Trace], fitting: Fitting) -> Self:
        """Fit the inner predictors to traces that may be read more than once and never all at once."""
        for inner in self._inner:
            fit_with(inner, traces, fitting)
        self._read = self._split = None
        self.reset(self.workers)
        return self

    def reset(self, workers: Sequence[str]) -> None:
        super().reset(workers)
        self._ahead = {}
        for inner in self._inner:
            inner.reset(self.workers)

    def join(self, worker: str) -> None:
        super().join(worker)
        for part in self._parts():
            part.join(worker)

    def leave(self, worker: str) -> None:
        super().leave(worker)
        for part in self._parts():
            part.leave(worker)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        for part in self._parts():
            part.rename(old, new)

    def _forget(self, forgotten_W: Mask) -> None:
        super()._forget(forgotten_W)
        for part in self._parts():
            part._forget(forgotten_W)

    # -- horizons above 1 ----------------------------------------------------------------------------------------

    def _at(self, horizon: int) -> Ahead | None:
        """Return the state for a horizon, made at the first request; ``None`` for the next iteration, or beyond limits.

        Asking once is enough to learn for it from then on, until nobody has asked for a long time.
        """
        ahead = self._ahead.get(horizon)
        if ahead is None and 1 < horizon <= MAX_HORIZON and len(self._ahead) < MAX_HORIZONS:
            ahead = self._ahead[horizon] = Ahead(self, horizon)
            ahead.reset(self.workers)
            self._start(ahead)
        if ahead is not None:
            ahead.fleet["idle"][0] = 0.0
        return ahead

    def _active_horizons(self) -> list[Ahead]:
        """Return the states for horizons asked for in the last 256 iterations, and drop the others."""
        for ahead in list(self._ahead.values()):
            ahead.fleet["idle"][0] += 1.0
            if ahead.fleet["idle"][0] > 256:
                del self._ahead[ahead.horizon]
        return list(self._ahead.values())

    def _start(self, ahead: Ahead) -> None:
        """Start the state for a horizon from the state for the next iteration."""
        ahead.start_as(self.state)

    def _fresh_ahead(self, count: int) -> dict[str, Array]:
        return self.initial_state(count)

    def _fresh_fleet_ahead(self) -> dict[str, Array]:
        return {}

    def _width_ahead(self) -> int:
        return 1

    # -- saving and resuming -------------------------------------------------------------------------------------

    def _parts(self) -> list[FleetPredictor]:
        return [*self._inner, *self._ahead.values()]

    def _named_parts(self) -> dict[str, FleetPredictor]:
        inner = {f"inner{i}": inner for i, inner in enumerate(self._inner)}
        return inner | {f"ahead{horizon}": ahead for horizon, ahead in self._ahead.items()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        state = super().state_dict()
        for part, predictor in self._named_parts().items():
            entries = {n: value for n, value in predictor.state_dict().items() if n != "workers"}
            state |= {name.replace("/", f"/{part}/", 1): value for name, value in entries.items()}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        places = [name.split("/") for name in state]
        parts = {place[1] for place in places if len(place) > 2 and re.fullmatch("(inner|ahead)[0-9]+", place[1])}
        outer = {n: value for n, value in state.items() if n.split("/", 2)[1:2] not in [[part] for part in parts]}
        super().load_state_dict(outer)
        for part in sorted(parts):
            if part.startswith("ahead"):
                horizon = require_int("horizon", int(part.removeprefix("ahead")), minimum=2, maximum=MAX_HORIZON)
                self._ahead[horizon] = Ahead(self, horizon)
        workers = {"workers": np.array(self.workers)}
        for part, predictor in self._named_parts().items():
            mine = {n: value for n, value in state.items() if n.split("/", 2)[1:2] == [part]}
            predictor.load_state_dict(workers | {n.replace(f"/{part}/", "/", 1): value for n, value in mine.items()})
        self._read = self._split = None

    def _with_covariates(self, covariates_WD: Array) -> Sequence[tuple[FleetPredictor, Array]]:
        """Return each inner predictor with the covariates that it reads, in its order.

        Cached until other covariates come: the same object for the same covariates, so that inner caches know it, too.
        """
        if self._split is None or self._split[0] is not covariates_WD:
            pairs = zip(self._inner, self._reading()[1], strict=True)
            self._split = (covariates_WD, [(inner, _selected(covariates_WD, places)) for inner, places in pairs])
        return self._split[1]


def _selected(covariates_WD: Array, places: NDArray[np.intp] | None) -> Array:
    if places is None:
        return covariates_WD
    # Take from the transpose, where a covariate's column is contiguous.
    return covariates_WD.T.take(places, axis=0).T if len(places) else covariates_WD[:, :0]


def _places(mine: tuple[str, ...], names: tuple[str, ...]) -> NDArray[np.intp] | None:
    return None if mine == names else np.array([names.index(name) for name in mine], np.intp)
