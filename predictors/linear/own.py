"""A worker's own linear correction: what drivers do to it alone, learnt while it serves.

Axes: W workers, D drivers, F inputs, G inputs that known drivers make.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline._arrays import Array, Mask
from paceline.predictors.linear.inputs import REFERENCES, Rows, doubt_of
from paceline.predictors.linear.recursive import learn

VARIANCE = 0.05
"""Variance of a worker's weights before it has reported: a driver may do to it what it does to no other."""


def fresh(count: int, drivers: int) -> Rows:
    """Return the weights of ``count`` workers that have not reported: of each driver's level and move, side by side."""
    return {
        "own": np.zeros((count, 2 * drivers)),
        "covariance": np.tile(VARIANCE * np.eye(2 * drivers), (count, 1, 1)),
    }


@dataclass(frozen=True, eq=False)
class Own:
    """The workers' own weights and covariances, which are changed in place, and the inputs of this iteration."""

    weights_WG: Array
    covariance_WGG: Array
    inputs_WG: Array

    @classmethod
    def of(cls, rows: Rows, inputs_WF: Array) -> Own | None:
        """Return the part that is about known drivers, ``None`` where all their inputs ``[W, F]`` are 0."""
        levels, moves = _known(rows)
        inputs_WG = np.empty((len(inputs_WF), 2 * (levels.stop - levels.start)), order="F")
        inputs_WG[:, 0::2], inputs_WG[:, 1::2] = inputs_WF[:, levels], inputs_WF[:, moves]
        if not np.count_nonzero(inputs_WG):
            return None
        places = slice(2 * (levels.start - REFERENCES), 2 * (levels.stop - REFERENCES))
        return cls(rows["own"][:, places], rows["covariance"][:, places, places], inputs_WG)

    @cached_property
    def step(self) -> Array:
        """Each worker's own correction, in scales, ``[W]``."""
        return np.asarray((self.inputs_WG * self.weights_WG).sum(axis=1))

    def learn(self, error_W: Array, far_W: Array, forgetting: float) -> None:
        """Learn from what error is left, ``[W]`` in scales; examples count less by how far out they are, ``[W]``."""
        most = VARIANCE * self.inputs_WG.shape[1]
        learn(self.weights_WG, self.covariance_WGG, self.inputs_WG, error_W, doubt_of(error_W, far_W), forgetting, most)


def _known(rows: Rows) -> tuple[slice, slice]:
    """Return where the inputs are that drivers make, their levels and their moves, from the first known to the last.

    A fleet reports few of the drivers that could be read, and cost grows with the square of their number. A driver
    counts as known once any worker has reported it: its weights go on together with those that they correlate with.
    """
    known_WD: Mask = np.isfinite(rows["driver_mean"])
    places = np.flatnonzero(known_WD.any(axis=0))
    first, end = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
    moves = REFERENCES + known_WD.shape[1]
    return slice(REFERENCES + first, REFERENCES + end), slice(moves + first, moves + end)
