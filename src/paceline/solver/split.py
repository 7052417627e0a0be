"""The exact split of a global batch: how many samples each worker gets so that all end together. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.solver.bounds import checked_load, checked_multiples, finite, not_nan
from paceline.solver.load import BatchTimeCurves, Load
from paceline.solver.risk import cautious
from paceline.solver.share import share


class Status(Enum):
    """Reason for the time that the iteration takes, in one sentence that says what to do."""

    BALANCED = "Balanced: the workers end together, up to one batch multiple."
    HELD_BY_UPPER = (
        "Held by an upper bound: a worker at its upper bound or memory limit ends early, and others do its share. "
        "Raise that bound to end sooner."
    )
    HELD_BY_LOWER = (
        "Held by a lower bound: the last worker is at its lower bound while others could take more in that time. "
        "Reduce that bound, or leave that worker out, to end sooner."
    )
    IDLE = (
        "Some workers get no samples: a batch multiple given to one of them would not make the fleet end sooner. "
        "Set lower to keep every worker busy, or take a smaller batch multiple or a larger global batch."
    )
    FLAT = (
        "Held by the floor: the last worker takes the same time for one more batch multiple. "
        "A larger global batch, or fewer workers, would cost no time."
    )
    GIVEN = "Given: these sizes were not chosen from these curves, so another split may end sooner."


@dataclass(frozen=True, eq=False)
class Split:
    """The batch sizes chosen for one iteration.

    Parameters
    ----------
    sizes
        Samples of each worker, ``[W]`` int64; they sum to the global batch.
    seconds
        Time each worker takes for them under the curves, with its ``comm``, ``[W]``, in seconds; 0 for a worker
        without samples, which does not run.
    makespan
        The longest of these times, in seconds: how long the iteration takes.
    status
        What decides the makespan.
    """

    sizes: Sizes
    seconds: Array
    makespan: float
    status: Status

    @property
    def weights(self) -> Array:
        """Share of each worker in the global batch, ``[W]``: its weight in the mean gradient."""
        share: Array = self.sizes / self.sizes.sum()
        return share


def split(
    curves: BatchTimeCurves | ArrayLike,
    global_batch: int,
    *,
    lower: ArrayLike = 0,
    upper: ArrayLike | None = None,
    batch_multiple: int = 1,
    spread: ArrayLike | None = None,
    risk: float = 0.0,
    comm: ArrayLike = 0.0,
    overlap: float = 1.0,
) -> Split:
    """Split a global batch so that the last worker ends as early as possible: the exact optimum, in whole samples.

    Minimises ``max_i t_i(x_i) + comm_i`` where ``sum_i x_i`` is the global batch, ``lower_i <= x_i <= upper_i``
    and ``x_i`` is a multiple of ``batch_multiple``. No split ends earlier, not even by one float64.

    Several splits may end equally early, because times tie or curves are flat. Then workers with equal curves get the
    same, up to one batch multiple; a faster worker never gets less than a slower one with the same bounds; and if there
    is plenty of room, every worker gets the same share of what it could do of the batch in that time. A worker that its
    own lower bound makes late does not delay the others: they still end as early as possible.

    Parameters
    ----------
    curves
        Batch time curves of the fleet, such as ``forecast.curves``; their limit is a bound like ``upper``. Or a speed
        for each worker, ``[W]``, in samples/s: its time is then samples / speed.
    global_batch
        Samples of all workers together, a multiple of ``batch_multiple``.
    lower, upper
        Fewest and most samples of each worker, one number or ``[W]``; rounded inward to multiples of
        ``batch_multiple``. Without a lower bound a slow worker may get no samples. ``None`` means no upper bound.
    batch_multiple
        Every size is a multiple of this many samples.
    spread
        Relative standard deviation of each worker's forecast, ``[W]``, infinite where unknown; required if risk is set.
    risk
        How much to spare noisy workers, from 0 (not at all) through 1 (the shortest mean iteration) to 2: see
        :func:`paceline.solver.caution`. Above 0 the stretched curves are balanced, but the returned seconds are still
        those of the plain curves.
    comm
        Seconds each worker needs to communicate, on top of its curve; one number or ``[W]``.
    overlap
        How much communication overlaps with computing: a worker's time is ``(t**g + comm**g) ** (1 / g)`` with this
        ``g``, as in Pollux. At 1 one follows the other, at infinity only the longer counts; 2, 4 and 8 lie between.

    Raises
    ------
    ValueError
        If an argument is out of range, or no split satisfies the bounds.
    TypeError
        If the global batch or the batch multiple is not a whole number.

    Examples
    --------
    Three workers of 100, 200 and 300 samples/s:

    >>> plan = split([100, 200, 300], 512)
    >>> plan.sizes, plan.makespan
    (array([ 85, 171, 256]), 0.855)
    >>> print(plan.status.value)
    Balanced: the workers end together, up to one batch multiple.

    The third worker has memory for only 128 samples:

    >>> split([100, 200, 300], 512, upper=[512, 512, 128], batch_multiple=8).sizes
    array([128, 256, 128])
    """
    fleet = cast("BatchTimeCurves", curves) if hasattr(curves, "slope") else Curves.from_speed(_speeds(curves))
    multiples, step = checked_multiples(global_batch, batch_multiple)
    # A flat curve has an infinite rate. Where that leads to 0 * inf, the computed times decide, so no warning is due.
    with np.errstate(all="ignore"):
        plain = checked_load(fleet, multiples, step, lower, upper, comm, overlap)
        load = _stretched(plain, spread, risk)
        taken = share(load, multiples)
        seconds = _seconds(plain, taken)
        status = _status(load, taken, seconds if load is plain else _seconds(load, taken))
    return Split(
        sizes=(taken * step).astype(np.int64),
        seconds=seconds,
        makespan=float(np.maximum.reduce(seconds)),
        status=status,
    )


def _speeds(speeds: ArrayLike) -> Array:
    """Return speeds that are given in place of curves; refuse what cannot be one."""
    try:
        speed_W = np.asarray(speeds, dtype=np.float64)
    except (TypeError, ValueError):
        speed_W = np.zeros(())
    if speed_W.ndim != 1 or not len(speed_W) or not (np.isfinite(speed_W) & (speed_W > 0)).all():
        raise ValueError(
            "curves must be batch time curves, or one speed above 0 for each worker such as [100.0, 200.0] in "
            f"samples/s, got {speeds!r}"
        )
    return speed_W


def evaluate(curves: Curves, sizes: ArrayLike) -> Split:
    """Return how long given sizes take under the curves, ``[W]``, without regard to memory limits.

    Raises
    ------
    ValueError
        If sizes are not one number for each worker, or one for all, finite and not negative.

    Examples
    --------
    >>> evaluate(Curves.from_speed(np.array([100.0, 200.0])), [60, 60]).makespan
    0.6
    """
    finite("sizes", sizes, len(curves.slope))
    sizes_W = np.asarray(sizes) if np.ndim(sizes) else np.full(len(curves.slope), sizes)
    seconds = curves.busy_seconds(sizes_W)
    return Split(sizes_W, seconds, float(seconds.max()), Status.GIVEN)


def _stretched(load: Load, spread: ArrayLike | None, risk: float) -> Load:
    """Return the load with the curves of noisy workers stretched."""
    if not 0 <= risk <= 2:
        raise ValueError(f"risk must lie in [0, 2], got {risk}")
    if spread is not None:
        spread = not_nan("spread", spread, len(load.slope))
    if risk == 0:
        return load
    if spread is None:
        raise ValueError("risk needs the spread of the forecast: give spread=forecast.spread, or risk=0")
    return cautious(load, spread, risk)  # the load balancer compares sizes under the same curves


def _seconds(load: Load, taken: Array) -> Array:
    return np.where(taken > 0, load.seconds(taken), 0.0)


def _status(load: Load, taken: Array, seconds: Array) -> Status:
    with_one_more = load.seconds(taken + 1)
    makespan = np.maximum.reduce(seconds)
    if np.minimum.reduce(with_one_more) > makespan and np.minimum.reduce(taken) > 0:
        return Status.BALANCED
    # Several conditions may hold at once. The first one in this order names the status.
    last, room = seconds == makespan, taken < load.upper
    sooner = with_one_more < makespan
    if sooner.any():
        if (taken == load.lower)[last].all() and (sooner & room).any():
            return Status.HELD_BY_LOWER
        if (sooner & ~room).any():
            return Status.HELD_BY_UPPER
    if ((taken == 0) & room).any():
        return Status.IDLE
    if (last & room & (with_one_more <= makespan)).any():
        return Status.FLAT
    return Status.BALANCED
