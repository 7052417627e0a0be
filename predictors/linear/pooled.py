"""Pooled: a linear correction of another predictor's forecasts, learnt online from all workers of the fleet together.

Axes: W workers, D drivers, F inputs, C forecasts per worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.predictors.adopted import adopted
from paceline.predictors.linear import inputs
from paceline.predictors.linear.inputs import REFERENCES, bounded, doubt_of, inputs_of, scale_of, target_of
from paceline.predictors.nested import NestedPredictor
from paceline.predictors.protocol import Predictor
from paceline.predictors.report import Report

FORGETTING = 0.998
"""Factor by which the weight of past iterations shrinks in each: they count for about 500."""

SOLVED_EVERY, SOLVED_ALWAYS = 8, 64
"""After so many iterations the weights move slowly, and are solved for only every few."""

RIDGE = 20.0
"""Penalty of a squared weight, in examples of unit inputs: until as many were seen, little is corrected."""


class Pooled(NestedPredictor):
    """Two forecasts of each worker: another predictor's with a correction that the fleet has in common, and without.

    The correction is a ridge regression of the predictor's error, in each worker's running scale, on past speeds,
    averages, drivers and the forecast itself. All workers share its weights, so that a fleet of many workers learns
    within few iterations what a driver does, and a worker that joins starts with it. Errors and inputs far out count
    less. It is an expert for a mixture, which uses both columns; further ahead than one iteration they are equal.

    Parameters
    ----------
    predictor
        Name with arguments as in :func:`paceline.predictors.named`, or a predictor of any class.
    drivers
        Names of the drivers that the correction reads in addition to those of the predictor.
    """

    columns: ClassVar[int] = 2

    def __init__(self, predictor: str | Predictor, drivers: Sequence[str] = ()) -> None:
        super().__init__()
        self.predictor = predictor
        self.drivers = tuple(drivers)
        self._inner = (adopted(predictor),)
        self._asked: _Asked | None = None

    def _reading(self) -> tuple[tuple[str, ...], list[NDArray[np.intp]]]:
        """Return all drivers, those of the correction too, and the places of those that the predictor reads."""
        if self._read is None:
            inner = self._inner[0].driver_names
            names = tuple(dict.fromkeys((*inner, *self.drivers)))
            self._read = (names, [np.arange(len(inner))])
        return self._read

    def _fresh(self, count: int) -> dict[str, Array]:
        return inputs.fresh(count, len(self.driver_names))

    def _fresh_fleet(self) -> dict[str, Array]:
        inputs = REFERENCES + 2 * len(self.driver_names) + 1
        return {
            "products": np.zeros((inputs, inputs)),
            "together": np.zeros(inputs),
            "weights": np.zeros(inputs),
            "iterations": np.zeros(1),
        }

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        """Return the corrected forecasts and the predictor's own, ``[W, C]``."""
        if horizon > 1:
            (inner, mine_WD) = next(self._with_drivers(drivers_WD))
            return np.stack([inner._next_speed(mine_WD, horizon)] * self.columns, axis=1)
        asked, rows = self._answered(drivers_WD), self._rows
        step_W = bounded(asked.inputs_WF @ self._fleet["weights"], asked.inputs_WF)
        return np.stack([asked.speed_W * np.exp(scale_of(rows) * step_W), asked.speed_W], axis=1)

    def _answered(self, drivers_WD: Array) -> _Asked:
        """Return inputs and the predictor's forecast for these drivers, cached until the next report."""
        memory_WR, key = self._rows["log_speed"], drivers_WD.tobytes()
        if self._asked is None or self._asked.memory_WR is not memory_WR or self._asked.key != key:
            (inner, mine_WD) = next(self._with_drivers(drivers_WD))
            speed_W = inner._next_speed(mine_WD, 1)
            inputs_WF = inputs_of(self._rows, drivers_WD, more=1)
            ahead_W = (np.log(speed_W) - memory_WR[:, 0]) / scale_of(self._rows)
            inputs_WF[:, -1] = np.where(np.isfinite(ahead_W), ahead_W, 0.0)
            self._asked = _Asked(memory_WR, key, speed_W, inputs_WF)
        return self._asked

    def _learn_report(self, report: Report, speed_W: Array, drivers_WD: Array) -> None:
        asked, log_speed_W = self._answered(drivers_WD), np.log(speed_W)
        self._learn_weights(target_of(self._rows, log_speed_W) - asked.inputs_WF[:, -1], asked.inputs_WF)
        self._asked = None
        (inner, mine_WD) = next(self._with_drivers(drivers_WD))
        inner._learn_report(report, speed_W, mine_WD)
        inputs.move(self._rows, log_speed_W, drivers_WD)

    def _learn_weights(self, target_W: Array, inputs_WF: Array) -> None:
        """Add this iteration's examples to the normal equations, and solve them; without a target (NaN) none is."""
        fleet, seen_W = self._fleet, np.isfinite(target_W)
        if not seen_W.any():
            return
        known_W = target_W if seen_W.all() else np.where(seen_W, target_W, 0.0)
        error_W = known_W - seen_W * (inputs_WF @ fleet["weights"])
        counted_WF = inputs_WF * (seen_W / doubt_of(error_W, inputs_WF))[:, None]
        # New arrays, not changes in place: an earlier state must not change.
        self._fleet = fleet | {
            "products": FORGETTING * fleet["products"] + counted_WF.T @ inputs_WF,
            "together": FORGETTING * fleet["together"] + counted_WF.T @ known_W,
            "iterations": fleet["iterations"] + 1.0,
        }
        count = int(fleet["iterations"][0])
        if count < SOLVED_ALWAYS or count % SOLVED_EVERY == 0:
            self._fleet["weights"] = _ridge(self._fleet["products"], self._fleet["together"])


def _ridge(products_FF: Array, together_F: Array) -> Array:
    penalised_FF = products_FF.copy()
    penalised_FF.flat[:: len(together_F) + 1] += RIDGE
    return np.asarray(np.linalg.solve(penalised_FF, together_F), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What was asked, after which report and with which drivers; the predictor's forecast, and the inputs."""

    memory_WR: Array
    key: bytes
    speed_W: Array
    inputs_WF: Array
