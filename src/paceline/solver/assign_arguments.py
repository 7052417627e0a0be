"""The arguments of `assign`, checked: a fleet's pace, and what its samples cost. Axes: N samples, W ranks.

Every sum is taken one term after the other (``cumsum``, ``bincount``), every sort is stable, and no transcendental
function is called: numpy's fast paths for these differ between processors, and ranks on different hardware must reach
the same assignment, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline.solver.load import BatchTimeCurves


@dataclass(frozen=True, eq=False)
class Fleet:
    """Time of each rank for its work: ``max(floor, fixed + work * pace)``, three arrays ``[W]``.

    Parameters
    ----------
    pace
        Seconds per unit of work, above 0.
    fixed
        Seconds of a batch besides its samples.
    floor
        Shortest possible time of a batch, in seconds.
    """

    pace: Array
    fixed: Array
    floor: Array

    def __len__(self) -> int:
        """Return the number of ranks."""
        return len(self.pace)

    def seconds(self, work_W: Array) -> Array:
        """Return the time of each rank for its work, ``[W]``; 0 for a rank without work, which does not run.

        >>> Fleet(np.array([0.5, 1.0]), np.zeros(2), np.zeros(2)).seconds(np.array([6.0, 3.0]))
        array([3., 3.])
        """
        return np.where(work_W > 0, np.maximum(self.floor, self.fixed + work_W * self.pace), 0.0)


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one global batch, the most expensive first.

    Parameters
    ----------
    costs
        Work of each sample, ``[N]``, falling.
    tokens
        What each takes of the cap, ``[N]``, in the same order.
    cap
        Most tokens of a rank; infinite without a cap.
    lower
        Fewest samples of a rank.
    """

    costs: Array
    tokens: Array
    cap: float
    lower: int

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.costs)

    def works(self, owner_N: Sizes, ranks: int) -> Array:
        """Return the work of each rank, ``[W]``."""
        return sums(self.costs, owner_N, ranks)


def sums(values_N: Array, owner_N: Sizes, ranks: int) -> Array:
    """Return the sum of each rank's values, ``[W]``, added one after the other."""
    return np.bincount(owner_N, weights=values_N, minlength=ranks).astype(np.float64, copy=False)


def checked_fleet(speeds: ArrayLike | BatchTimeCurves, fixed: ArrayLike) -> Fleet:
    """Return the fleet of these speeds or curves, or say which argument is wrong."""
    if hasattr(speeds, "slope"):
        return _of_curves(speeds, fixed)  # type: ignore[arg-type]  # narrowed by its attribute
    speed_W = np.array(speeds, dtype=np.float64)
    if speed_W.ndim != 1 or not len(speed_W):
        raise ValueError(f"speeds must hold one number for each rank, got the shape {speed_W.shape}")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        pace_W = 1.0 / speed_W
    _require(np.isfinite(pace_W) & (pace_W > 0), speed_W, "speeds must be finite and above 0", "rank")
    return Fleet(pace_W, _fixed(fixed, len(speed_W)), np.zeros(len(speed_W)))


def _of_curves(curves: BatchTimeCurves, fixed: ArrayLike) -> Fleet:
    pace_W, floor_W, start_W = (
        np.array(column, dtype=np.float64) for column in (curves.slope, curves.floor, curves.intercept)
    )
    _require(np.isfinite(pace_W) & (pace_W > 0), pace_W, "curves.slope must be finite and above 0", "rank")
    if np.isfinite(curves.limit).any():
        raise ValueError(
            "curves with a limit count samples, and a sample of work has no such limit: give cap, in tokens"
        )
    return Fleet(pace_W, _fixed(start_W + np.asarray(fixed, dtype=np.float64), len(pace_W)), floor_W)


def _fixed(fixed: ArrayLike, ranks: int) -> Array:
    fixed_W = np.array(np.broadcast_to(np.asarray(fixed, dtype=np.float64), (ranks,)))
    _require(np.isfinite(fixed_W) & (fixed_W >= 0), fixed_W, "fixed must be finite and not negative", "rank")
    return fixed_W


def checked_samples(costs: ArrayLike, tokens: ArrayLike | None, cap: float | None, lower: int, ranks: int) -> Array:
    """Return costs and tokens, ``[2, N]``, or name the sample or the argument that is wrong."""
    cost_N = np.asarray(costs, dtype=np.float64)
    if cost_N.ndim != 1:
        raise ValueError(f"costs must hold one number for each sample, got the shape {cost_N.shape}")
    _require(np.isfinite(cost_N) & (cost_N > 0), cost_N, "costs must be finite and above 0", "sample")
    token_N = cost_N if tokens is None else np.asarray(tokens, dtype=np.float64)
    if token_N.shape != cost_N.shape:
        raise ValueError(f"tokens must hold one number for each of the {len(cost_N)} samples, got {token_N.shape}")
    _require(np.isfinite(token_N) & (token_N >= 0), token_N, "tokens must be finite and not negative", "sample")
    if lower < 0 or len(cost_N) < max(lower * ranks, 1):
        raise ValueError(
            f"{len(cost_N)} samples are too few for {ranks} ranks of at least {lower} each: draw a larger global batch"
        )
    if cap is not None:
        _require(token_N <= cap, token_N, f"no sample may exceed the cap of {cap:g} tokens", "sample")
    return np.stack([cost_N, token_N])


def _require(fine: np.ndarray, values: Array, rule: str, kind: str) -> None:
    if not fine.all():
        number = int(np.argmin(fine))
        raise ValueError(f"{rule}, got {values[number]:g} for {kind} {number}")
