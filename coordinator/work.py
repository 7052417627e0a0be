"""What samples cost, learned while training: from own times, whatever the speeds of the workers do meanwhile.

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

WINDOW = 128
"""Iterations that are remembered: enough for 5 % with two workers whose times have 3 % of noise, and soon forgotten
where a phase of training changes what samples cost."""

REFIT = 8
"""Iterations from one fit to the next. A fit takes about 2 ms, so this is a quarter of a millisecond an iteration."""

ROUNDS = 8
"""Alternations between speeds and costs in a fit; each begins where the one before ended, so few are needed."""

AROUND = 4
"""A worker's speed at an iteration is the median of so many before and after it: itself left out, or a wrong cost would
explain its own time."""

LEAST = 16
"""Times below which nothing is concluded."""

APART = 0.02
"""Where features relative to the first vary by less than this, batches are too much alike to tell them apart."""

DOUBT = 1e-3
"""Weight of the prior, relative to that of all times."""

HUBER = 1.5
"""Residuals above so many times the usual one count less: a worker's speed jumped in that iteration."""


class WorkStatus(Enum):
    """What is known of the cost of samples, in a sentence."""

    EARLY = "Too early: the first batches are divided by the given lengths alone."
    LEARNED = "Learned: costs follow from the workers' own times."
    ALIKE = (
        "Cannot tell: all batches have nearly the same mix of lengths, so that the costs of length, of its square and of "
        "a sample cannot be told apart. The given lengths are used as costs."
    )


class WorkModel:
    """Learns the cost of samples that all workers share, apart from how fast each worker is.

    A worker's own seconds are ``(features @ coefficients) / speed + fixed``. Speeds change at any time and are nobody's
    business here: costs are told from how a worker's times differ between iterations that lie close together.

    Parameters
    ----------
    features
        How many numbers describe a batch, F: sums over its samples, scaled so that each feature has the mean 1 over
        all samples. The first one is the prior's: before anything is known it alone is the cost.

    Attributes
    ----------
    coefficients
        Cost of one unit of each feature, ``[F]``, not negative, summing to 1: an average sample costs 1.
    fixed
        Seconds of a batch besides its samples.
    status
        What is known.

    Raises
    ------
    ValueError
        If there is no feature.

    Examples
    --------
    Two workers, the second half as fast; a sample costs its length, and as much again for being one:

    >>> chance, model = np.random.default_rng(0), WorkModel(features=2)
    >>> for _ in range(40):
    ...     features_WF = chance.uniform(5, 15, (2, 2))
    ...     model.observe(features_WF, features_WF @ [0.5, 0.5] / [100, 50])
    >>> model.coefficients.round(2)
    array([0.5, 0.5])
    """

    def __init__(self, features: int) -> None:
        if features < 1:
            raise ValueError(f"features must be at least 1, got {features}")
        self.coefficients = np.eye(features)[0]
        self.fixed = 0.0
        self.status = WorkStatus.EARLY
        self._past: deque[Array] = deque(maxlen=WINDOW)
        self._seen = 0

    def work(self, features_WF: Array) -> Array:
        """Return the work of batches with these features, ``[W]``, in average samples."""
        # Term by term: a product of matrices is summed in another order on another processor.
        return sum_of_products(features_WF, self.coefficients)

    def observe(self, features_WF: ArrayLike, seconds_W: ArrayLike) -> bool:
        """Learn from one iteration; return whether the coefficients have changed.

        Parameters
        ----------
        features_WF
            Features of each worker's batch, ``[W, F]``.
        seconds_W
            Own seconds of each worker for it, ``[W]``; NaN, or any nonsense, where it is not known.
        """
        features, seconds = np.asarray(features_WF, dtype=np.float64), np.asarray(seconds_W, dtype=np.float64)
        if features.shape != (len(seconds), len(self.coefficients)):
            raise ValueError(
                f"features must be {len(seconds)} rows of {len(self.coefficients)}, one for each worker, got the shape "
                f"{features.shape}"
            )
        if self._past and len(self._past[-1]) != len(seconds):
            self._past.clear()  # a worker joined or left
        self._past.append(np.column_stack([features, seconds]))
        self._seen += 1
        return len(self.coefficients) > 1 and self._seen % REFIT == 0 and self._refit()

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return everything learnt."""
        workers = len(self._past[-1]) if self._past else 0
        past = np.stack(self._past) if self._past else np.zeros((0, workers, len(self.coefficients) + 1))
        return {
            "coefficients": self.coefficients.copy(),
            "fixed": np.array(self.fixed),
            "status": np.array(self.status.name),
            "seen": np.array(self._seen),
            "past": past,
        }

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what ``state_dict`` returned.

        Raises
        ------
        ValueError
            If the state is one of other features.
        """
        if state["coefficients"].shape != self.coefficients.shape:
            raise ValueError(
                f"the state has {len(state['coefficients'])} coefficients of cost, but this job has "
                f"{len(self.coefficients)}: give the loader the lengths, or the cost, that it had"
            )
        self.coefficients = np.array(state["coefficients"])
        self.fixed = float(state["fixed"])
        self.status = WorkStatus[str(state["status"])]
        self._seen = int(state["seen"])
        self._past = deque(state["past"], maxlen=WINDOW)

    def _refit(self) -> bool:
        past_KWF = np.stack(self._past)
        features_KWF, seconds_KW = past_KWF[..., :-1], past_KWF[..., -1]
        known_KW = np.isfinite(past_KWF).all(axis=2) & (seconds_KW > 0) & (features_KWF[..., 0] > 0)
        if known_KW.sum() < LEAST:
            return False
        before, scale = self.coefficients, float(np.median(seconds_KW[known_KW]))
        if _alike(features_KWF[known_KW]):
            self.status, self.coefficients, self.fixed = WorkStatus.ALIKE, np.eye(len(before))[0], 0.0
        else:
            self.status = WorkStatus.LEARNED
            self.coefficients, self.fixed = fitted(features_KWF, seconds_KW / scale, known_KW, before, self.fixed / scale)
            self.fixed *= scale
        return not np.array_equal(before, self.coefficients)


def sum_of_products(features_NF: Array, coefficients_F: Array) -> Array:
    """Return each row's features times the coefficients, ``[N]``, added in the order of features."""
    total = features_NF[:, 0] * coefficients_F[0]
    for place in range(1, len(coefficients_F)):
        total = total + features_NF[:, place] * coefficients_F[place]
    return total


def fitted(
    features_KWF: Array, seconds_KW: Array, known_KW: Mask, coefficients: Array, fixed: float
) -> tuple[Array, float]:
    """Return coefficients that sum to 1, and fixed seconds, with which times agree best, relatively.

    Alternates between the speeds that follow from the costs, and the costs that follow from the speeds, by
    least squares over what is not negative; large residuals count less (Huber).
    """
    for _ in range(ROUNDS):
        work_KW = (features_KWF * coefficients).sum(axis=2)
        own_KW = np.maximum(seconds_KW - fixed, 0.05 * seconds_KW)
        speed_KW = _around(np.where(known_KW, work_KW / own_KW, np.nan))
        rows = known_KW & np.isfinite(speed_KW)
        design_RF = np.column_stack([features_KWF[rows] / speed_KW[rows, None], np.ones(rows.sum())])
        design_RF /= seconds_KW[rows, None]
        residual = 1 - design_RF @ [*coefficients, fixed]
        usual = max(float(np.median(np.abs(residual))), 1e-9)
        weight = np.sqrt(np.minimum(1, HUBER * usual / np.maximum(np.abs(residual), 1e-12)))
        found = not_negative(design_RF * weight[:, None], weight, np.eye(len(coefficients) + 1)[0])
        total = found[:-1].sum()
        if total <= 0:  # all time seems fixed: nothing to divide by
            return np.eye(len(coefficients))[0], 0.0
        coefficients, fixed = found[:-1] / total, float(found[-1])
    return np.round(coefficients, 4) / np.round(coefficients, 4).sum(), fixed


def not_negative(design_RF: Array, target_R: Array, prior_F: Array) -> Array:
    """Return the least squares solution without negative numbers, drawn a little towards a prior.

    Every set of features is tried that may be above 0: there are four, so 15 sets.

    >>> not_negative(np.eye(2) * 100, np.array([300.0, -100.0]), np.zeros(2)).round(2)
    array([3., 0.])
    """
    size = len(prior_F)
    gram = design_RF.T @ design_RF
    # Each feature is doubted in its own unit, so that none is favoured.
    doubt = np.diag(DOUBT * np.maximum(gram.diagonal(), 1e-12))
    gram, right = gram + doubt, design_RF.T @ target_R + doubt @ prior_F
    best, least = np.zeros(size), 0.0
    for count in range(1, size + 1):
        for chosen in combinations(range(size), count):
            part = np.linalg.solve(gram[np.ix_(chosen, chosen)], right[list(chosen)])
            loss = -float(part @ right[list(chosen)])  # up to a constant
            if (part >= 0).all() and loss < least:
                best, least = np.zeros(size), loss
                best[list(chosen)] = part
    return best


def _around(speed_KW: Array) -> Array:
    """Return the median of each worker's speeds shortly before and after each iteration, ``[K, W]``."""
    gap = np.full((AROUND, speed_KW.shape[1]), np.nan)
    padded = np.concatenate([gap, speed_KW, gap])
    count = len(speed_KW)
    shifts = [shift for shift in range(2 * AROUND + 1) if shift != AROUND]
    near = np.stack([padded[shift : shift + count] for shift in shifts])
    none = ~np.isfinite(near).any(axis=0)
    near[:, none] = 1.0
    median: Array = np.where(none, np.nan, np.nanmedian(near, axis=0))
    return median


def _alike(features_RF: Array) -> bool:
    """Whether all batches have nearly the same mix of features."""
    ratio_RF = features_RF[:, 1:] / features_RF[:, :1]
    return bool((ratio_RF.std(axis=0) < APART * ratio_RF.mean(axis=0)).all())
