"""Packed batches: a rank's work is the sum of its samples'. Longest first, then exchanges. Axes: N samples, W ranks."""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.solver.fleet import Fleet, Samples, sums


def packed(samples: Samples, fleet: Fleet, enough: float) -> Sizes:
    """Return the rank of each sample, ``[N]``; a makespan of ``enough`` seconds ends the search.

    Raises
    ------
    ValueError
        If no assignment under the cap is found.
    """
    owner_N = _longest_first(samples, fleet)
    if samples.cap < np.inf and (sums(samples.tokens, owner_N, len(fleet)) > samples.cap).any():
        owner_N = _under_cap(samples, fleet)
    owner_N = _one_sample_each(samples, fleet, owner_N)
    return _exchanged(samples, fleet, owner_N, enough)


def _longest_first(samples: Samples, fleet: Fleet) -> Sizes:
    """Assign the longest sample to the rank that would end it first, and so on; similar samples together."""
    cost_N, ends_W = samples.costs, fleet.fixed.copy()
    owner_N = np.empty(len(samples), dtype=np.int64)
    rising, first = -cost_N, 0
    while first < len(samples):
        # samples are assigned together while the shortest costs at least 70% of the longest
        alike = int(np.searchsorted(rising, 0.7 * rising[first], side="right"))
        # At most two samples for each rank at once: more left ranks late.
        end = max(first + 1, min(alike, first + 2 * len(fleet)))
        mean = cost_N[first:end].cumsum()[-1] / (end - first)
        owners = _slots(ends_W, mean * fleet.pace, end - first)
        owner_N[first:end] = owners
        ends_W += sums(cost_N[first:end], owners, len(fleet)) * fleet.pace
        first = end
    return owner_N


def _slots(ends_W: Array, each_W: Array, count: int) -> Sizes:
    """Return the rank of each of ``count`` like samples, the first to end first; ``each_W`` is a sample's time."""
    if count == 1:
        return np.array([np.argmin(ends_W + each_W)])
    # One more a rank than a fluid would fill: rounding down then leaves enough slots.
    until = _fluid(ends_W, each_W, count + len(ends_W))
    slots_W = np.clip(np.floor((until - ends_W) / each_W), 0, count).astype(np.int64)
    if slots_W.sum() < count:  # samples so short that they disappear beside the longest: any rank may take them all
        slots_W += count
    rank_S = np.repeat(np.arange(len(ends_W)), slots_W)
    nth_S = np.arange(1, len(rank_S) + 1) - np.repeat(slots_W.cumsum() - slots_W, slots_W)
    ends_S = ends_W[rank_S] + nth_S * each_W[rank_S]
    owners: Sizes = rank_S[np.argsort(ends_S, kind="stable")[:count]]
    return owners


def _fluid(ends_W: Array, each_W: Array, count: int) -> float:
    """Return when ``count`` equal samples would be done if they could be divided."""
    order = np.argsort(ends_W, kind="stable")
    end_W, rate_W = ends_W[order], 1 / each_W[order]
    weighted_W, rate_W = (rate_W * end_W).cumsum(), rate_W.cumsum()
    begun = int(np.searchsorted(end_W * rate_W - weighted_W, count, side="right")) - 1
    return float((count + weighted_W[begun]) / rate_W[begun])


def _under_cap(samples: Samples, fleet: Fleet) -> Sizes:
    """Assign samples one by one where there is room: by cost, else by tokens, else as they fill ranks best."""
    by_cost, by_tokens = np.arange(len(samples)), np.argsort(-samples.tokens, kind="stable")
    for order, tight in ((by_cost, False), (by_tokens, False), (by_tokens, True)):
        owner_N = _one_by_one(samples, fleet, order, tight=tight)
        if owner_N is not None:
            return owner_N
    used = float(samples.tokens.cumsum()[-1]) / (samples.cap * len(fleet))
    raise ValueError(
        f"no assignment was found in which no rank exceeds the cap of {samples.cap:g} tokens: the samples take "
        f"{used:.0%} of all caps together. Draw a smaller global batch, or raise the cap"
    )


def _one_by_one(samples: Samples, fleet: Fleet, order: Sizes, *, tight: bool) -> Sizes | None:
    """Assign each sample to the rank with room that ends it first, or, if tight, to the one with least room."""
    ends_W, room_W = fleet.fixed.copy(), np.full(len(fleet), samples.cap)
    owner_N = np.empty(len(samples), dtype=np.int64)
    for sample, cost, tokens in zip(
        order.tolist(), samples.costs[order].tolist(), samples.tokens[order].tolist(), strict=True
    ):
        key_W = room_W if tight else ends_W + cost * fleet.pace
        rank = int(np.where(room_W >= tokens, key_W, np.inf).argmin())
        if room_W[rank] < tokens:
            return None
        owner_N[sample] = rank
        ends_W[rank] += cost * fleet.pace[rank]
        room_W[rank] -= tokens
    return owner_N


def _one_sample_each(samples: Samples, fleet: Fleet, owner_N: Sizes) -> Sizes:
    """Move the shortest samples that others can spare to ranks with too few, the slowest rank first."""
    counts_W = np.bincount(owner_N, minlength=len(fleet))
    short_W = np.flatnonzero(counts_W < samples.lower)
    for rank in short_W[np.argsort(-fleet.pace[short_W], kind="stable")].tolist():
        while counts_W[rank] < samples.lower:
            spare = int(np.flatnonzero(counts_W[owner_N] > samples.lower)[-1])
            counts_W[owner_N[spare]] -= 1
            counts_W[rank] += 1
            owner_N[spare] = rank
    return owner_N


def _exchanged(samples: Samples, fleet: Fleet, owner_N: Sizes, enough: float) -> Sizes:
    """Move a sample from the latest rank to an early one, or swap two, while that ends the iteration sooner."""
    work_W = samples.works(owner_N, len(fleet))
    # Exchanges after which the search ends. It rarely needs ten.
    for _ in range(64):
        ends_W = fleet.fixed + work_W * fleet.pace
        latest = int(np.where(work_W > 0, ends_W, 0.0).argmax())  # who has nothing does not run
        if ends_W[latest] <= enough:
            break
        exchange = _best_exchange(samples, fleet, owner_N, ends_W, latest)
        if exchange is None:
            break
        sample, other, partner = exchange
        owner_N[sample] = partner
        if other >= 0:
            owner_N[other] = latest
        for rank in (latest, partner):  # summed again in the order of samples, so that rounding does not accumulate
            work_W[rank] = samples.costs[owner_N == rank].cumsum()[-1] if (owner_N == rank).any() else 0.0
    return owner_N


def _best_exchange(
    samples: Samples, fleet: Fleet, owner_N: Sizes, ends_W: Array, latest: int
) -> tuple[int, int, int] | None:
    """Return which sample the latest rank gives, for which (-1: for none), and to whom; None if nothing helps."""
    mine = np.flatnonzero(owner_N == latest)
    # Ranks with which the latest tries to exchange, the earliest first.
    for partner in np.argsort(ends_W, kind="stable")[:4].tolist():
        if ends_W[partner] >= ends_W[latest]:
            break
        theirs = np.append(np.flatnonzero(owner_N == partner), -1)  # falling in cost, and last: nothing, for nothing
        cost_T = np.append(samples.costs[theirs[:-1]], 0.0)
        # What should move is known; for each own sample the theirs that comes nearest is found by bisection.
        ideal = (ends_W[latest] - ends_W[partner]) / (fleet.pace[latest] + fleet.pace[partner])
        place_O = np.searchsorted(-cost_T, ideal - samples.costs[mine])
        pairs = [(mine, np.clip(place_O + shift, 0, len(cost_T) - 1)) for shift in (-1, 0)]
        gives, takes = np.concatenate([mine, mine]), np.concatenate([pair[1] for pair in pairs])
        moved = samples.costs[gives] - cost_T[takes]
        last = np.maximum(ends_W[latest] - moved * fleet.pace[latest], ends_W[partner] + moved * fleet.pace[partner])
        last[~_allowed(samples, owner_N, (latest, partner), gives, theirs[takes])] = np.inf
        best = int(last.argmin())
        if last[best] < ends_W[latest]:
            return int(gives[best]), int(theirs[takes[best]]), partner
    return None


def _allowed(samples: Samples, owner_N: Sizes, pair: tuple[int, int], gives: Sizes, takes: Sizes) -> Mask:
    """Return which exchanges leave both ranks under the cap, and the giving rank with enough samples."""
    fine: Mask = (takes >= 0) | (np.count_nonzero(owner_N == pair[0]) > samples.lower)
    if samples.cap < np.inf:
        held = [samples.tokens[owner_N == rank].cumsum()[-1:].sum() for rank in pair]
        moved = samples.tokens[gives] - np.where(takes >= 0, samples.tokens[takes], 0.0)
        fine = fine & (held[0] - moved <= samples.cap) & (held[1] + moved <= samples.cap)
    return fine
