"""Ranks and samples of an assignment, and times before which no assignment ends. Axes: N samples, W ranks.

Every sum is taken one term after the other (``cumsum``, ``bincount``), every sort is stable, and no transcendental
function is called: numpy's fast paths for these differ between processors, and ranks on different hardware must reach
the same assignment, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline._curves import Curves


@dataclass(frozen=True, eq=False)
class Fleet:
    """Time of each rank for its work: ``max(floor, fixed + work * pace)`` seconds, three arrays ``[W]``."""

    pace: Array
    fixed: Array
    floor: Array

    def __len__(self) -> int:
        return len(self.pace)

    def fastest_first(self) -> tuple[Fleet, Sizes]:
        """Return the fleet sorted by pace, and the rank at each place, ``[W]``."""
        rank_W = np.lexsort((self.floor, self.fixed, self.pace))
        return Fleet(self.pace[rank_W], self.fixed[rank_W], self.floor[rank_W]), rank_W

    def seconds(self, work_W: Array) -> Array:
        """Return the time of each rank for its work, ``[W]``; 0 for a rank without work, which does not run."""
        return np.where(work_W > 0, np.maximum(self.floor, self.fixed + work_W * self.pace), 0.0)


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one global batch, the most expensive first."""

    costs: Array
    tokens: Array
    """What each takes of the cap, ``[N]``."""
    cap: float
    """Most tokens of a rank; infinite without a cap."""
    lower: int
    """Fewest samples of a rank."""

    def __len__(self) -> int:
        return len(self.costs)


def sum_by_owner(values_N: Array, owner_N: Sizes, owners: int) -> Array:
    """Return the sum of each rank's values, ``[W]``, added one after the other."""
    return np.bincount(owner_N, weights=values_N, minlength=owners).astype(np.float64, copy=False)


Found = TypeVar("Found")


def earliest_end(find: Callable[[float], Found | None], low: float, growth: float) -> tuple[float, Found] | None:
    """Return the earliest end after ``low`` for which something is found, up to 0.1%, and what; None if nothing is.

    The search for an end begins at ``low`` and multiplies it by ``growth``.
    """
    if find(np.inf) is None:  # it is not time that is short
        return None
    high = low * (1 + 1e-3)
    while (found := find(high)) is None:
        low, high = high, high * growth
    _, end, earliest = bisect_end(find, low, high, found)
    return end, earliest


def bisect_end(
    find: Callable[[float], Found | None], low: float, high: float, found_at_high: Found
) -> tuple[float, float, Found]:
    """Return the earliest end for which something is found, up to 0.1%: the ends without and with it, and what it is.

    ``found_at_high`` is what there is for ``high``.
    """
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        at_middle = find(middle)
        if at_middle is None:
            low = middle
        else:
            high, found_at_high = middle, at_middle
    return low, high, found_at_high


def validated_fleet(speeds: ArrayLike | Curves) -> Fleet:
    """Return the fleet of these speeds or curves; an error names a wrong argument."""
    if isinstance(speeds, Curves):
        pace_W, floor_W, start_W = (
            np.array(column, dtype=np.float64) for column in (speeds.slope, speeds.floor, speeds.intercept)
        )
        require_valid(np.isfinite(pace_W) & (pace_W > 0), pace_W, "curves.slope must be finite and above 0", "rank")
        if np.isfinite(speeds.limit).any():
            raise ValueError(
                "curves.limit bounds the number of samples, not their cost: pass curves without limits, and cap= in "
                "tokens"
            )
        require_valid(
            np.isfinite(start_W) & (start_W >= 0), start_W, "curves.intercept must be finite and not negative", "rank"
        )
        return Fleet(pace_W, start_W, floor_W)
    speed_W = np.array(speeds, dtype=np.float64)
    if speed_W.ndim != 1 or not len(speed_W):
        raise ValueError(f"speeds must hold one number for each rank, got the shape {speed_W.shape}")
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        pace_W = 1.0 / speed_W
    require_valid(np.isfinite(pace_W) & (pace_W > 0), speed_W, "speeds must be finite and above 0", "rank")
    return Fleet(pace_W, np.zeros(len(speed_W)), np.zeros(len(speed_W)))


def validated_samples(costs: ArrayLike, tokens: ArrayLike | None, cap: float | None, lower: int, ranks: int) -> Array:
    """Return costs and tokens, ``[2, N]``, or name the sample or the argument that is wrong."""
    cost_N = np.asarray(costs, dtype=np.float64)
    if cost_N.ndim != 1:
        raise ValueError(f"costs must hold one number for each sample, got the shape {cost_N.shape}")
    require_valid(np.isfinite(cost_N) & (cost_N > 0), cost_N, "costs must be finite and above 0", "sample")
    token_N = cost_N if tokens is None else np.asarray(tokens, dtype=np.float64)
    if token_N.shape != cost_N.shape:
        raise ValueError(f"tokens must hold one number for each of the {len(cost_N)} samples, got {token_N.shape}")
    require_valid(np.isfinite(token_N) & (token_N >= 0), token_N, "tokens must be finite and not negative", "sample")
    if lower < 0 or len(cost_N) < max(lower * ranks, 1):
        raise ValueError(
            f"{len(cost_N)} samples are too few for {ranks} ranks of at least {lower} each: draw a larger global batch"
        )
    if cap is not None:
        too_long = f"shorten or leave out samples above the cap of {cap:g} tokens, or raise it"
        require_valid(token_N <= cap, token_N, too_long, "sample")
    return np.stack([cost_N, token_N])


def require_valid(is_valid: np.ndarray, values: Array, rule: str, item_noun: str) -> None:
    """Raise a ValueError that names the first value that is not fine."""
    if not is_valid.all():
        number = int(np.argmin(is_valid))
        raise ValueError(f"{rule}, got {values[number]:g} for {item_noun} {number}")


def packed_lower_bound(samples: Samples, fleet: Fleet) -> float:
    """Return a time, in seconds, before which no assignment ends: the largest of three bounds.

    All work at once (a fluid), the ``k`` longest samples on the ``k`` fastest ranks (as where samples may be
    interrupted: Horvath, Lam and Sethi 1977), and a sample for each of the slowest ranks.
    """
    count = min(len(fleet), len(samples))
    fastest_W = (1 / np.sort(fleet.pace))[:count].cumsum()
    longest = float(fleet.fixed.min() + (samples.costs[:count].cumsum() / fastest_W).max())
    bound = max(divisible_makespan(fleet, float(samples.costs.cumsum()[-1])), longest)
    if not samples.lower:
        return bound
    # No rank may be empty: one of the k slowest has at least the k-th shortest sample.
    shortest_W = samples.costs[::-1][: len(fleet)]
    slowest_W = np.sort(fleet.pace)[::-1]
    alone = float((fleet.fixed + shortest_W[0] * fleet.pace).max())
    return max(bound, float((shortest_W * slowest_W).max() + fleet.fixed.min()), alone, float(fleet.floor.max()))


def divisible_makespan(fleet: Fleet, work: float) -> float:
    """Return when the fleet ends, in seconds, if work can be divided at will: all ranks at the same time."""
    order = np.argsort(fleet.fixed, kind="stable")
    start_W, speed_W = fleet.fixed[order], 1 / fleet.pace[order]
    rate_W, weighted_W = speed_W.cumsum(), (speed_W * start_W).cumsum()
    begun = int(np.searchsorted(start_W * rate_W - weighted_W, work, side="right")) - 1
    return float((work + weighted_W[begun]) / rate_W[begun])


def min_padded_cost(samples: Samples, group_cost: float, groups: int | None = None) -> float:
    """Return a lower bound on the cost of padded groups under the cap, where each group costs ``group_cost`` besides.

    With ``groups``, there are so many, which are not in the cost. Tokens must fall as costs do.

    The sum over groups of count times longest is least for a contiguous cut of the sorted samples. With a price on
    each group the best cut follows from a recursion, and ``best - group_cost * groups`` is a bound at every price.
    """
    cells = edges, longest_C, _ = _length_cells(samples)
    if groups is None:
        return _cheapest_groups(*cells, group_cost)[0]
    low, high, best = 0.0, float((longest_C * np.diff(edges)).cumsum()[-1]), 0.0
    for _ in range(14):
        group_cost = (low + high) / 2
        work, cut = _cheapest_groups(*cells, group_cost)
        best = max(best, work - group_cost * groups)
        low, high = (group_cost, high) if len(cut) > groups else (low, group_cost)
    return best


def padded_group_starts(samples: Samples, group_cost: float, groups: int | None = None) -> Sizes:
    """Return where the padded groups begin that cost least, each with its price; at a higher one, if they are too many.

    They may exceed the cap by a few samples, as these are counted in cells.
    """
    cells = _length_cells(samples)
    _, cut = _cheapest_groups(*cells, group_cost)
    if groups is not None and len(cut) > groups:
        low, high = group_cost, float(samples.costs[0] * len(samples))
        for _ in range(7):  # halvings of the price of a group
            middle = (low + high) / 2
            _, found = _cheapest_groups(*cells, middle)
            if len(found) > groups:
                low = middle
            else:
                high, cut = middle, found
    return cells[0][cut].astype(np.int64)


def _length_cells(samples: Samples) -> tuple[Array, Array, Array]:
    """Return where cells of samples begin, and of a group that begins there what it is padded to and its most samples.

    512 lengths are told apart: all of the longest half of them, and quantiles of the others. A length is rounded down
    to its cell's, so a bound stays one.
    """
    count, cells = len(samples), 512
    edges = np.arange(count + 1)
    if count > cells:
        rest = np.linspace(cells // 2, count, cells // 2 + 1).astype(np.int64)
        edges = np.unique(np.concatenate([np.arange(cells // 2), rest]))
    # Moving cuts to the edges of cells makes a group larger by less than a cell.
    most_C = np.floor(samples.cap / samples.tokens[edges[1:] - 1]) + np.diff(edges)
    return edges.astype(np.float64), samples.costs[edges[1:] - 1], most_C


def _cheapest_groups(edges: Array, longest_C: Array, count_C: Array, group_cost: float) -> tuple[float, list[int]]:
    """Return the least sum of padded work and prices, and the first cell of each group of at most so many samples."""
    cells = len(longest_C)
    ends = np.searchsorted(edges, edges[:-1] + count_C, side="right").tolist()
    cost, after = np.zeros(cells + 1), [0] * cells
    for first in range(cells - 1, -1, -1):
        end = max(ends[first], first + 2)
        choices = (edges[first + 1 : end] - edges[first]) * longest_C[first] + cost[first + 1 : end]
        best = int(choices.argmin())
        cost[first] = choices[best] + group_cost
        after[first] = first + 1 + best
    cut, first = [], 0
    while first < cells:
        cut.append(first)
        first = after[first]
    return float(cost[0]), cut
