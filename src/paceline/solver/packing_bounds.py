"""Lower bounds of the end of any packing into micro-batches, without a search. Axes: N samples, W ranks, D caps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline._arrays import Array
from paceline.solver.fleet import Samples, level, min_padded_cost, packed_bound
from paceline.solver.micro_batches import Problem


def fewest_micro_batches(tokens_N: Array, cap: float) -> int:
    """Return a number below which no packing under this cap comes.

    The largest, over a threshold, of: samples too long to share a micro-batch with one of the threshold or longer, and
    what the others take beyond the room beside long ones (Martello and Toth 1990, bound L2).

    >>> fewest_micro_batches(np.array([6.0, 6.0, 6.0, 2.0]), 10.0)
    3
    """
    rising = np.sort(tokens_N)
    before = np.concatenate([[0.0], rising.cumsum()])
    half = int(np.searchsorted(rising, cap / 2, side="right"))
    limits = np.concatenate([[0.0], rising[:half]])
    first = np.searchsorted(rising[:half], limits, side="left")
    alone = np.maximum(np.searchsorted(rising, cap - limits, side="right"), half)
    room = (alone - half) * cap - (before[alone] - before[half])
    rest = np.maximum(before[half] - before[first] - room, 0)
    return max(1, int((len(rising) - half + np.ceil(rest / cap * (1 - 1e-12))).max()))


def fewest_of_all(problem: Problem) -> int:
    """Return a number of micro-batches of all ranks below which no packing comes."""
    return max(
        fewest_micro_batches(tokens_N, cap) if cap < np.inf else 1
        for tokens_N, cap in zip(problem.tokens.T, problem.caps.tolist(), strict=True)
    )


def packing_bound(problem: Problem, count: int | None, *, padded: bool = False) -> float:
    """Return a time, in seconds, before which no packing ends, with ``count`` micro-batches on each rank if given."""
    lower = int(len(problem) >= problem.ranks)
    fewest = max(fewest_of_all(problem), lower * problem.ranks)
    total = 0.0
    for phase, fixed in enumerate(problem.fixed.tolist()):
        cost_N = np.sort(problem.work[:, phase])[::-1]
        # Each rank that runs has at least one micro-batch, or its count.
        each = fixed * (count or 1)
        fleet = replace(problem.fleet, fixed=problem.fleet.fixed + each * problem.fleet.pace)
        samples = Samples(cost_N, cost_N, np.inf, lower if len(problem.fixed) == 1 else 0)
        bound = packed_bound(samples, fleet)
        work = float(cost_N.cumsum()[-1])
        if count is None:
            bound = max(bound, level(problem.fleet, work + fixed * fewest))
        elif lower and len(problem.fixed) == 1:
            bound = max(bound, _capped(problem, work, count))
        if padded:
            samples = replace(samples, tokens=problem.tokens[:, 0], cap=float(problem.caps[0]))
            padded_cost = min_padded_cost(samples, fixed, count and count * problem.ranks)
            bound = max(bound, level(fleet if count else problem.fleet, padded_cost))
        total += bound
    return total


def equal_bounds(problem: Problem) -> list[tuple[float, int]]:
    """Return equal numbers of micro-batches that may be the best, from the fewest on, each after its bound."""
    bounds: list[tuple[float, int]] = []
    fewest = -(-fewest_of_all(problem) // problem.ranks)
    # the bound rises after a few
    for count in range(fewest, fewest + 64):
        bounds.append((packing_bound(problem, count), count))
        if len(bounds) > 1 and bounds[-1][0] >= bounds[-2][0] > min(bounds)[0]:
            break
    return bounds


def _capped(problem: Problem, work: float, count: int) -> float:
    """Return a bound from what the fastest ranks can do at most within their caps: the densest samples they can hold.

    What is left of the work must be done by the others.
    """
    fleet, bound = problem.fleet, 0.0
    start_W = fleet.fixed / fleet.pace + count * float(problem.fixed[0])
    speed_W = 1 / fleet.pace
    for tokens_N, cap in zip(problem.tokens.T, problem.caps.tolist(), strict=True):
        if cap == np.inf:
            continue
        with np.errstate(divide="ignore"):
            dense = np.argsort(-(problem.work[:, 0] / tokens_N), kind="stable")
        used = np.concatenate([[0.0], tokens_N[dense].cumsum()])
        done = np.concatenate([[0.0], problem.work[dense, 0].cumsum()])
        work_W = np.interp(np.arange(1, problem.ranks) * (count * cap), used, done)
        rest = (work - work_W + start_W[::-1].cumsum()[::-1][1:]) / speed_W[::-1].cumsum()[::-1][1:]
        bound = max(bound, float(rest.max(initial=0.0)))
    return bound
