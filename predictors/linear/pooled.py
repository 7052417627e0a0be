"""Pooled: linear corrections of another predictor's forecasts, learnt online: one by the fleet, one by each worker.

Axes: W workers, D drivers, F inputs, C forecasts per worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from paceline._arrays import Array, anywhere, everywhere
from paceline.predictors.adopted import adopted
from paceline.predictors.linear import inputs, own
from paceline.predictors.linear.inputs import (
    REFERENCES,
    bounded,
    doubt_of,
    farness,
    inputs_of,
    reach_of,
    scale_of,
    target_of,
)
from paceline.predictors.linear.own import Own
from paceline.predictors.nested import NestedPredictor
from paceline.predictors.protocol import Predictor
from paceline.predictors.ranges import driver_names
from paceline.predictors.report import Report

FORGETTING = 0.998
"""Factor by which the weight of past iterations shrinks in each: they count for about 500."""

SOLVED_EVERY, SOLVED_ALWAYS = 8, 64
"""After so many iterations the weights move slowly, and are solved for only every few."""

RIDGE = 20.0
"""Penalty of a squared weight, in examples of unit inputs: until as many were seen, little is corrected."""


class Pooled(NestedPredictor):
    """Three forecasts of each worker: another predictor's with two corrections, with one, and without any.

    The first correction is a ridge regression of the predictor's error, in each worker's running scale, on past speeds,
    averages, drivers and the forecast itself. All workers share its weights, so that a fleet of many workers learns
    within few iterations what a driver does, and a worker that joins starts with it. The second is what drivers do to
    this worker beyond that, such as one whose samples come late: recursive least squares of what error is left. Errors
    and inputs far out count less. It is an expert for a mixture, which uses all columns; further ahead than one
    iteration they are equal.

    Parameters
    ----------
    predictor
        Name with arguments as in :func:`paceline.predictors.named`, or a predictor of any class.
    drivers
        Names of the drivers that the corrections read in addition to those of the predictor.
    """

    columns: ClassVar[int] = 3

    def __init__(self, predictor: str | Predictor, drivers: Sequence[str] = ()) -> None:
        super().__init__()
        self.predictor = predictor
        self.drivers = driver_names(drivers)
        self._inner = (adopted(predictor),)
        self._asked: _Asked | None = None

    def _all_drivers(self) -> Sequence[str]:
        return [*super()._all_drivers(), *self.drivers]

    def _fresh(self, count: int) -> dict[str, Array]:
        drivers = len(self.driver_names)
        return inputs.fresh(count, drivers) | own.fresh(count, drivers)

    def _fresh_fleet(self) -> dict[str, Array]:
        inputs = REFERENCES + 2 * len(self.driver_names) + 1
        return {
            "products": np.zeros((inputs, inputs)),
            "together": np.zeros(inputs),
            "weights": np.zeros(inputs),
            "iterations": np.zeros(1),
        }

    def _next_speed(self, drivers_WD: Array, horizon: int) -> Array:
        """Return the forecasts with both corrections, with that of the fleet, and without, ``[W, C]``."""
        if horizon > 1:
            (inner, mine_WD) = next(self._with_drivers(drivers_WD))
            return np.stack([inner._next_speed(mine_WD, horizon)] * self.columns, axis=1)
        asked = self._answered(drivers_WD)
        corrected_W = asked.corrected(asked.step_W)
        # Without drivers the plain forecast: the fleet's correction, counted twice, would gain trust too fast.
        own_W = asked.speed_W if asked.alone is None else asked.corrected(asked.step_W + asked.alone.step)
        return np.array([own_W, corrected_W, asked.speed_W]).T

    def _answered(self, drivers_WD: Array) -> _Asked:
        """Return inputs and the predictor's forecast for these drivers, cached until the next report."""
        memory_WR, key = self._rows["log_speed"], drivers_WD.tobytes()
        if self._asked is None or self._asked.memory_WR is not memory_WR or self._asked.key != key:
            (inner, mine_WD) = next(self._with_drivers(drivers_WD))
            speed_W = inner._next_speed(mine_WD, 1)
            inputs_WF, scale_W = inputs_of(self._rows, drivers_WD, more=1), scale_of(self._rows)
            ahead_W = (np.log(speed_W) - memory_WR[:, 0]) / scale_W
            inputs_WF[:, -1] = np.where(np.isfinite(ahead_W), ahead_W, 0.0)
            step_W, alone = inputs_WF @ self._fleet["weights"], self._alone(inputs_WF)
            self._asked = _Asked(memory_WR, key, speed_W, inputs_WF, scale_W, reach_of(inputs_WF), step_W, alone)
        return self._asked

    def _alone(self, inputs_WF: Array) -> Own | None:
        """Return the part of each worker's own correction, ``None`` where no driver is known."""
        return Own.of(self._rows, inputs_WF)

    def _learn_report(self, report: Report, speed_W: Array, drivers_WD: Array) -> None:
        asked, log_speed_W = self._answered(drivers_WD), np.log(speed_W)
        target_W = target_of(self._rows, log_speed_W) - asked.inputs_WF[:, -1]
        far_W = farness(asked.inputs_WF)
        if asked.alone is not None:
            asked.alone.learn(target_W - asked.step_W - asked.alone.step, far_W, FORGETTING)
        self._learn_weights(target_W, asked, far_W)
        self._asked = None
        (inner, mine_WD) = next(self._with_drivers(drivers_WD))
        inner._learn_report(report, speed_W, mine_WD)
        inputs.move(self._rows, log_speed_W, drivers_WD)

    def _learn_weights(self, target_W: Array, asked: _Asked, far_W: Array) -> None:
        """Add this iteration's examples to the normal equations, and solve them; without a target (NaN) none is."""
        fleet, inputs_WF, seen_W = self._fleet, asked.inputs_WF, np.isfinite(target_W)
        if not anywhere(seen_W):
            return
        known_W = target_W if everywhere(seen_W) else np.where(seen_W, target_W, 0.0)
        error_W = known_W - seen_W * asked.step_W
        counted_WF = inputs_WF * (seen_W / doubt_of(error_W, far_W))[:, None]
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
    """What was asked, after which report and with which drivers, and what follows from it.

    The predictor's forecast, the inputs, each worker's scale, the most scales that it may be corrected by, the fleet's
    correction in scales, and the worker's own beyond that (``None`` where no driver is known).
    """

    memory_WR: Array
    key: bytes
    speed_W: Array
    inputs_WF: Array
    scale_W: Array
    reach_W: Array
    step_W: Array
    alone: Own | None

    def corrected(self, step_W: Array) -> Array:
        """Return the forecast moved by so many scales."""
        return np.asarray(self.speed_W * np.exp(self.scale_W * bounded(step_W, self.reach_W)))
