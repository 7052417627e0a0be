"""A worker's own linear correction: what covariates do to it alone, learned while it serves.

Axes: W workers, D covariates, F inputs, G inputs that known covariates make.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, anywhere
from paceline.predictors.linear.inputs import Rows, doubt_of
from paceline.predictors.linear.recursive import learn

VARIANCE = 0.05
"""Variance of a worker's weights before it has reported: a covariate may do to it what it does to no other."""


def fresh(count: int, covariates: int) -> Rows:
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
