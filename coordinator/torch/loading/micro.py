"""A rank's part of a global batch in micro-batches, and how each of them weighs. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from paceline._arrays import Sizes
from paceline.coordinator.torch.loading.chunks import Collate
from paceline.coordinator.torch.loading.costs.cost_dealer import CostDealer
from paceline.coordinator.torch.loading.dealer import Dealer
from paceline.coordinator.torch.loading.options import whole
from paceline.coordinator.torch.loading.rows import cut
from paceline.coordinator.torch.weighing.dealt import Dealt

BALANCE = "balance"
"""The value of ``accumulate`` with which ranks have different numbers of micro-batches."""


def checked_micro_batch(micro_batch: int | None, accumulate: object) -> int | None:
    """Return the size of a micro-batch; None where parts come as a whole.

    >>> checked_micro_batch(None, "balance")
    Traceback (most recent call last):
    ValueError: accumulate="balance" and micro_batch go together: give both, or neither
    """
    if (accumulate == BALANCE) != (micro_batch is not None):
        raise ValueError('accumulate="balance" and micro_batch go together: give both, or neither')
    return None if micro_batch is None else whole("micro_batch", micro_batch, 1, "sample")


class Pieces:
    """Collates a list of samples into a list of micro-batches.

    >>> Pieces(sum, 2)([1, 2, 3, 4, 5])
    [3, 7, 5]
    """

    def __init__(self, collate: Collate, size: int) -> None:
        self.collate = collate
        self.size = size

    def __call__(self, samples: list[Any]) -> list[Any]:
        """Return the micro-batches of these samples."""
        return [self.collate(samples[first:end]) for first, end in pairwise(_borders(len(samples), self.size))]


def pieces(batch: Any, rows: int, size: int, *, collated: bool) -> Iterator[Any]:
    """Yield the micro-batches of a batch: cut from its rows, or made already by :class:`Pieces`."""
    if collated:
        yield from batch
    else:
        yield from (cut(batch, slice(first, end)) for first, end in pairwise(_borders(rows, size)))


def micro_dealt(dealer: Dealer, dealt: Dealt, rank: int, size: int) -> list[Dealt]:
    """Return what is known of each micro-batch of this rank, while the dealer still holds them.

    Weights add up to the part's: a step is the mean over all samples, or loss terms, whatever the number of
    micro-batches. The part stays the whole part's, as only sums over the ranks are compared, once a step.
    """
    own = dealer.hand(rank)[: dealt.sizes[rank]]
    borders = _borders(len(own), size)
    known = []
    for first, end in pairwise(borders):
        samples = own[first:end]
        share = _share(dealer, samples, own)
        features: tuple[float, ...] = ()
        if isinstance(dealer, CostDealer):
            features = tuple(dealer.costs.of_batch(samples).tolist())
        last = end == len(own)
        known.append(replace(dealt, weight=dealt.weight * share, features=features, rows=end - first, last=last))
    return known


def dealt_as_a_whole(dealer: Dealer, sizes_W: Sizes, rank: int, micro_batches: int, step_items: float) -> Dealt:
    """Return what is known of a rank's part of the next batch, while the dealer still holds it.

    Parameters
    ----------
    micro_batches
        Global batches of a step: loops divide by them, which the weights take back.
    step_items
        Loss terms of all of them.
    """
    if not isinstance(dealer, CostDealer):
        return Dealt.plain(sizes_W, rank)
    own = dealer.hand(rank)
    features = tuple(dealer.costs.of_batch(own).tolist())
    if dealer.costs.items is None:
        return replace(Dealt.plain(sizes_W, rank), features=features)
    items, all_items = dealer.costs.items_of(own), dealer.step_items(1)
    part = items / all_items if all_items else float(sizes_W[rank] / sizes_W.sum())
    each = micro_batches / step_items if step_items else 0.0
    return Dealt(sizes_W, items * each, part, all_items * each, features)


def _share(dealer: Dealer, samples: Sizes, own: Sizes) -> float:
    """Return the share of these samples in the rank's part: of its samples, or of its loss terms."""
    if isinstance(dealer, CostDealer) and (all_items := dealer.costs.items_of(own)):
        return dealer.costs.items_of(samples) / all_items
    return len(samples) / len(own)


def _borders(rows: int, size: int) -> list[int]:
    return [*np.arange(0, rows, size).tolist(), rows]
