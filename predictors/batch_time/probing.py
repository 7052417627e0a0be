"""Sizes to try: random pairs of workers exchange a few samples, to tell fixed time from time per sample.

Axis: W workers.
"""

from __future__ import annotations

import numpy as np

from paceline._arrays import Array, Mask, Sizes


def probed(
    sizes: Sizes, wanted: Mask, low: Array, high: Array, *, amount: float, batch_multiple: int, iteration: int
) -> Sizes:
    """Return sizes in which random pairs of workers exchange a few samples; sum and bounds are kept.

    >>> sizes, no_limit = np.array([100, 100, 100]), np.full(3, np.inf)
    >>> probed(sizes, np.array([True, True, False]), np.ones(3), no_limit, amount=0.05, batch_multiple=1, iteration=9)
    array([ 95, 105, 100])
    """
    # Seeded by the iteration, not by global state: every rank must draw the same pairs.
    chance = np.random.default_rng((0, iteration))
    order = chance.permutation(np.flatnonzero(wanted))
    if len(order) % 2:
        others = np.delete(np.arange(len(sizes)), order[-1])
        order = np.append(order, chance.choice(others)) if len(others) else order[:-1]
    result = sizes.copy()
    for give, take in chance.permuted(order.reshape(-1, 2), axis=1):  # one by one: a worker may be in two pairs
        wish = max(amount * min(sizes[give], sizes[take]), batch_multiple)
        room = min(wish, result[give] - low[give], high[take] - result[take])
        moved = int(max(room, 0) // batch_multiple * batch_multiple)
        result[give] -= moved
        result[take] += moved
    return result
