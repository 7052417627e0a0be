"""Packing of samples of unequal length into micro-batches of ranks of unequal speed, so that all ranks end together.

Axes: N samples, W ranks, P phases, D caps.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.solver.fleet import (
    Fleet,
    Samples,
    divisible_makespan,
    earliest_end,
    min_padded_cost,
    packed_lower_bound,
    padded_group_starts,
    require_valid,
    sum_by_owner,
    validated_fleet,
)
from paceline.solver.lockstep import search_lockstep
from paceline.solver.micro_batches import Bins, PackingProblem, fill_empty, search

MAX_BALANCED_GAP = 0.01
"""A time this close to the bound counts as balanced."""


@dataclass(frozen=True)
class TokenCost:
    """Cost of a sample of n tokens, ``token * n + square * n**2 + sample``, and of a micro-batch, in any unit.

    Parameters
    ----------
    token
        Cost of a token: linear layers.
    square
        Cost of a pair of tokens of one sample: attention.
    sample
        Cost of a sample of any length.
    micro_batch
        Cost of a micro-batch besides its samples: launches, the all-gathers of a sharded model.

    Examples
    --------
    >>> TokenCost(token=1.0, square=1 / 8192)([8192, 4096])
    array([16384.,  6144.])
    """

    token: float = 1.0
    square: float = 0.0
    sample: float = 0.0
    micro_batch: float = 0.0

    def __post_init__(self) -> None:
        values = (self.token, self.square, self.sample, self.micro_batch)
        if not all(0 <= value < np.inf for value in values) or not any(values[:3]):
            raise ValueError(f"costs must be finite and not negative, and token, square or sample above 0, got {self}")

    def __call__(self, lengths: ArrayLike) -> Array:
        """Return the cost of samples of these lengths; one without tokens costs nothing."""
        length = np.asarray(lengths, dtype=np.float64)
        cost: Array = np.where(length > 0, self.token * length + self.square * (length * length) + self.sample, 0.0)
        return cost

    @classmethod
    def fit(cls, lengths: list[ArrayLike], seconds: ArrayLike, *, padded: bool = False) -> TokenCost:
        """Return the costs, in seconds, that explain the measured times of micro-batches best.

        Parameters
        ----------
        lengths
            Lengths of the samples of each measured micro-batch. They should differ in their number of samples and in
            length, or the parts cannot be told apart.
        seconds
            Time of each, forward and backward, on one rank or on ranks of equal speed.
        padded
            Whether samples were padded to the longest of their micro-batch.

        Examples
        --------
        >>> measured = [[100, 200], [400], [50, 50, 50], [300, 100], [800]]
        >>> cost = TokenCost.fit(measured, [0.1 + sum(n) * 1e-3 for n in measured])
        >>> round(cost.token, 6), round(cost.micro_batch, 6)
        (0.001, 0.1)
        """
        time_B, rows = np.asarray(seconds, dtype=np.float64), []
        for rank_lengths in lengths:
            length = np.asarray(rank_lengths, dtype=np.float64)
            if padded:
                length = np.full(len(length), length.max())
            rows.append([length.sum(), (length * length).sum(), float(len(length)), 1.0])
        if len(rows) != len(time_B) or not len(rows):
            raise ValueError(
                "seconds must hold one time for each micro-batch, and there must be at least one, got "
                f"{len(time_B)} times for {len(rows)} micro-batches"
            )
        require_valid(np.isfinite(time_B) & (time_B > 0), time_B, "seconds must be finite and above 0", "micro-batch")
        from scipy.optimize import nnls  # imported late: packing itself does without scipy

        relative_BF = np.array(rows) / time_B[:, None]  # relative errors weigh alike
        size_F = relative_BF.max(axis=0)
        return cls(*(nnls(relative_BF / size_F, np.ones(len(time_B)), maxiter=100)[0] / size_F).tolist())


Cost = TokenCost | ArrayLike
"""What samples cost: by their tokens, or each a number of its own."""


class PackingStatus(Enum):
    """Reason for the time that the step takes, in a sentence to act on."""

    BALANCED = "Balanced: the ranks end together up to 1%, or nearly as soon as the samples let them."
    HELD_BY_SAMPLE = (
        "Held by a long sample: the last rank has no other. Truncate or split samples, or pack a larger global batch."
    )
    HELD_BY_CAP = (
        "Held by the cap: ranks that end early have no room in their micro-batches. "
        "Raise cap or micro_batches, or pack a smaller global batch."
    )
    HELD_BY_SLOW_RANK = (
        "Held by a slow rank that takes as long for one sample in each micro-batch. Reduce micro_batches, or leave "
        "that rank out."
    )
    PARTLY_FILLED = (
        "Partly filled: the ranks end together, but later than with full micro-batches, each of which costs a fixed "
        "time. Pack a larger global batch, or reduce the cap to what divides it better."
    )
    PADDED = "Padded: the ranks end together, but padding takes time. Pack without padding, or a larger global batch."
    COARSE = (
        "Coarse: samples are too few, or too unequal, to fill all ranks evenly. A larger global batch divides better."
    )


@dataclass(frozen=True, eq=False)
class Packing:
    """Samples of each micro-batch of each rank, and the quality of this packing."""

    rank: Sizes
    """Rank of each sample, ``[N]`` int64, in the order in which lengths were given."""
    micro_batch: Sizes
    """Micro-batch of each sample among its rank's, ``[N]`` int64, from 0. The most expensive ones come first."""
    counts: Sizes
    """Micro-batches of each rank, ``[W]`` int64. Some are empty only where samples are fewer than micro-batches."""
    fill: Array
    """Share of the cap that each rank's micro-batches take, ``[W]``, with padding if padded; 0 without a cap."""
    work: Array
    """Cost of each rank's samples and micro-batches, ``[W]``."""
    seconds: Array
    """Time of each rank, ``[W]``: its work at its speed."""
    makespan: float
    """Time of the step: the longest of these; with a barrier between phases the sum of each phase's longest; with
    ``micro_batches="lockstep"`` the same as ``lockstep``."""
    lockstep: float
    """Time of the step if ranks wait for each other after every micro-batch, as a sharded model makes them."""
    _problem: PackingProblem = field(repr=False)
    _limit: int | str | None = field(repr=False)
    _padded: bool = field(repr=False)

    def samples_of(self, rank: int) -> list[Sizes]:
        """Return the samples of each micro-batch of a rank, by their places among the lengths, rising."""
        places = np.flatnonzero(self.rank == rank)
        return [places[self.micro_batch[places] == place] for place in range(int(self.counts[rank]))]

    @property
    def idle(self) -> float:
        """Share of the ranks' time that they wait for the last one."""
        return float(1 - self.seconds.mean() / self.makespan)

    @cached_property
    def lower_bound(self) -> float:
        """A time, in seconds, before which no packing ends; computed when it is first asked for."""
        if not isinstance(self._limit, str):
            return packing_lower_bound(self._problem, self._limit, padded=self._padded)
        bound = min(equal_bounds(self._problem))[0]
        # Padded, more micro-batches need less padding, at their price: the same trade as where counts are free.
        return max(bound, packing_lower_bound(self._problem, None, padded=True)) if self._padded else bound

    @property
    def gap(self) -> float:
        """Relative excess over the lower bound, and so at most over the best packing: 0.01 is one percent."""
        return self.makespan / self.lower_bound - 1

    @cached_property
    def status(self) -> PackingStatus:
        """Reason for the gap."""
        if self.idle <= MAX_BALANCED_GAP and self.gap > MAX_BALANCED_GAP:
            return PackingStatus.PADDED if self._padded else PackingStatus.PARTLY_FILLED
        if self.idle <= MAX_BALANCED_GAP:
            return PackingStatus.BALANCED
        last, size_W = int(self.seconds.argmax()), np.bincount(self.rank, minlength=len(self.counts))
        if size_W[last] == 1:
            return PackingStatus.HELD_BY_SAMPLE
        if size_W[last] <= self.counts[last]:
            return PackingStatus.HELD_BY_SLOW_RANK
        # micro-batches count as full at 95% of the cap
        if self._limit and (self.fill[self.seconds < self.makespan * (1 - MAX_BALANCED_GAP)] > 0.95).any():
            return PackingStatus.HELD_BY_CAP
        return PackingStatus.BALANCED if self.gap <= MAX_BALANCED_GAP else PackingStatus.COARSE


def pack(
    lengths: ArrayLike | Mapping[str, ArrayLike],
    ranks: int | None = None,
    *,
    cap: float | Mapping[str, float] | None = None,
    speeds: ArrayLike | Curves | None = None,
    micro_batches: int | Literal["equal", "lockstep"] | None = None,
    cost: Cost | Mapping[str, Cost] | None = None,
    padded: bool = False,
    barrier: bool = False,
) -> Packing:
    """Pack the samples of one global batch into micro-batches, so that ranks of different speed end together.

    The largest sample goes to the rank with most time left, and so on; each rank's samples are packed into
    micro-batches; then samples are exchanged with the latest rank as long as that helps. The best packing is NP-hard to
    find, so every answer comes with a lower bound. The same arguments give the same packing, bit for bit, on all
    processors: every rank may compute it for itself.

    Parameters
    ----------
    lengths
        Tokens of each sample, ``[N]``, above 0; or of each of its parts, such as ``{"text": ..., "image": ...}``.
    ranks
        Number of ranks, where ``speeds`` is left out.
    cap
        Most tokens of a micro-batch, with padding if padded: the memory of a rank. Of several parts, one number for
        their sum, or one for each of some parts. Without it a rank has one micro-batch, or ``micro_batches``.
    speeds
        Cost per second of each rank, ``[W]``, such as a forecast's ``speed``; or batch time curves over cost. Equal
        speeds by default.
    micro_batches
        None: each rank has as few as its samples need (DDP under ``no_sync``, replicas of HSDP). ``"equal"``: all ranks
        have the same number, chosen to end soonest (Megatron). ``"lockstep"``: the same number, for ranks that wait for
        each other after every micro-batch (FSDP); ``padded`` is searched as ``"equal"``. A number: all ranks have that
        many.
    cost
        Cost of samples: a `TokenCost`, or an array of N costs to use as they are. By default a token costs 1. Of
        several parts, one for each; a part that is left out costs nothing.
    padded
        Whether a micro-batch pays for every sample what its longest costs.
    barrier
        Whether all ranks wait for each other between the phases that process the parts, such as a vision encoder and a
        language model. The step then takes the sum of each phase's longest time.

    Raises
    ------
    ValueError
        If an argument is out of range (the sample is named), a sample exceeds the cap, or no packing into
        ``micro_batches`` is found.

    Examples
    --------
    The second rank is half as fast:

    >>> packing = pack([600, 500, 400, 300, 200, 100], cap=1000, speeds=[2.0, 1.0])
    >>> packing.samples_of(0), packing.samples_of(1)
    ([array([0, 3]), array([1])], [array([2, 4, 5])])
    >>> packing.seconds, packing.lower_bound
    (array([700., 700.]), 700.0)
    >>> print(packing.status.value)
    Balanced: the ranks end together up to 1%, or nearly as soon as the samples let them.
    """
    if speeds is None and (ranks is None or ranks < 1):
        raise ValueError(f"pass ranks, a number above 0, or speeds, one for each rank; got ranks={ranks}")
    fleet, rank_W = validated_fleet(np.ones(ranks or 1) if speeds is None else speeds).fastest_first()
    if ranks is not None and ranks != len(fleet):
        raise ValueError(f"speeds must hold one number for each of the {ranks} ranks, got {len(fleet)}")
    problem, sample_N = _problem(lengths, cost, cap, fleet, padded=padded, barrier=barrier)
    is_count = isinstance(micro_batches, int | np.integer) and micro_batches >= 1
    if not (is_count or micro_batches is None or micro_batches in ("equal", "lockstep")):
        raise ValueError(f'micro_batches must be None, "equal", "lockstep" or a number above 0, got {micro_batches!r}')
    if micro_batches == "lockstep" and barrier:
        raise ValueError('barrier= and micro_batches="lockstep" exclude each other: pass only one of them')
    bins = _best(problem, "equal" if micro_batches == "lockstep" else micro_batches, padded=padded)
    if bins is None:
        fewest = min_total_micro_batches(problem)
        raise ValueError(
            f"the samples were not packed into {micro_batches} micro-batches on each of {problem.ranks} ranks: they "
            f"need at least {fewest} in all. Raise micro_batches or cap, or pack a smaller global batch"
        )
    if micro_batches == "lockstep" and not padded:
        bins = search_lockstep(problem, -(-min_total_micro_batches(problem) // problem.ranks), bins)
    return _packing(problem, bins, sample_N, rank_W, micro_batches, padded=padded)


def _best(problem: PackingProblem, micro_batches: int | str | None, *, padded: bool) -> Bins | None:
    """Return the best micro-batches that are found; None if they do not fit."""
    if micro_batches != "equal":
        count = None if micro_batches is None else int(micro_batches)
        return _search_bins(problem, count, packing_lower_bound(problem, count), padded=padded)
    bounds = equal_bounds(problem)
    # numbers of micro-batches to try; six from the one that padding alone would choose
    candidates, limit = sorted(bounds), 3
    if padded:  # these bounds know nothing of padding, which more micro-batches reduce
        first, limit = max(padded_count(problem), bounds[0][1]), 6
        candidates = [(0.0, count) for count in range(first, first + limit)]
    candidates += [(candidates[-1][0], count) for count in range(bounds[-1][1] + 1, bounds[0][1] + len(problem) + 1)]
    best, end, tried, worse = None, np.inf, 0, 0
    for bound, count in candidates:
        # another number is tried if its bound is at least 0.3% earlier
        if bound * (1 + 3e-3) >= end or tried == limit or worse == 2:
            break
        bins = _search_bins(problem, count, bound or packing_lower_bound(problem, count), padded=padded)
        if bins is None:
            continue
        _, work_WP = _loads(problem, bins, equal=True, padded=padded)
        last = float(problem.seconds(work_WP).max(axis=0).sum())
        tried, worse = tried + 1, worse + 1 if last >= end else 0
        if last < end:
            best, end = bins, last
    return best


def _search_bins(problem: PackingProblem, per_rank: int | None, bound: float, *, padded: bool) -> Bins | None:
    if padded:
        return search_padded(problem, per_rank, bound)
    # stop within 0.1% of the bound: a speed's forecast errs by more
    return search(problem, per_rank, bound, bound * (1 + 1e-3))


def _problem(
    lengths: ArrayLike | Mapping[str, ArrayLike],
    cost: Cost | Mapping[str, Cost] | None,
    cap: float | Mapping[str, float] | None,
    fleet: Fleet,
    *,
    padded: bool,
    barrier: bool,
) -> tuple[PackingProblem, Sizes]:
    """Return the samples, the largest first, with their ranks and caps; and their numbers."""
    parts = dict(lengths) if isinstance(lengths, Mapping) else {"lengths": lengths}
    several = isinstance(lengths, Mapping)
    length_NP = _stack_lengths(parts)
    for name, values in (("cost", cost), ("cap", cap)):
        if isinstance(values, Mapping) and not (several and values and set(values) <= set(parts)):
            raise ValueError(f"{name} names the parts {', '.join(values)}, but lengths has {', '.join(parts)}")
    costs = cost if isinstance(cost, Mapping) else dict.fromkeys(parts, TokenCost() if cost is None else cost)
    token_N = length_NP.cumsum(axis=1)[:, -1]
    work_NP, fixed_P = np.zeros(length_NP.shape), np.zeros(len(parts))
    for phase, name in enumerate(parts):
        one = costs.get(name)
        if isinstance(one, TokenCost):
            work_NP[:, phase], fixed_P[phase] = one(length_NP[:, phase]), one.micro_batch
        elif one is not None:
            cost_N = np.asarray(one, dtype=np.float64)
            if cost_N.shape != token_N.shape:
                raise ValueError(
                    f"cost must be a TokenCost or hold one number for each sample, got the shape {cost_N.shape}"
                )
            require_valid(
                np.isfinite(cost_N) & (cost_N >= 0), cost_N, "costs must be finite and not negative", "sample"
            )
            work_NP[:, phase] = cost_N
    if isinstance(cap, Mapping):
        token_ND = length_NP[:, [place for place, name in enumerate(parts) if name in cap]]
        caps = np.array([cap[name] for name in parts if name in cap], dtype=np.float64)
    else:
        token_ND, caps = token_N[:, None], np.array([np.inf if cap is None else cap], dtype=np.float64)
    if not (caps > 0).all():
        raise ValueError(f"cap must be above 0, got {cap}")
    require_valid(
        np.all(token_ND <= caps, axis=1), token_N, "lengths must not exceed the cap of a micro-batch", "sample"
    )
    total_N = work_NP.cumsum(axis=1)[:, -1]
    require_valid(np.isfinite(total_N) & (total_N > 0), total_N, "costs must be finite and above 0", "sample")
    if (padded and (several or barrier)) or (barrier and not several):
        raise ValueError("padded= needs lengths of one part, and barrier= lengths of several parts")
    if barrier and (fleet.fixed.any() or fleet.floor.any()):
        raise ValueError("barrier= needs speeds, not curves with a fixed time, which belongs to no phase")
    if not barrier:
        work_NP, fixed_P = total_N[:, None], fixed_P.cumsum()[-1:]
    order = np.lexsort((*(-work_NP.T), -token_N, -total_N))
    if padded:
        order = np.lexsort((-total_N, -token_N))
        if (np.diff(total_N[order]) > 0).any():
            raise ValueError("with padded=, a longer sample must not cost less than a shorter one: check cost")
    return PackingProblem(work_NP[order], token_ND[order], caps, fixed_P, fleet), order


def _stack_lengths(parts: Mapping[str, ArrayLike]) -> Array:
    """Return the lengths of all parts, ``[N, P]``."""
    columns = {name: np.asarray(part, dtype=np.float64) for name, part in parts.items()}
    shapes = {name: column.shape for name, column in columns.items()}
    if not shapes or len(set(shapes.values())) > 1 or next(iter(columns.values())).ndim != 1:
        raise ValueError(f"lengths must hold one number for each sample, got the shapes {shapes}")
    length_NP = np.stack(list(columns.values()), axis=1)
    if not len(length_NP):
        raise ValueError("lengths must hold at least one sample, got none")
    fine_NP = np.isfinite(length_NP) & (length_NP >= 0)
    fine_N = np.all(fine_NP, axis=1) & np.any(length_NP > 0, axis=1)
    require_valid(fine_N, length_NP.sum(axis=1), "lengths must be finite and above 0", "sample")
    return length_NP


def _loads(problem: PackingProblem, bins: Bins, *, equal: bool, padded: bool) -> tuple[Array, Array]:
    """Return the work of each micro-batch in each phase, ``[B, P]``, and that of each rank, ``[W, P]``."""
    size_B = bins.sizes
    if padded:
        longest_B = np.zeros(len(bins.rank))
        np.maximum.at(longest_B, bins.bin_of_sample, problem.work[:, 0])
        work_BP = (longest_B * size_B)[:, None]
    else:
        work_BP = np.stack(
            [sum_by_owner(column, bins.bin_of_sample, len(bins.rank)) for column in problem.work.T], axis=1
        )
    work_BP = work_BP + problem.fixed * (equal | (size_B > 0))[:, None]
    return work_BP, np.stack([sum_by_owner(column, bins.rank, problem.ranks) for column in work_BP.T], axis=1)


def _packing(
    problem: PackingProblem,
    bins: Bins,
    sample_N: Sizes,
    rank_W: Sizes,
    micro_batches: int | str | None,
    *,
    padded: bool,
) -> Packing:
    """Return the packing; the problem's samples and ranks have these places in the caller's order."""
    equal, waits = micro_batches is not None, micro_batches == "lockstep"
    work_BP, work_WP = _loads(problem, bins, equal=equal, padded=padded)
    rank_B, token_BD = bins.rank, bins.tokens(problem)
    if padded:
        token_BD[:] = 0.0
        np.maximum.at(token_BD, bins.bin_of_sample, problem.tokens)
        token_BD *= bins.sizes[:, None]
    if work_WP.shape[1] == 1 and not (waits or problem.fleet.fixed.any() or problem.fleet.floor.any()):
        place_W = np.empty(problem.ranks, dtype=np.int64)  # a faster rank has no less work
        place_W[np.argsort(-work_WP[:, 0], kind="stable")] = np.arange(problem.ranks)
        rank_B, work_WP = place_W[rank_B], work_WP[np.argsort(place_W)]
    used_B = np.flatnonzero(equal | (bins.sizes > 0))
    order = used_B[np.lexsort((-work_BP[used_B].sum(axis=1), rank_B[used_B]))]
    counts_W = np.bincount(rank_B[order], minlength=problem.ranks)
    nth_B = np.zeros(len(rank_B), dtype=np.int64)
    nth_B[order] = np.arange(len(order)) - np.repeat(counts_W.cumsum() - counts_W, counts_W)
    seconds_WP = problem.seconds(work_WP)
    rounds = np.zeros((problem.ranks, int(counts_W.max()), work_BP.shape[1]))
    rounds[rank_B[order], nth_B[order]] = work_BP[order] * problem.fleet.pace[rank_B[order], None]
    longest = float(seconds_WP.max(axis=0).sum())  # of curves with a floor also more than all rounds together
    lockstep = max(float(rounds.max(axis=0).sum() + problem.fleet.fixed.max()), longest)
    fill_W = sum_by_owner((token_BD / problem.caps).max(axis=1), rank_B, problem.ranks) / np.maximum(counts_W, 1)
    bin_N, order_W = bins.bin_of_sample[np.argsort(sample_N)], np.argsort(rank_W)
    return Packing(
        rank=rank_W[rank_B[bin_N]],
        micro_batch=nth_B[bin_N],
        counts=counts_W[order_W],
        fill=fill_W[order_W],
        work=work_WP.sum(axis=1)[order_W],
        seconds=seconds_WP.sum(axis=1)[order_W],
        makespan=lockstep if waits else longest,
        lockstep=lockstep,
        _problem=problem,
        _limit=micro_batches,
        _padded=padded,
    )


def min_micro_batches(tokens_N: Array, cap: float) -> int:
    """Return a number of micro-batches below which no packing under this cap comes (Martello and Toth 1990, bound L2).

    The largest, over a threshold, of: samples too long to share a micro-batch with one of the threshold or longer, and
    what the others take beyond the room beside long ones.
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


def min_total_micro_batches(problem: PackingProblem) -> int:
    """Return a number of micro-batches of all ranks below which no packing comes."""
    return max(
        min_micro_batches(tokens_N, cap) if cap < np.inf else 1
        for tokens_N, cap in zip(problem.tokens.T, problem.caps.tolist(), strict=True)
    )


def packing_lower_bound(problem: PackingProblem, per_rank: int | None, *, padded: bool = False) -> float:
    """Return a time, in seconds, before which no packing ends; ``per_rank`` fixes the micro-batches of each rank."""
    lower = int(len(problem) >= problem.ranks)
    fewest = max(min_total_micro_batches(problem), lower * problem.ranks)
    total = 0.0
    for phase, fixed in enumerate(problem.fixed.tolist()):
        cost_N = np.sort(problem.work[:, phase])[::-1]
        # Each rank that runs has at least one micro-batch, or its count.
        each = fixed * (per_rank or 1)
        fleet = replace(problem.fleet, fixed=problem.fleet.fixed + each * problem.fleet.pace)
        samples = Samples(cost_N, cost_N, np.inf, lower if len(problem.fixed) == 1 else 0)
        bound = packed_lower_bound(samples, fleet)
        work = float(cost_N.cumsum()[-1])
        if per_rank is None:
            bound = max(bound, divisible_makespan(problem.fleet, work + fixed * fewest))
        elif lower and len(problem.fixed) == 1:
            bound = max(bound, _cap_bound(problem, work, per_rank))
        if padded:
            samples = replace(samples, tokens=problem.tokens[:, 0], cap=float(problem.caps[0]))
            padded_cost = min_padded_cost(samples, fixed, per_rank and per_rank * problem.ranks)
            bound = max(bound, divisible_makespan(fleet if per_rank else problem.fleet, padded_cost))
        total += bound
    return total


def equal_bounds(problem: PackingProblem) -> list[tuple[float, int]]:
    """Return equal numbers of micro-batches that may be the best, from the fewest on, each after its bound."""
    bounds: list[tuple[float, int]] = []
    fewest = -(-min_total_micro_batches(problem) // problem.ranks)
    # the bound rises after a few
    for count in range(fewest, fewest + 64):
        bounds.append((packing_lower_bound(problem, count), count))
        if len(bounds) > 1 and bounds[-1][0] >= bounds[-2][0] > min(bounds)[0]:
            break
    return bounds


def _cap_bound(problem: PackingProblem, work: float, per_rank: int) -> float:
    """Return a bound from what the fastest ranks can do at most within their caps: the densest samples they can hold.

    What is left of the work must be done by the others.
    """
    fleet, bound = problem.fleet, 0.0
    start_W = fleet.fixed / fleet.pace + per_rank * float(problem.fixed[0])
    speed_W = 1 / fleet.pace
    for tokens_N, cap in zip(problem.tokens.T, problem.caps.tolist(), strict=True):
        if cap == np.inf:
            continue
        with np.errstate(divide="ignore"):
            dense = np.argsort(-(problem.work[:, 0] / tokens_N), kind="stable")
        used = np.concatenate([[0.0], tokens_N[dense].cumsum()])
        done = np.concatenate([[0.0], problem.work[dense, 0].cumsum()])
        work_W = np.interp(np.arange(1, problem.ranks) * (per_rank * cap), used, done)
        rest = (work - work_W + start_W[::-1].cumsum()[::-1][1:]) / speed_W[::-1].cumsum()[::-1][1:]
        bound = max(bound, float(rest.max(initial=0.0)))
    return bound


Cut = list[tuple[int, int]]
"""Rank and size of each micro-batch, the longest samples first."""


def search_padded(problem: PackingProblem, per_rank: int | None, lower_bound_seconds: float) -> Bins | None:
    """Return padded micro-batches that end early, ``per_rank`` for each rank or as many as it needs; None if none fit.

    The sorted samples are cut contiguously: the longest of a micro-batch may as well hold the next longest. For a given
    end, each cut goes to the rank with most work left until then, which takes as many samples as the cap and that work
    allow, and no more than where padding says to begin another. Bisection finds the earliest end.
    """
    samples = Samples(problem.work[:, 0], problem.tokens[:, 0], float(problem.caps[0]), 0)
    # padding is reduced among 90%; the others make ranks end together
    fixed, groups = float(problem.fixed[0]), None if per_rank is None else int(0.9 * per_rank * problem.ranks)
    best, end = None, np.inf
    for starts in (padded_group_starts(samples, fixed, groups), np.zeros(1, dtype=np.int64)):
        # no micro-batch holds samples before and after a start
        next_N = np.append(starts, len(problem))[np.searchsorted(starts, np.arange(len(problem)), side="right")]
        find = partial(_cut_ending_by, problem, per_rank, next_N.tolist())
        found = earliest_end(find, lower_bound_seconds, growth=1.5)
        if found is not None and found[0] < end:
            end, best = found
    return None if best is None else _as_bins(problem, best, per_rank)


def padded_count(problem: PackingProblem) -> int:
    """Return how many micro-batches the fastest rank needs if padding and their fixed cost together are to be least."""
    samples = Samples(problem.work[:, 0], problem.tokens[:, 0], float(problem.caps[0]), 0)
    groups, speed_W = len(padded_group_starts(samples, float(problem.fixed[0]))), 1 / problem.fleet.pace
    return int(np.ceil(groups * speed_W[0] / speed_W.cumsum()[-1]))


def _cut_ending_by(problem: PackingProblem, per_rank: int | None, next_N: list[int], end_seconds: float) -> Cut | None:
    """Return the rank and size of each micro-batch, the longest samples first; None if ranks do not end in time."""
    cost, tokens, cap = problem.work[:, 0].tolist(), problem.tokens[:, 0].tolist(), float(problem.caps[0])
    fixed, fleet = float(problem.fixed[0]), problem.fleet
    left_W = np.where(end_seconds >= fleet.floor, (end_seconds - fleet.fixed) / fleet.pace, 0.0) - fixed * (
        per_rank or 0
    )
    heap = [(-left, rank) for rank, left in enumerate(left_W.tolist())]
    heapq.heapify(heap)
    each = 0.0 if per_rank else fixed
    slots = [per_rank or len(cost)] * problem.ranks
    cut, first = [], 0
    while first < len(cost):
        if not heap:
            return None
        key, rank = heapq.heappop(heap)
        size = int(min((-key - each) / cost[first] + 1e-9, cap / tokens[first], next_N[first] - first))
        if size < 1:
            return None
        cut.append((rank, size))
        slots[rank] -= 1
        if slots[rank]:
            heapq.heappush(heap, (key + size * cost[first] + each, rank))
        first += size
    return cut


def _as_bins(problem: PackingProblem, cut: Cut, per_rank: int | None) -> Bins:
    """Return these micro-batches; the largest of a rank are halved until it has ``per_rank``."""
    groups: list[list[range]] = [[] for _ in range(problem.ranks)]
    first = 0
    for rank, size in cut:
        groups[rank].append(range(first, first + size))
        first += size
    for rank_groups in groups:
        while len(rank_groups) < (per_rank or 1):
            largest = max(rank_groups, key=len, default=range(0))
            half = -(-len(largest) // 2)
            if rank_groups:
                rank_groups[rank_groups.index(largest)] = largest[:half]
            rank_groups.append(largest[half:])
    of_N = np.empty(len(problem), dtype=np.int64)
    for place, group in enumerate(group for rank_groups in groups for group in rank_groups):
        of_N[group] = place
    bins = Bins(np.repeat(np.arange(problem.ranks), [len(rank_groups) for rank_groups in groups]), of_N)
    fill_empty(problem, bins, per_rank)
    return bins
