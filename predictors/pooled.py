"""Linear corrections of a predictor: one that the fleet shares, and each worker's own, learned while they serve.

Axes: W workers, D covariates, R references, F inputs, G inputs that known covariates make, C columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, all_finite, anywhere, everywhere
from paceline.predictors.adopted import adopted
from paceline.predictors.ahead import Ahead
from paceline.predictors.fleet import covariate_names
from paceline.predictors.linear import (
    REFERENCES,
    Rows,
    bounded,
    doubt_of,
    farness,
    fresh_inputs,
    inputs_of,
    learn,
    move_inputs,
    reach_of,
    scale_of,
    target_of,
)
from paceline.predictors.nested import NestedPredictor
from paceline.predictors.protocol import Predictor, Report

VARIANCE = 0.05
"""Variance of a worker's weights before it has reported: a covariate may do to it what it does to no other."""


def fresh_weights(count: int, covariates: int) -> Rows:
    """Return the weights of ``count`` workers that have not reported: of each covariate's level and move."""
    return {
        "own": np.zeros((count, 2 * covariates)),
        "covariance": np.tile(VARIANCE * np.eye(2 * covariates), (count, 1, 1)),
    }


@dataclass(frozen=True, eq=False)
class WorkerWeights:
    """The workers' own weights and covariances, which are changed in place, and the inputs of this iteration."""

    weights_WG: Array
    covariance_WGG: Array
    inputs_WG: Array
    step_W: Array
    """Each worker's own correction, in scales."""

    @classmethod
    def of(cls, rows: Rows, mean_WD: Array, driven_WF: Array) -> WorkerWeights | None:
        """Return the part for known covariates, those with a mean; ``None`` where all their inputs are 0."""
        covariates = driven_WF.shape[1] // 2
        if not covariates or not anywhere(driven_WF):
            return None
        first, end = _known(mean_WD)
        inputs_WG = np.empty((len(driven_WF), 2 * (end - first)), order="F")
        inputs_WG[:, 0::2], inputs_WG[:, 1::2] = (
            driven_WF[:, first:end],
            driven_WF[:, covariates + first : covariates + end],
        )
        places = slice(2 * first, 2 * end)
        weights_WG = rows["own"][:, places]
        step_W = np.add.reduce(inputs_WG * weights_WG, axis=1)
        return cls(weights_WG, rows["covariance"][:, places, places], inputs_WG, step_W)

    def learn(self, error_W: Array, far_W: Array, forgetting: float) -> None:
        """Learn from the remaining error, ``[W]`` in scales; examples count less the farther out they are, ``[W]``."""
        largest = VARIANCE * self.inputs_WG.shape[1]
        learn(
            self.weights_WG, self.covariance_WGG, self.inputs_WG, error_W, doubt_of(error_W, far_W), forgetting, largest
        )


def _known(mean_WD: Array) -> tuple[int, int]:
    """Return the first and the end of the covariates that are known.

    A fleet reports few of the covariates that could be read, and cost grows with the square of their number. A
    covariate counts as known once any worker has reported it: its weights go on together with those that they correlate
    with.
    """
    places = np.logical_or.reduce(np.isfinite(mean_WD)).nonzero()[0]
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


SOLVED_EVERY, SOLVED_ALWAYS = 8, 64
"""After so many iterations the weights move slowly, and are solved for only every few."""


class Pooled(NestedPredictor):
    """Three forecasts of each worker: another predictor's with two corrections, with one, and without any.

    The first correction is a ridge regression of the predictor's error, in each worker's running scale, on past speeds,
    averages, covariates and the forecast itself. All workers share its weights, so that a fleet of many workers learns
    within few iterations what a covariate does, and a worker that joins starts with it. The second is what they do to
    this worker beyond that, such as one whose samples come late: recursive least squares of what error is left. Errors
    and inputs far out count less. It is an expert for a mixture, which uses all columns. Further ahead than one
    iteration, both corrections are learned for the horizon that is asked for, from where those of the next one are.

    Parameters
    ----------
    predictor
        Name with arguments as in :func:`paceline.predictors.named`, or a predictor of any class.
    covariates
        Names of the covariates that the corrections read in addition to those of the predictor.
    """

    columns = 3

    def __init__(self, predictor: str | Predictor, covariates: Sequence[str] = ()) -> None:
        super().__init__()
        self.predictor = predictor
        self.covariates = covariate_names(covariates)
        self._inner = (adopted(predictor),)
        self._answers: dict[int, _Answer] = {}

    def _all_covariates(self) -> Sequence[str]:
        return [*super()._all_covariates(), *self.covariates]

    def initial_state(self, count: int) -> dict[str, Array]:
        covariates = len(self.covariate_names)
        return fresh_inputs(count, covariates) | fresh_weights(count, covariates)

    def initial_shared_state(self) -> dict[str, Array]:
        # the predictor's forecast is among the inputs, after past speeds and averages, and before the covariates
        inputs = REFERENCES + 1 + 2 * len(self.covariate_names)
        return {
            "products": np.zeros((inputs, inputs + 1)),
            "weights": np.zeros(inputs),
            "iterations": np.zeros(1),
            "prior": np.zeros(inputs),
        }

    # -- horizons above 1 ----------------------------------------------------------------------------------------

    def _fresh_ahead(self, count: int) -> dict[str, Array]:
        return fresh_weights(count, len(self.covariate_names))

    def _fresh_fleet_ahead(self) -> dict[str, Array]:
        return self.initial_shared_state()

    def _width_ahead(self) -> int:
        """Return the numbers kept of each forecast: the inputs, the last log speed and the scale."""
        return len(self.shared_state["weights"]) + 2

    def _start(self, ahead: Ahead) -> None:
        """Start with the weights of the next iteration, but without its evidence."""
        ahead.start_as({"own": self.state["own"]})
        ahead.fleet.update(weights=self.shared_state["weights"], prior=self.shared_state["weights"])

    # -- forecasting ---------------------------------------------------------------------------------------------

    def forecast_speed(self, covariates_WD: Array, horizon: int) -> Array:
        """Return the forecasts with both corrections, with that of the fleet, and without, ``[W, C]``."""
        return np.exp(self.forecast_log_speed(covariates_WD, horizon))

    def forecast_log_speed(self, covariates_WD: Array, horizon: int) -> Array:
        answer = self._answer_at(covariates_WD, horizon, self._at(horizon) if horizon > 1 else None)
        log_CW = np.empty((self.columns, len(answer.log_W)))
        # Without covariates the plain forecast: the fleet's correction, counted twice, would gain trust too fast.
        log_CW[:] = answer.log_W
        log_CW[1] += answer.corrected(answer.step_W)
        if answer.alone is not None:
            log_CW[0] += answer.corrected(answer.step_W + answer.alone.step_W)
        return log_CW.T

    def _answer_at(self, covariates_WD: Array, horizon: int = 1, ahead: Ahead | None = None) -> _Answer:
        """Return the cached answer for these covariates: inputs and the predictor's forecast, until the next report."""
        answer, memory_WR = self._answers.get(horizon), self.state["log_speed"]
        if answer is None or answer.memory_WR is not memory_WR or answer.covariates_WD is not covariates_WD:
            answer = self._answers[horizon] = self._asks(covariates_WD, memory_WR, horizon, ahead)
        return answer

    def _asks(self, covariates_WD: Array, memory_WR: Array, horizon: int, ahead: Ahead | None) -> _Answer:
        rows, fleet = (self.state, self.shared_state) if ahead is None else (ahead.rows, ahead.fleet)
        (inner, mine_WD) = self._with_covariates(covariates_WD)[0]
        log_W, scale_W = inner.forecast_log_speed(mine_WD, horizon), scale_of(self.state)
        # Inputs of covariates that nobody reports would all be 0.
        known_WD = covariates_WD[:, :0] if everywhere(np.isnan(covariates_WD)) else covariates_WD
        inputs_WF = inputs_of(self.state, known_WD, scale_W, more=1)
        ahead_W = (log_W - memory_WR[:, 0]) / scale_W
        inputs_WF[:, REFERENCES] = ahead_W if all_finite(ahead_W) else np.where(np.isfinite(ahead_W), ahead_W, 0.0)
        step_W = inputs_WF @ fleet["weights"][: inputs_WF.shape[1]]
        alone, reach_W = self._alone(rows, inputs_WF[:, REFERENCES + 1 :]), reach_of(inputs_WF)
        return _Answer(memory_WR, covariates_WD, known_WD, log_W, inputs_WF, scale_W, reach_W, step_W, alone)

    def _alone(self, learned: Rows, driven_WF: Array) -> WorkerWeights | None:
        """Return the part of each worker's own correction, ``None`` where no covariate is known."""
        return WorkerWeights.of(learned, self.state["covariate_mean"], driven_WF)

    # -- learning ------------------------------------------------------------------------------------------------

    def update_from_report(self, report: Report, speed_W: Array, covariates_WD: Array) -> None:
        answer, log_speed_W = self._answer_at(covariates_WD), np.log(speed_W)
        for ahead in self._active_horizons() if self._ahead else ():
            self._learn_ahead(ahead, self._answer_at(covariates_WD, ahead.horizon, ahead), log_speed_W)
        target_W = target_of(self.state, log_speed_W, answer.scale_W) - answer.inputs_WF[:, REFERENCES]
        self._learn_weights(self.shared_state, target_W, answer.step_W, answer.inputs_WF, answer.alone)
        self._answers.clear()
        (inner, mine_WD) = self._with_covariates(covariates_WD)[0]
        inner.update_from_report(report, speed_W, mine_WD)
        move_inputs(self.state, log_speed_W, answer.known_WD, answer.scale_W)

    def _learn_ahead(self, ahead: Ahead, answer: _Answer, log_speed_W: Array) -> None:
        """Learn from the forecast made ``horizon`` iterations ago, with the present weights."""
        record_WP = np.zeros((len(log_speed_W), self._width_ahead()))
        record_WP[:, : answer.inputs_WF.shape[1]] = answer.inputs_WF
        record_WP[:, -2] = np.where(np.isnan(self.state["scale"]), np.nan, self.state["log_speed"][:, 0])
        record_WP[:, -1] = answer.scale_W
        passed_WP = ahead.passed(record_WP)
        inputs_WF = np.asfortranarray(passed_WP[:, :-2])
        target_W = (log_speed_W - passed_WP[:, -2]) / passed_WP[:, -1] - inputs_WF[:, REFERENCES]
        inputs_WF[np.isnan(target_W)] = 0.0  # nothing was expected yet
        alone = self._alone(ahead.rows, inputs_WF[:, REFERENCES + 1 :])
        self._learn_weights(ahead.fleet, target_W, inputs_WF @ ahead.fleet["weights"], inputs_WF, alone)

    def _learn_weights(
        self, fleet: dict[str, Array], target_W: Array, step_W: Array, inputs_WF: Array, alone: WorkerWeights | None
    ) -> None:
        """Add this iteration's examples to the normal equations, and solve them; without a target (NaN) none is."""
        error_W = target_W - step_W
        far_W = farness(inputs_WF, len(fleet["weights"]))
        if alone is not None:
            # forgets 0.2% per iteration: the last 500 count
            alone.learn(error_W - alone.step_W, far_W, 0.998)
        doubt_W = doubt_of(error_W, far_W)
        if not all_finite(error_W):
            seen_W = np.isfinite(error_W)
            if not anywhere(seen_W):
                return
            target_W, doubt_W = np.where(seen_W, target_W, 0.0), np.where(seen_W, doubt_W, np.inf)
        counted_FW, places = (inputs_WF / doubt_W[:, None]).T, inputs_WF.shape[1]
        # A new array, not a change in place: what was asked before holds the old one.
        products_FF = 0.998 * fleet["products"]
        products_FF[:places, :places] += counted_FW @ inputs_WF
        products_FF[:places, -1] += counted_FW @ target_W
        count = int(fleet["iterations"][0])
        fleet.update(products=products_FF, iterations=fleet["iterations"] + 1.0)
        if count < SOLVED_ALWAYS or count % SOLVED_EVERY == 0:
            fleet["weights"] = _ridge(products_FF, fleet["prior"])


def _ridge(products_FF: Array, prior_F: Array) -> Array:
    """Return the weights that solve these normal equations, whose last column is the right side."""
    # a squared weight costs as much as 20 examples of unit inputs
    penalized_FF = products_FF[:, :-1] + 20.0 * np.eye(len(products_FF))
    return np.asarray(np.linalg.solve(penalized_FF, products_FF[:, -1] + 20.0 * prior_F), dtype=np.float64)


@dataclass(eq=False)
class _Answer:
    """Cached answer to the last forecast asked for: its report and covariates, and the corrections that follow.

    The covariates if any is known, the log of the predictor's forecast, the inputs, each worker's scale, the most
    scales that it may be corrected by, the fleet's correction in scales, and the worker's own beyond that (``None``
    where no covariate is known).
    """

    memory_WR: Array
    covariates_WD: Array
    known_WD: Array
    log_W: Array
    inputs_WF: Array
    scale_W: Array
    reach_W: Array
    step_W: Array
    alone: WorkerWeights | None

    def corrected(self, step_W: Array) -> Array:
        """Return the change of the log speed for a step in scales, bounded by its reach."""
        return np.asarray(self.scale_W * bounded(step_W, self.reach_W))
