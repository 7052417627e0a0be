"""Batch sizes with which the clients of a round end together. Axis: W clients of one round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.federated.reasons import Reason
from paceline.predictors import Curves
from paceline.solver import split


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """What is known of the clients of a round before their batches are chosen.

    Parameters
    ----------
    curves
        Seconds of all local steps together over the samples of one, ``[W]``.
    comm
        Seconds to communicate, ``[W]``.
    margin
        By how much each may take longer than forecast and still meet a deadline, as a factor of at least 1, ``[W]``.
    data, memory
        The most samples a batch may have by the client's data and memory, ``[W]``; NaN data are not known.
    due
        Who was left out for so long that it is to be tried again, ``[W]``.
    fixed, cause
        The batch of those that are not balanced, ``[W]``, NaN for others; and why, as `Reason`.
    """

    curves: Curves
    comm: Array
    margin: Array
    data: Array
    memory: Array
    due: Mask
    fixed: Array
    cause: Sizes


@dataclass(frozen=True)
class Rules:
    """What batches may be, whoever the clients are; see `FederatedBalancer`."""

    batch: int
    least: int
    largest: int
    deadline: float | None


def sized(now: Round, rules: Rules) -> tuple[Sizes, Sizes, Array]:
    """Return the size, the reason and the upper bound of each client, ``[W]``.

    The sizes of those that are asked and balanced sum to ``batch`` for each of them, or to what their bounds allow if
    that is less, and are the ones with which the last ends earliest: the exact solver, with communication as a time
    besides.
    """
    upper_W, held_by_W = _bounds(now, rules)
    least_W = np.minimum(rules.least, upper_W)
    upper_W = np.fmin(upper_W, now.fixed)
    lower_W = np.fmin(np.fmax(least_W, now.fixed), upper_W)
    reason_W = np.where(upper_W < 1, Reason.NO_ROOM, Reason.BALANCED)
    if rules.deadline is not None:
        in_time_W = _in_time(now.curves, (rules.deadline - now.comm) / now.margin)
        late_W = (in_time_W < least_W) & (upper_W >= 1)
        reason_W = np.where(late_W, np.where(now.due, Reason.TRIED_AGAIN, Reason.LEFT_OUT), reason_W)
        shorter_W = ~late_W & (in_time_W < upper_W)
        upper_W = np.where(late_W, least_W, np.where(shorter_W, in_time_W, upper_W))
        lower_W = np.minimum(lower_W, upper_W)
        held_by_W = np.where(shorter_W, Reason.DEADLINE, held_by_W)
    asked_W = (reason_W != Reason.NO_ROOM) & (reason_W != Reason.LEFT_OUT)
    size_W = np.zeros(len(upper_W), dtype=np.int64)
    size_W[asked_W] = _split(now, asked_W, lower_W, upper_W, rules.batch)
    reason_W = np.where((reason_W == Reason.BALANCED) & np.isfinite(now.fixed), now.cause, reason_W)
    balanced_W = reason_W == Reason.BALANCED
    reason_W = np.where(balanced_W & (size_W >= upper_W), held_by_W, reason_W)
    last_W = balanced_W & (size_W == lower_W) & (size_W < upper_W) & _ends_late(now, size_W, asked_W)
    return size_W, np.where(last_W, Reason.LEAST, reason_W), upper_W


def _bounds(now: Round, rules: Rules) -> tuple[Array, Sizes]:
    """Return the most samples of each client, and which bound that is, ``[W]``."""
    bounds = np.stack(
        [
            np.full(len(now.comm), float(rules.largest)),
            np.where(np.isnan(now.data), np.inf, np.floor(now.data)),
            np.floor(np.minimum(now.memory, now.curves.limit)),
        ]
    )
    held_by = np.array([Reason.LARGEST, Reason.DATA, Reason.MEMORY])[np.argmin(bounds, axis=0)]
    return np.maximum(bounds.min(axis=0), 0.0), held_by


def _in_time(curves: Curves, left_W: Array) -> Array:
    """Return the most samples that take no longer than the time left, ``[W]``."""
    size_W: Array = np.floor((left_W - curves.intercept) / curves.slope)
    return np.where(curves.floor <= left_W, size_W, -1.0)


def _split(now: Round, asked_W: Mask, lower_W: Array, upper_W: Array, batch: int) -> Sizes:
    count = int(asked_W.sum())
    if not count:
        return np.zeros(0, dtype=np.int64)
    of = now.curves
    curves = Curves(of.floor[asked_W], of.slope[asked_W], of.intercept[asked_W], np.full(count, np.inf))
    low, high = lower_W[asked_W], upper_W[asked_W]
    free = np.isnan(now.fixed[asked_W])
    total = int(np.clip(batch * free.sum() + high[~free].sum(), low.sum(), high.sum()))
    return split(curves, total, lower=low, upper=high, comm=now.comm[asked_W]).sizes


def _ends_late(now: Round, size_W: Sizes, asked_W: Mask) -> Mask:
    """Return who ends after the median of those asked by more than the time of a sample."""
    end_W = now.curves.busy_seconds(size_W) + now.comm
    late_W: Mask = asked_W & (end_W > np.median(end_W[asked_W]) + now.curves.slope) if asked_W.any() else asked_W
    return late_W
