"""Costs of samples, learned while training from busy times, whatever the speeds of the workers do meanwhile.

Axes: K iterations, W workers, F features of a sample.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Mask

MIN_REFIT_INTERVAL = 8
"""Iterations from one fit to the next, at first; 64 once costs have settled. A fit takes 2 ms or more."""


class WorkStatus(Enum):
    """State of knowledge about the cost of samples, in a sentence."""

    EARLY = "Too early: the first batches are divided by the given lengths alone."
    LEARNED = "Learned: costs follow from the workers' busy times."
    ALIKE = (
        "Cannot tell: all batches have nearly the same mix of lengths, so that the costs of length, of its square and "
        "of a sample cannot be told apart. The given lengths are used as costs."
    )


class WorkModel:
    """Learns the cost of samples that all workers share, apart from how fast each worker is.

    A worker's busy time is ``(features @ coefficients) / speed + fixed``. Speeds may change at any time: costs follow
    from how a worker's times differ between iterations that lie close together.

    Parameters
    ----------
    features
        How many numbers describe a batch, F: sums over its samples, scaled to a mean of 1 over all samples. Before
        anything is known the first alone is the cost.

    Attributes
    ----------
    coefficients
        Cost of one unit of each feature, ``[F]``, not negative, summing to 1: an average sample costs 1.
    fixed_seconds
        Seconds of a batch besides its samples.
    status
        State of knowledge about costs.
    """

    def __init__(self, features: int) -> None:
        self.coefficients = np.eye(features)[0]
        self.fixed_seconds = 0.0
        self.status = WorkStatus.EARLY
        # enough for costs within 5% at 3% noise, and soon forgotten where training changes what samples cost
        self._recent: deque[Array] = deque(maxlen=128)
        self._num_observed = 0
        self._next_fit, self._refit_interval = MIN_REFIT_INTERVAL, MIN_REFIT_INTERVAL

    def recent_observations(self, num_iterations: int) -> Array:
        """Return features and busy time of the last iterations, ``[K, W, F + 1]``."""
        recent = list(self._recent)[-num_iterations:]
        return np.stack(recent) if recent else np.zeros((0, 0, len(self.coefficients) + 1))

    def work(self, features_WF: Array) -> Array:
        """Return the work of batches with these features, ``[W]``, in average samples."""
        return sum_of_products(features_WF, self.coefficients)

    def observe(self, features_WF: ArrayLike, seconds_W: ArrayLike) -> bool:
        """Learn from one iteration; return whether the coefficients have changed.

        The busy time of a worker may be NaN, or any invalid number, where it is not known.
        """
        features, seconds = np.asarray(features_WF, dtype=np.float64), np.asarray(seconds_W, dtype=np.float64)
        if features.shape != (len(seconds), len(self.coefficients)):
            raise ValueError(
                f"features must have the shape [workers, features] {(len(seconds), len(self.coefficients))}, got "
                f"{features.shape}"
            )
        if self._recent and len(self._recent[-1]) != len(seconds):
            self._recent.clear()  # a worker joined or left
        self._recent.append(np.column_stack([features, seconds]))
        self._num_observed += 1
        if len(self.coefficients) == 1 or self._num_observed < self._next_fit:
            return False
        before = self.coefficients
        changed = self._refit()
        settled = self.status is not WorkStatus.EARLY and bool((np.abs(self.coefficients - before) <= 0.01).all())
        self._refit_interval = min(2 * self._refit_interval, 64) if settled else MIN_REFIT_INTERVAL
        self._next_fit = self._num_observed + self._refit_interval
        return changed

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learned."""
        return {
            "coefficients": self.coefficients.copy(),
            "fixed": np.array(self.fixed_seconds),
            "status": np.array(self.status.name),
            "seen": np.array(self._num_observed),
            "fits": np.array([self._next_fit, self._refit_interval]),
            "past": self.recent_observations(len(self._recent)),
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what ``state_dict`` returned; raise a ValueError if it belongs to other features."""
        if state["coefficients"].shape != self.coefficients.shape:
            raise ValueError(
                f"the state has {len(state['coefficients'])} coefficients of cost, but this job has "
                f"{len(self.coefficients)}: pass the loader the same lengths or cost as before"
            )
        self.coefficients = np.array(state["coefficients"])
        self.fixed_seconds = float(state["fixed"])
        self.status = WorkStatus[str(state["status"])]
        self._num_observed = int(state["seen"])
        self._next_fit, self._refit_interval = (int(number) for number in state["fits"])
        self._recent = deque(state["past"], maxlen=128)

    def _refit(self) -> bool:
        past_KWF = np.stack(self._recent)
        features_KWF, seconds_KW = past_KWF[..., :-1], past_KWF[..., -1]
        known_KW = np.isfinite(past_KWF).all(axis=2) & (seconds_KW > 0) & (features_KWF[..., 0] > 0)
        if known_KW.sum() < 16:
            return False
        seconds_KW = np.where(known_KW, seconds_KW, 1.0)
        features_KWF = np.where(known_KW[..., None], features_KWF, 1.0)
        before, scale = self.coefficients, float(np.median(seconds_KW[known_KW]))
        # Least variation of features relative to the first: below it batches are too much alike to tell costs apart.
        ratio_RF = features_KWF[known_KW][:, 1:] / features_KWF[known_KW][:, :1]
        if (ratio_RF.std(axis=0) < 0.02 * ratio_RF.mean(axis=0)).all():
            self.status, self.coefficients, self.fixed_seconds = WorkStatus.ALIKE, np.eye(len(before))[0], 0.0
        else:
            self.status = WorkStatus.LEARNED
            self.coefficients, self.fixed_seconds = fit_costs(
                features_KWF, seconds_KW / scale, known_KW, before, self.fixed_seconds / scale
            )
            self.fixed_seconds *= scale
        return not np.array_equal(before, self.coefficients)


def sum_of_products(features_NF: Array, coefficients_F: Array) -> Array:
    """Return each row's features times the coefficients, ``[N]``.

    Added in the order of features: a product of matrices is summed in another order on another processor.
    """
    total: Array = features_NF[:, 0] * coefficients_F[0]
    for place in range(1, len(coefficients_F)):
        total += features_NF[:, place] * coefficients_F[place]
    return total


def fit_costs(
    features_KWF: Array, seconds_KW: Array, known_KW: Mask, coefficients: Array, fixed_seconds: float
) -> tuple[Array, float]:
    """Return coefficients that sum to 1, and fixed seconds, with which times agree best, relatively.

    From one iteration to the next a worker's speed mostly stays, so the logarithms of its times differ as those of its
    work do: speeds cancel out. Where a speed did change, that difference is an outlier and counts less. Gauss and
    Newton's method with Huber's weights, over what is not negative.
    """
    size, theta = len(coefficients), np.append(coefficients, fixed_seconds)
    # 8 steps are enough from the last fit
    for _ in range(8):
        # The usual speed of each worker, under these coefficients. What is fixed is so in seconds: in units of work it
        # is as much more as the worker is faster.
        variable_KW = np.maximum(seconds_KW - theta[-1], 0.05 * seconds_KW)
        columns = zip(((features_KWF * theta[:-1]).sum(axis=2) / variable_KW).T, known_KW.T, strict=True)
        speed_W = np.array([np.median(speed[known]) if known.any() else 1.0 for speed, known in columns])
        speed_KW1 = np.broadcast_to(speed_W[:, None], (*known_KW.shape, 1))
        design_KWF = np.concatenate([features_KWF, speed_KW1], axis=2)
        work_KW = np.where(known_KW, (design_KWF * theta).sum(axis=2), np.nan)
        slope_RF, target_R = _iteration_differences(
            design_KWF / work_KW[..., None], np.log(work_KW), np.log(seconds_KW)
        )
        if len(target_R) < 16:
            return coefficients, fixed_seconds
        # The square root of Huber's weights, against jumps of a worker's speed; what is 8 times the median, such as a
        # checkpoint, is dropped.
        size_R = np.maximum(np.abs(target_R), 1e-12)
        typical = max(float(np.median(size_R)), 1e-9)
        weight_R = np.where(size_R > 8.0 * typical, 0.0, np.sqrt(np.minimum(1, 1.5 * typical / size_R)))
        theta = solve_nonnegative(slope_RF * weight_R[:, None], target_R * weight_R, theta)
        total = theta[:size].sum()
        if total <= 0:  # all time seems fixed: nothing to divide by
            return np.eye(size)[0], 0.0
        theta[:size] /= total
    rounded = np.round(theta[:size], 4)
    return rounded / rounded.sum(), float(theta[size])


def _iteration_differences(slope_KWF: Array, work_KW: Array, seconds_KW: Array) -> tuple[Array, Array]:
    """Return the differences between iterations that lie close together: rows, and by how much times are unexplained.

    Work and seconds are logarithms. Pairs whose work moved far are left out: most often a balancer has answered a
    change of speed, and a time that stays would look like one that does not depend on work.
    """
    slopes, targets = [], []
    for lag in range(1, 3):
        slope = (slope_KWF[lag:] - slope_KWF[:-lag]).reshape(-1, slope_KWF.shape[2])
        moved = (work_KW[lag:] - work_KW[:-lag]).ravel()
        target = (seconds_KW[lag:] - seconds_KW[:-lag]).ravel() - moved
        with np.errstate(invalid="ignore"):
            # iterations whose work differs by a factor of more than 1.5 are not compared
            near = np.abs(moved) < 0.4
        known = near & np.isfinite(target) & np.isfinite(slope).all(axis=1)
        slopes.append(slope[known])
        targets.append(target[known])
    return np.concatenate(slopes), np.concatenate(targets)


def solve_nonnegative(design_RF: Array, target_R: Array, prior_F: Array) -> Array:
    """Return the least squares solution without negative numbers, drawn a little towards a prior.

    Every set of features is tried that may be above 0: of lengths there are four with the fixed part, so 15 sets.
    """
    size = len(prior_F)
    gram = design_RF.T @ design_RF
    # The prior weighs a thousandth of all times, in each feature's own unit, so that none is favored.
    doubt = np.diag(1e-3 * np.maximum(gram.diagonal(), 1e-12))
    gram, right = gram + doubt, design_RF.T @ target_R + doubt @ prior_F
    best, smallest = np.zeros(size), 0.0
    for count in range(1, size + 1):
        for chosen in combinations(range(size), count):
            part = np.linalg.solve(gram[np.ix_(chosen, chosen)], right[list(chosen)])
            loss = -float(part @ right[list(chosen)])  # up to a constant
            if (part >= 0).all() and loss < smallest:
                best, smallest = np.zeros(size), loss
                best[list(chosen)] = part
    return best
