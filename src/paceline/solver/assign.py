"""Assignment of a global batch's samples to ranks, so that all end together: uniform machines, Q||Cmax.

Axes: N samples, W ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline.solver.deadline import BatchTimeCurves
from paceline.solver.fleet import (
    Fleet,
    Samples,
    checked_fleet,
    checked_samples,
    level,
    min_padded_work,
    packed_bound,
    sums,
)
from paceline.solver.packed import packed
from paceline.solver.padded import FINE, few_orders, order_bound
from paceline.solver.padded import padded as padded_owners


class AssignmentStatus(Enum):
    """Reason for the time that the iteration takes, in a sentence to act on."""

    BALANCED = "Balanced: the ranks end together up to 1%, or nearly as soon as the samples let them."
    HELD_BY_SAMPLE = (
        "Held by a long sample: the last rank has no other. Truncate or split samples, or draw a larger global batch."
    )
    HELD_BY_CAP = (
        "Held by the cap: a rank without room for one more of its shortest sample ends early. "
        "Raise the cap, or draw a smaller global batch."
    )
    HELD_BY_LOWER = (
        "Held by a slow rank that takes as long for its fewest samples. Reduce lower, or leave that rank out."
    )
    COARSE = (
        "Coarse: samples are too few, or too unequal, to fill all ranks evenly. A larger global batch divides better."
    )


@dataclass(frozen=True, eq=False)
class Assignment:
    """Assignment of samples to ranks, and its quality.

    Parameters
    ----------
    owner
        The rank of each sample, ``[N]`` int64, in the order in which the costs were given.
    work
        Cost of each rank's samples, ``[W]``: their sum, or padded to the longest.
    tokens
        What each rank takes of the cap, ``[W]``.
    seconds
        Time each rank takes for them, ``[W]``, in seconds; 0 for a rank without samples.
    """

    owner: Sizes
    work: Array
    tokens: Array
    seconds: Array
    _samples: Samples = field(repr=False)
    _fleet: Fleet = field(repr=False)
    _padded: bool = field(repr=False)

    @property
    def makespan(self) -> float:
        """The longest of these times, in seconds: the iteration's."""
        return float(self.seconds.max())

    @property
    def counts(self) -> Sizes:
        """Samples of each rank, ``[W]`` int64."""
        return np.bincount(self.owner, minlength=len(self.seconds))

    def of(self, rank: int) -> Sizes:
        """Return the samples of a rank, by their places among the costs, rising."""
        return np.flatnonzero(self.owner == rank)

    @cached_property
    def lower_bound(self) -> float:
        """A time, in seconds, before which no assignment ends; computed when it is first asked for."""
        if not self._padded:
            return packed_bound(self._samples, self._fleet)
        padded_work = min_padded_work(self._samples, len(self._fleet))
        bound = max(packed_bound(self._samples, self._fleet), level(self._fleet, padded_work))
        # The bound on padded batches takes the exact order of ranks into account up to this many partial ones: 20 ms.
        if few_orders(self._fleet, 8192):
            return max(order_bound(self._samples, self._fleet, bound, self.makespan, FINE), bound)
        return bound

    @property
    def gap(self) -> float:
        """Relative excess over the lower bound, and so at most over the best assignment: 0.01 is one percent."""
        return self.makespan / self.lower_bound - 1

    @cached_property
    def status(self) -> AssignmentStatus:
        """Reason for the makespan."""
        # within 1% of the bound counts as balanced
        if self.makespan <= level(self._fleet, float(self.work.cumsum()[-1])) * 1.01:
            return AssignmentStatus.BALANCED
        last, count_W = int(self.seconds.argmax()), self.counts
        if count_W[last] <= self._samples.lower and self._fleet.pace[last] > self._fleet.pace.min():
            return AssignmentStatus.HELD_BY_LOWER
        if count_W[last] == 1:
            return AssignmentStatus.HELD_BY_SAMPLE
        full_W = self.tokens + self._samples.tokens.min() > self._samples.cap
        if full_W.any():
            return AssignmentStatus.HELD_BY_CAP
        return AssignmentStatus.BALANCED if self.gap <= 0.01 else AssignmentStatus.COARSE


def assign(
    costs: ArrayLike,
    speeds: ArrayLike | BatchTimeCurves,
    *,
    fixed: ArrayLike = 0.0,
    tokens: ArrayLike | None = None,
    cap: float | None = None,
    lower: int = 1,
    padded: bool = False,
    steady: float = 0.0,
) -> Assignment:
    """Assign the samples of one global batch to ranks of different speed, so that the last rank ends early.

    Packed: the longest sample goes to the rank that would end it first, and so on; then samples are exchanged with the
    latest rank as long as that helps. Padded: the sorted samples are cut contiguously, by bisection on the time.
    Neither is always the best there is (the question is NP-hard), so every answer comes with a lower bound.

    The same arguments give the same assignment, bit for bit, on every processor.

    Parameters
    ----------
    costs
        Work of each sample, ``[N]``, finite and above 0. Padded, they must be the costs of samples padded to their own
        length: those of a longer sample's length are its cost.
    speeds
        Work per second of each rank, ``[W]``; or batch time curves over work, such as a forecast's.
    fixed
        Seconds of each batch besides its samples, one number or ``[W]``.
    tokens
        What each sample takes of the cap, ``[N]``; its cost by default. Padded, each takes what the longest does.
    cap
        Most tokens of a rank: its memory.
    lower
        Fewest samples of a rank.
    padded
        Whether a rank pays for every sample what its most expensive one costs.
    steady
        Padded, the ranks' own order, the first with the longest samples, is kept where it takes at most this share
        longer than the best that is found. What costs leave out then counts for a rank's speed, time after time; with
        another rank at the long end each time it would look like noise.

    Raises
    ------
    ValueError
        If a sample's cost or tokens are out of range (the sample is named), a sample exceeds the cap, there are too few
        samples, or no assignment under the cap is found. To find one is NP-hard too: where the samples take nearly
        all of the cap, one may exist.

    Examples
    --------
    The second rank is half as fast:

    >>> found = assign([8.0, 5.0, 4.0, 3.0, 2.0, 2.0], speeds=[2.0, 1.0])
    >>> found.of(0), found.of(1), found.seconds
    (array([0, 2, 4, 5]), array([1, 3]), array([8., 8.]))
    >>> found.makespan, found.lower_bound
    (8.0, 8.0)
    >>> print(found.status.value)
    Balanced: the ranks end together up to 1%, or nearly as soon as the samples let them.

    Padded, the fast rank takes the three longest, at 8 each:

    >>> assign([8.0, 5.0, 4.0, 3.0, 2.0, 2.0], speeds=[2.0, 1.0], padded=True).work
    array([24.,  9.])

    References
    ----------
    Graham, R. L. (1969). Bounds on multiprocessing timing anomalies (longest first). Gonzalez, T., Ibarra, O. H., and
    Sahni, S. (1977). Bounds for LPT schedules on uniform processors.
    """
    fleet = checked_fleet(speeds, fixed)
    cost_N, token_N = checked_samples(costs, tokens, cap, lower, len(fleet))
    order = np.argsort(-cost_N, kind="stable")
    samples = Samples(cost_N[order], token_N[order], np.inf if cap is None else float(cap), lower)
    bound = packed_bound(samples, fleet)
    if not 0 <= steady < np.inf:
        raise ValueError(f"steady must be finite and not negative, got {steady}")
    if padded:
        sorted_owner_N = padded_owners(samples, fleet, bound, steady)
    else:
        # stop within 0.2% of the bound: a speed's forecast errs by more
        sorted_owner_N = packed(samples, fleet, bound * (1 + 0.002))
    work_W, token_W = _loads(samples, sorted_owner_N, len(fleet), padded=padded)
    owner_N = np.empty_like(sorted_owner_N)
    owner_N[order] = sorted_owner_N
    return Assignment(owner_N, work_W, token_W, fleet.seconds(work_W), samples, fleet, padded)


def _loads(samples: Samples, owner_N: Sizes, ranks: int, *, padded: bool) -> tuple[Array, Array]:
    """Return work and tokens of each rank, ``[W]``."""
    if not padded:
        return samples.works(owner_N, ranks), sums(samples.tokens, owner_N, ranks)
    longest_W, widest_W = np.zeros(ranks), np.zeros(ranks)
    np.maximum.at(longest_W, owner_N, samples.costs)
    np.maximum.at(widest_W, owner_N, samples.tokens)
    count_W = np.bincount(owner_N, minlength=ranks)
    return count_W * longest_W, count_W * widest_W
