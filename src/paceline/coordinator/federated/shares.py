"""Use of clients' data by the rounds so far, which shows whose data are starved. Axis: W clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array, Mask, Sizes

ENOUGH_ROUNDS = 5
"""A client that was chosen less often has had no chance yet."""

STARVED = 0.5
"""Used in less than this share of the rounds for which it was chosen, a client's data are starved."""


@dataclass(frozen=True, eq=False)
class Shares:
    """Use of each client's data over the rounds.

    Parameters
    ----------
    clients
        Ids of the clients, in the order of every array.
    data
        Its share of the data of all clients listed, ``[W]``; an unknown amount counts as the mean of the known.
    weight
        Its share of the aggregates so far, weighted by data as they should be, ``[W]``; 0 before any round.
    samples
        Samples that it processed, ``[W]``.
    chosen, used
        Rounds for which it was chosen, and rounds whose aggregate its reply entered, ``[W]``.

    Examples
    --------
    >>> shares = Shares(("a", "b"), np.array([0.5, 0.5]), np.array([0.9, 0.1]), np.array([900.0, 100.0]),
    ...                 np.array([10, 10]), np.array([9, 1]))
    >>> [client for client, starved in zip(shares.clients, shares.starved) if starved]
    ['b']
    """

    clients: tuple[str, ...]
    data: Array
    weight: Array
    samples: Array
    chosen: Sizes
    used: Sizes

    @property
    def starved(self) -> Mask:
        """Mask of the clients whose data were used in less than half of the rounds they were chosen for, ``[W]``."""
        starved: Mask = (self.chosen >= ENOUGH_ROUNDS) & (self.used < STARVED * self.chosen)
        return starved

    @property
    def use(self) -> Array:
        """Share of the rounds for which it was chosen that used it, ``[W]``; NaN for one that never was chosen."""
        return np.where(self.chosen > 0, self.used / np.maximum(self.chosen, 1), np.nan)
