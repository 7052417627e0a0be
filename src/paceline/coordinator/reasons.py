"""The sentences that give the reason for a plan. Axis: W workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline._text import count, duration, join_names, percent
from paceline.predictors.protocol import Forecast

Reason: TypeAlias = str | tuple[Callable[..., str], tuple[Any, ...]]
"""A part of a sentence; or a function that words it, with its facts: its words are made when they are read."""

NOTHING_TO_GAIN = "Kept the sizes: no split is expected to be faster"


def join_reasons(reasons: Iterable[Reason]) -> str:
    """Return the parts as one sentence.

    >>> join_reasons(["Kept the sizes", (describe_rounding, (8, 1.0, 0.959))])
    'Kept the sizes; in multiples of 8 samples, which costs at most 4.1%.'
    """
    return "".join([one if isinstance(one, str) else one[0](*one[1]) for one in reasons]) + "."


def describe_small_gain(bound: str, gain: float, regret: float, cost: float) -> str:
    """Return the reason to keep sizes although others would gain a little."""
    return (
        f"Kept the sizes: the best split would gain {bound}{percent(gain)}; since they were chosen that sums to "
        f"{percent(regret)} of an iteration, and a change costs {percent(cost)}"
    )


def known_speed(forecast: Forecast) -> Array:
    """Return the speeds that rest on reports, ``[W]``; NaN for those that are only a prior."""
    return np.where(np.isfinite(forecast.spread), forecast.speed, np.nan)


def describe_rounding(batch_multiple: int, planned_seconds: float, earliest_seconds: float) -> str:
    """Return what sizes in whole multiples cost, against single samples, where that is 3% or more."""
    lost = 1 - earliest_seconds / planned_seconds if planned_seconds > 0 else 0.0
    if batch_multiple == 1 or lost < 0.03:
        return ""
    return f"; in multiples of {batch_multiple} samples, which costs at most {percent(lost)}"


def describe_move(workers: Sequence[str], before: Sizes, after: Sizes, speed: Array, known_before: Forecast) -> str:
    """Return how many samples moved, from which workers, and to which.

    The worker whose speed explains the move is named with it: one that recovered since the sizes were chosen by the
    forecast ``known_before``, or else the one that gives most, if it is slow.

    >>> speed = np.array([100.0, 100.0, 38.0, 110.0])
    >>> known = Forecast(speed, spread=np.zeros(4))
    >>> describe_move(["g0", "g1", "g2", "g3"], np.array([64] * 4), np.array([70, 72, 40, 74]), speed, known)
    'Moved 24 samples from g2 (62% slower than the median) to g3, g1 and g0'
    """
    change = after - before
    givers, takers = _largest_changes(-change), _largest_changes(change)
    from_names, to_names = [workers[i] for i in givers], [workers[i] for i in takers]
    speed_before, taker, giver = known_speed(known_before), takers[0], givers[0]
    gained, lost = speed[taker] / speed_before[taker], speed_before[giver] / speed[giver]
    faster = float(gained - 1) if gained > lost else 0.0  # if that explains more than what the giver lost
    if len(workers) == 2:  # the median of two would be half their own difference away from both
        other, than = float(speed[1 - giver]), workers[1 - giver]
    else:
        other, than = float(np.median(speed)), "the median"
    slower = 1 - float(speed[giver]) / other
    # differences below 1% are not reported
    if faster >= 0.01:
        to_names[0] += f" ({percent(faster)} faster than before)"
    elif slower >= 0.01:
        from_names[0] += f" ({percent(slower)} slower than {than})"
    samples = count(int(change[change > 0].sum()), "sample")
    return f"Moved {samples} from {join_names(from_names)} to {join_names(to_names)}"


def describe_resplit(event: str, workers: Sequence[str], sizes: Sizes, known: Array) -> str:
    """Return what a change of the fleet led to, and whose speed (``known``, NaN where it is not) had to be guessed.

    >>> describe_resplit("g2 left", ["g0", "g1"], np.array([60, 60]), np.array([9.0, 9.0]))
    'g2 left: 120 samples split again over 2 workers, 60 each'
    """
    smallest, largest = int(sizes.min()), int(sizes.max())
    each = f"{smallest} to {largest} each" if smallest < largest else f"{largest} each"
    over = f"{event}: {count(int(sizes.sum()), 'sample')} split again over {count(len(sizes), 'worker')}, {each}"
    unknown = ~(known > 0)
    if not unknown.any() or unknown.all():
        return over
    has, it_is = ("has", "it is") if unknown.sum() == 1 else ("have", "they are")
    names = _list_workers(workers, unknown)
    return f"{over}; {names} {has} not reported yet, so {it_is} planned at the median speed of the others"


def describe_saving(planned_seconds: float, current_seconds: float, horizon: int, is_hedged: bool) -> str:
    """Return what a change is expected to save."""
    named = {1: "the next iteration", 2: "the iteration after the next"}
    which = named.get(horizon, f"the iteration after the next {horizon - 1}")
    verb = "is planned, with caution, at" if is_hedged else "is expected to take"
    return f": {which} {verb} {duration(planned_seconds)} instead of {duration(current_seconds)}"


def scale_to_step(reasons: Iterable[Reason], micro_batches: int) -> tuple[Reason, ...]:
    """Return the reasons for a micro-batch scaled to a step of ``micro_batches`` micro-batches."""
    found: list[Reason] = []
    for reason in reasons:
        words, facts = (reason, ()) if isinstance(reason, str) else reason
        if words is describe_saving:
            reason = words, (facts[0] * micro_batches, facts[1] * micro_batches, *facts[2:])
        elif words is describe_move:
            reason = words, (facts[0], facts[1] * micro_batches, facts[2] * micro_batches, *facts[3:])
        found.append(reason)
    return tuple(found)


def describe_violated_bounds(workers: Sequence[str], sizes: Sizes, high: Array) -> str:
    """Return which bound the sizes violated."""
    over = sizes > high
    if not over.any():
        return ": the previous sizes violated a lower bound or the batch multiple"
    if over.sum() == 1:
        i = int(np.argmax(over))
        return f": {workers[i]} has room for only {count(int(high[i]), 'sample')}"
    return f": {_list_workers(workers, over)} have room for fewer"


def describe_memory_limits(workers: Sequence[str], at_limit: Mask) -> str:
    """Return a remark on workers that memory keeps from taking more."""
    if not at_limit.any():
        return ""
    ends = "it ends early" if at_limit.sum() == 1 else "they end early"
    return f"; memory keeps {_list_workers(workers, at_limit)} from taking more, so that {ends}"


def describe_missing_reports(workers: Sequence[str], missing_reports: Sizes) -> str:
    """Return who has not reported for a while, and what their sizes follow instead."""
    quiet = missing_reports >= 3  # one or two may be late
    if not quiet.any():
        return ""
    # Reports, not iterations: a running job may report several iterations at once.
    lasted = int(missing_reports[quiet].min())
    names = _list_workers(workers, quiet)
    if quiet.sum() > 1:
        return (
            f"; {names} were missing from at least the last {lasted} reports, so their sizes follow their own last ones"
        )
    return f"; {names} was missing from the last {lasted} reports, so its size follows its own last one"


def _list_workers(workers: Sequence[str], mask: Mask) -> str:
    return join_names([workers[i] for i in np.flatnonzero(mask).tolist()])


def _largest_changes(change: Sizes) -> list[int]:
    """Return the workers whose change is above 0, the largest first."""
    return [int(i) for i in np.argsort(-change, kind="stable") if change[i] > 0]
