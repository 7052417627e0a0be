"""The exact split of a global batch: how many samples each worker gets so that all end together. Axis: W workers."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline._arrays import Array, Mask, Sizes
from paceline._curves import Curves, LinearCurves


class SplitStatus(Enum):
    """Reason for the time that the iteration takes, in a sentence with what to do."""

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
    PRESET = "Given: these sizes were not chosen from these curves, so another split may end sooner."


@dataclass(frozen=True, eq=False)
class Split:
    """The batch sizes chosen for one iteration."""

    sizes: Sizes
    """Samples of each worker, ``[W]`` int64; they sum to the global batch."""
    seconds: Array
    """Time each worker takes for them under the curves, with its ``comm``, ``[W]``, in seconds; 0 for a worker without
    samples, which does not run."""
    makespan: float
    """The longest of these times, in seconds: how long the iteration takes."""
    status: SplitStatus
    """What decides the makespan."""

    @property
    def weights(self) -> Array:
        """Share of each worker in the global batch, ``[W]``: its weight in the mean gradient."""
        return np.asarray(self.sizes / self.sizes.sum())


def split(
    curves: Curves | ArrayLike,
    global_batch: int,
    *,
    lower: ArrayLike = 0,
    upper: ArrayLike | None = None,
    batch_multiple: int = 1,
    comm: ArrayLike = 0.0,
) -> Split:
    """Split a global batch so that the last worker ends as early as possible: the exact optimum, in whole samples.

    Minimizes ``max_i t_i(x_i) + comm_i`` where ``sum_i x_i`` is the global batch, ``lower_i <= x_i <= upper_i``
    and ``x_i`` is a multiple of ``batch_multiple``. No split ends earlier, not even by one float64.

    Of several splits that end equally early, workers with equal curves get the same, up to one batch multiple; a faster
    worker never gets less than a slower one with the same bounds; and if there is plenty of room, every worker gets the
    same share of what it could do of the batch in that time. A worker that its own lower bound makes late does not
    delay the others: they still end as early as possible.

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
    comm
        Seconds each worker needs to communicate, on top of its curve; one number or ``[W]``.

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
    fleet = curves if isinstance(curves, Curves) else Curves.from_speed(_validated_speeds(curves))
    multiples, step = _validated_multiples(global_batch, batch_multiple)
    # A flat curve has an infinite rate. Where that leads to 0 * inf, the computed times decide, so no warning is due.
    with np.errstate(all="ignore"):
        problem = _validated_problem(fleet, multiples, step, lower, upper, comm)
        sizes = solve_split(problem, multiples)
        seconds = np.where(sizes > 0, problem.seconds(sizes), 0.0)
        status = _status(problem, sizes)
    return Split((sizes * step).astype(np.int64), seconds, float(seconds.max()), status)


def evaluate(curves: Curves, sizes: ArrayLike) -> Split:
    """Return how long given sizes take under the curves, ``[W]``, without regard to memory limits.

    Sizes are one number for each worker, or one for all.

    >>> evaluate(Curves.from_speed(np.array([100.0, 200.0])), [60, 60]).makespan
    0.6
    """
    _validated_column("sizes", sizes, len(curves.slope))
    sizes_W = np.asarray(sizes) if np.ndim(sizes) else np.full(len(curves.slope), sizes)
    seconds = curves.busy_seconds(sizes_W)
    return Split(sizes_W, seconds, float(seconds.max()), SplitStatus.PRESET)


def safety_factor(spread: Array, risk: float = 1.0) -> Array:
    """Return the factor by which to stretch each worker's curve, ``[W]``: 1 for the least noisy worker.

    A barrier waits for the last worker, often a noisy one. Errors are taken to be log-normal with log deviation
    ``sigma = sqrt(log(1 + spread**2))``, and the factor is ``exp(risk * z * (sigma - min sigma))``, where ``z`` is the
    expected maximum of W standard normal numbers (Blom's approximation). The rule is this library's own, chosen by
    simulating ``E[max_i x_i / v_i]``: ``risk = 1`` is close to optimal for 8 to 512 workers.

    Parameters
    ----------
    spread
        Relative standard deviation of each forecast's error, ``[W]``, not negative. Infinite means unknown: such a
        worker counts as noisy as the noisiest known one.
    risk
        How much of the caution to apply: 0 none, 1 all of it.

    Examples
    --------
    Half of a fleet of eight is noisy. Equal noise changes nothing, known or unknown:

    >>> safety_factor(np.repeat([0.05, 0.4], 4)).round(2)
    array([1.  , 1.  , 1.  , 1.  , 1.62, 1.62, 1.62, 1.62])
    >>> safety_factor(np.full(3, np.inf))
    array([1., 1., 1.])
    """
    return np.asarray(np.exp(risk * log_safety_factor(spread)))


def log_safety_factor(spread: Array) -> Array:
    """Return the logarithm of the full caution, ``[W]``."""
    from statistics import NormalDist  # imported late: a one-off split does without it

    known = np.isfinite(spread)
    if not known.any():
        return np.zeros(len(spread))
    # log(1 + s**2) without squaring, which would overflow for a huge spread.
    sigma = np.sqrt(2 * np.log(np.hypot(1.0, np.where(known, spread, spread[known].max()))))
    expected_maximum = NormalDist().inv_cdf((len(spread) - 0.375) / (len(spread) + 0.25))
    return np.asarray(expected_maximum * (sigma - sigma.min()))


def _status(problem: SplitProblem, sizes: Array) -> SplitStatus:
    seconds, with_one_more = np.where(sizes > 0, problem.seconds(sizes), 0.0), problem.seconds(sizes + 1)
    makespan = seconds.max()
    if with_one_more.min() > makespan and sizes.min() > 0:
        return SplitStatus.BALANCED
    # Several conditions may hold at once. The first one in this order names the status.
    last, room = seconds == makespan, sizes < problem.upper
    sooner = with_one_more < makespan
    if sooner.any():
        if (sizes == problem.lower)[last].all() and (sooner & room).any():
            return SplitStatus.HELD_BY_LOWER
        if (sooner & ~room).any():
            return SplitStatus.HELD_BY_UPPER
    if ((sizes == 0) & room).any():
        return SplitStatus.IDLE
    level = last & (sizes > np.maximum(problem.lower, 1)) & (problem.seconds(sizes - 1) >= makespan)
    if level.any() or (last & room & (with_one_more <= makespan)).any():
        return SplitStatus.FLAT
    return SplitStatus.BALANCED


def _validated_speeds(speeds: ArrayLike) -> Array:
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


def _validated_problem(
    curves: Curves,
    total_multiples: int,
    batch_multiple: int,
    lower: ArrayLike,
    upper: ArrayLike | None,
    comm: ArrayLike,
) -> SplitProblem:
    """Return the curves with bounds in multiples, rounded inward."""
    count = len(curves.slope) if np.ndim(curves.slope) else 0
    if not count:
        raise ValueError("curves must hold at least one worker, got none: check curves.slope")
    limit = _validated_column("curves.limit", curves.limit, count, must_be_finite=False)
    high = limit if upper is None else np.minimum(limit, _validated_column("upper", upper, count, must_be_finite=False))
    low, high = np.ceil(_validated_column("lower", lower, count) / batch_multiple), np.floor(high / batch_multiple)
    _require_feasible(low, high, total_multiples, batch_multiple)
    # float64 cannot represent every whole number above
    if total_multiples * count > 2**53:
        raise ValueError(
            f"global_batch must be at most 2**53 / {count} batch multiples for {count} workers, so that sums "
            f"in float64 stay exact, got {total_multiples}"
        )
    return SplitProblem(
        _validated_column("curves.floor", curves.floor, count),
        _validated_column("curves.slope", curves.slope, count),
        _validated_column("curves.intercept", curves.intercept, count, minimum=-np.inf),
        _validated_column("comm", comm, count),
        low,
        np.minimum(high, total_multiples),
        batch_multiple,
    )


def _validated_multiples(global_batch: int, batch_multiple: int) -> tuple[int, int]:
    """Return the global batch in multiples, and the batch multiple; an error names the nearest valid batches."""
    size, step = require_integer("global_batch", global_batch), require_integer("batch_multiple", batch_multiple)
    if size > 2**53:
        raise ValueError(f"global_batch must be at most 2**53 samples, got {size}")
    if size % step:
        below = size - size % step
        choice = f"{below} or {below + step}" if below else f"{step}"
        raise ValueError(
            f"global_batch must be a multiple of batch_multiple {step}, got {size}: pass {choice}, or batch_multiple=1"
        )
    return size // step, step


def require_integer(name: str, value: int) -> int:
    """Return a whole number of samples, at least 1."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number of samples, got {value!r}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1 sample, got {number}")
    return number


def _validated_column(
    name: str, values: ArrayLike, count: int, *, minimum: float = 0.0, must_be_finite: bool = True
) -> Array:
    """Return one number for each worker, not below ``minimum``."""
    column = np.asarray(values, dtype=np.float64)
    if column.ndim == 0 and not name.startswith("curves"):
        column = np.full(count, column)
    if column.shape != (count,):
        raise ValueError(f"{name} must hold one number for each of the {count} workers, got the shape {column.shape}")
    valid = (column >= minimum) & (np.isfinite(column) | (not must_be_finite))
    if not valid.all():
        i = int(np.argmin(valid))
        expected = "be finite and not negative" if minimum == 0 else "be finite"
        hint = "; exclude a worker that cannot run with upper=0" if name == "curves.slope" else ""
        expected = expected if must_be_finite else "not be NaN or negative, but may be infinite"
        raise ValueError(f"{name} must {expected}, got {column[i]} for worker {i}{hint}")
    return column


def _require_feasible(low: Array, high: Array, total_multiples: int, batch_multiple: int) -> None:
    rounded = "" if batch_multiple == 1 else f", rounded inward to multiples of {batch_multiple},"
    total, minimum, maximum = (number * batch_multiple for number in (total_multiples, low.sum(), high.sum()))
    if minimum > total:
        raise ValueError(
            f"the lower bounds{rounded} sum to {minimum:.0f}, more than the global_batch {total}: lower them"
        )
    if maximum < total:
        raise ValueError(
            f"the upper bounds and memory limits{rounded} sum to {maximum:.0f}, less than the global_batch {total}: "
            "raise them, add workers, or accumulate gradients over smaller batches"
        )
    if (low > high).any():
        i = int(np.argmax(low > high))
        raise ValueError(
            f"worker {i} must take at least {low[i] * batch_multiple:.0f} samples (lower) and at most "
            f"{high[i] * batch_multiple:.0f} (upper and memory limit){rounded.rstrip(',')}, and no batch size does "
            "both: reduce lower, or raise the upper bound or memory limit"
        )


# The earliest deadline is an exact selection. The end times of each worker's multiples never decrease: W sorted rows.
# With R multiples above the lower bounds, the deadline is the R-th smallest number of all rows together: count the
# multiples that end by a pivot, keep the side that holds the R-th, and rank the few that are left. Newton steps choose
# the pivots: curves are nearly straight, so three to six are usual. Every decision compares the very numbers that
# `SplitProblem.seconds` computes: the makespan is the shortest in float64, not up to a tolerance.


@dataclass(frozen=True, eq=False)
class SplitProblem(LinearCurves):
    """Curves of a fleet in which each worker gets ``lower`` to ``upper`` multiples of the batch, ``[W]``.

    Counts of multiples are whole numbers stored as float64, which is exact below 2**53.
    """

    comm: Array
    lower: Array
    upper: Array
    batch_multiple: int = 1

    def seconds(self, multiples: Array) -> Array:
        """Return the seconds that workers take for these multiples, at least one each, with communication, ``[W]``."""
        return self.batch_seconds(multiples * self.batch_multiple) + self.comm

    def select(self, worker_indices: NDArray[np.intp]) -> SplitProblem:
        """Return the load of only these workers."""
        columns = ("floor", "slope", "intercept", "comm", "lower", "upper")
        return replace(self, **{name: getattr(self, name)[worker_indices] for name in columns})

    @cached_property
    def multiples_per_second(self) -> Array:
        """Multiples per second on the line, ``[W]``; 0 where the line is level, as more time changes nothing there."""
        rate = 1.0 / (self.slope * self.batch_multiple)
        return np.where(rate < np.inf, rate, 0.0)

    def multiples_within(self, deadline: float) -> Array:
        """Return the most multiples each worker ends by the deadline, between its bounds, ``[W]``.

        The line is inverted with a margin for rounding; where several counts remain, the computed times decide.
        """
        started = self.seconds(self.lower + 1) <= deadline
        rounding = 16 * float(np.finfo(np.float64).eps)  # the largest relative error of a curve's inverse
        start, rate = self.intercept + self.comm, self.multiples_per_second
        offset, margin = start * rate, (np.abs(start) + self.comm) * (rounding * rate)
        done = np.floor(deadline * (rate * (1 - rounding)) - (offset + margin))
        bound = deadline * (rate * (1 + rounding)) - (offset - margin - 1)
        done = np.clip(done, self.lower, self.upper)
        bound = np.floor(np.minimum(np.where(rate > 0, bound, np.inf), self.upper + 1))
        done = np.where(started, done, self.lower)
        rows = ((bound - done > 1) & started).nonzero()[0]
        if len(rows):
            done[rows] = self.select(rows)._bisect(done[rows], bound[rows], deadline)
        return done

    def _bisect(self, done_W: Array, late_W: Array, deadline: float) -> Array:
        """Bisect between a count that is done in time and one that is late."""
        done_W = np.where(self.seconds(self.upper) <= deadline, self.upper, done_W)
        while (late_W - done_W > 1).any():
            middle = np.floor((done_W + late_W) / 2)
            in_time = self.seconds(middle) <= deadline
            done_W, late_W = np.where(in_time, middle, done_W), np.where(in_time, late_W, middle)
        return done_W


def solve_split(problem: SplitProblem, total_multiples: int) -> Array:
    """Return the multiples of each worker, ``[W]``: they sum to ``total_multiples`` and end as early as possible.

    The fleet can often end more by the earliest deadline, because times tie or curves are flat. If that is enough, one
    multiple is taken back from each of those that would end last. If not, every worker gets the same share of what it
    could do of the batch by the deadline.
    """
    if problem.lower.sum() == total_multiples:
        return problem.lower
    deadline, multiples_W = earliest_deadline(problem, total_multiples)
    excess = int(multiples_W.sum()) - total_multiples
    if not excess:
        return multiples_W
    last_W = multiples_W > problem.lower
    if excess >= np.count_nonzero(last_W):
        multiples_W, last_W = _evenly_used(problem, multiples_W, deadline, total_multiples)
        excess = int(multiples_W.sum()) - total_multiples
    return _remove_excess(problem, multiples_W, last_W, excess) if excess else multiples_W


def _evenly_used(
    problem: SplitProblem, multiples_W: Array, deadline: float, total_multiples: int
) -> tuple[Array, Mask]:
    """Return the multiples at the lowest use that is enough, and which workers reach it with their last one.

    A worker's use is its multiples over what its curve alone, without the upper bound, would allow by the deadline.
    """
    able = replace(problem, upper=np.full(len(multiples_W), float(total_multiples))).multiples_within(deadline)
    zero = np.zeros(len(multiples_W))
    # The same selection solves both problems: "use" takes the place of time, and each worker's curve is a line.
    use = SplitProblem(zero, 1.0 / np.maximum(able, 1), zero, zero, problem.lower, multiples_W)
    level, even = earliest_deadline(use, total_multiples)
    return even, (even > problem.lower) & (use.seconds(even) == level)


def _remove_excess(problem: SplitProblem, multiples_W: Array, last_W: Mask, excess: int) -> Array:
    """Take one batch multiple from the ``excess`` workers that end last among these; ties go to the slower curve."""
    rows = np.flatnonzero(last_W)
    part = problem.select(rows)
    # The worker's place comes last among the keys, so that workers of equal curves are ordered the same way each time.
    keys = (rows, part.slope, part.intercept, part.floor, part.comm, part.seconds(multiples_W[rows]))
    less = multiples_W.copy()
    less[rows[np.lexsort(keys)[len(rows) - excess :]]] -= 1
    return less


def earliest_deadline(problem: SplitProblem, total_multiples: int) -> tuple[float, Array]:
    """Return the smallest float64 by which the fleet ends ``total_multiples``, and the most of each worker, ``[W]``.

    ``total_multiples`` must be above the sum of the lower bounds and at most that of the upper ones. Multiples that a
    lower bound forces on a worker do not count, however late they end: only the remaining work leaves a choice.
    """
    done, bound = problem.lower, problem.upper
    # Bisecting the bit patterns halves the number of float64 that are left, so the search ends at one exact number.
    # A bisection of the seconds themselves would need a tolerance.
    early, end = -1, _to_bits(float(problem.seconds(bound).max()))
    # The first pivot takes all curves for lines without bounds, and half a multiple for each worker for rounding.
    rate = problem.multiples_per_second
    started = np.dot(problem.intercept + problem.comm, rate)
    pivot = float((total_multiples + len(rate) / 2 + started) / rate.sum())
    turn = 0
    while end - early > 1 and (bound - done).sum() > len(done) + 256:  # fewer end times than that are ranked directly
        # Newton steps stall where curves are flat or bounds cut them off: then in every turn, or in every second.
        enclosed = early >= 0 and bound is not problem.upper
        halve = turn >= 3 and (enclosed or turn % 2 == 0)
        if halve or not (pivot > 0 and early < _to_bits(pivot) < end):
            pivot = _from_bits((early + end) // 2)
        within = problem.multiples_within(pivot)
        missing = float(total_multiples - within.sum())
        if missing > 0:
            early, done = _to_bits(pivot), within
        else:
            end, bound = _to_bits(pivot), within
            # At most `-missing` of each worker's last times are later than the deadline, and one more may equal it.
            done = np.maximum(done, bound - (1 - missing))
        # Only workers between their bounds gain multiples when the deadline moves. A little more, to enclose it.
        moving = (within > problem.lower) & (within < problem.upper)
        margin = float(np.count_nonzero(moving)) ** 0.5 + 1
        pivot += float((missing + (margin if missing > 0 else -margin)) / np.dot(rate, moving))
        turn += 1
    return (_from_bits(end), bound) if end - early == 1 else _rank_times(problem, done, bound, total_multiples)


def _rank_times(problem: SplitProblem, done_W: Array, late_W: Array, total_multiples: int) -> tuple[float, Array]:
    """Return the deadline and the multiples ended by it, by ranking all times above ``done_W`` up to ``late_W``."""
    count = (late_W - done_W).astype(np.intp)
    rows = np.arange(len(done_W)).repeat(count)
    place = np.arange(len(rows)) - (count.cumsum() - count).repeat(count)
    seconds = problem.select(rows).seconds(done_W[rows] + 1 + place)
    rank = int(total_multiples - done_W.sum()) - 1
    deadline = float(np.partition(seconds, rank)[rank])
    return deadline, done_W + np.bincount(rows[seconds <= deadline], minlength=len(done_W))


def _to_bits(seconds: float) -> int:
    """Return the bit pattern of a non-negative float64 as an integer, which grows with the number."""
    # abs turns -0.0 into 0.0, whose pattern would be negative otherwise
    return int(np.float64(abs(seconds)).view(np.int64))


def _from_bits(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))
