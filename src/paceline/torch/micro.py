"""A rank's part of a global batch in micro-batches, and how each of them counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from paceline.torch.assigner import Assigner
from paceline.torch.chunks import Collate
from paceline.torch.global_batch import RankBatch
from paceline.torch.order import Samples
from paceline.torch.rows import cut

Borders = Callable[[int], list[tuple[int, int]]]
"""Returns where each micro-batch begins and ends among so many samples."""


class Collated(list[Any]):
    """Micro-batches that a user's collate function has made."""


class Pieces:
    """Collates a list of samples into a list of micro-batches.

    >>> Pieces(sum, lambda rows: borders(rows, size=2))([1, 2, 3, 4, 5])
    [3, 7, 5]
    """

    def __init__(self, collate: Collate, borders: Borders) -> None:
        self.collate = collate
        self.borders = borders

    def __call__(self, samples: list[Any]) -> Collated:
        """Return the micro-batches of these samples."""
        return Collated(self.collate(samples[first:end]) for first, end in self.borders(len(samples)))


def micro_batches(
    assigner: Assigner, rank_batch: RankBatch, samples: Samples, batch: Any, places: list[tuple[int, int]]
) -> list[tuple[RankBatch, Any]]:
    """Return the micro-batches of a rank that has these samples, each with its facts.

    Each counts its own rows of the whole global batch: a step is the mean over all samples, whatever the number of
    micro-batches.
    """
    parts = []
    for number, (first, end) in enumerate(places):
        features = assigner.features(samples[first:end])
        known = replace(rank_batch, features=features, rows=end - first, last=number == len(places) - 1)
        parts.append((known, batch[number] if isinstance(batch, Collated) else cut(batch, slice(first, end))))
    return parts


def borders(rows: int, size: int) -> list[tuple[int, int]]:
    """Return where micro-batches of this size begin and end; the last one may be smaller."""
    return list(pairwise([*range(0, rows, size), rows]))
