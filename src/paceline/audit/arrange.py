"""Samples rearranged: the same samples in every step, on other ranks, in other micro-batches, or in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, pairwise

import numpy as np

from paceline.audit.run import RANDINT_STREAM, Arrangement, RankRecord, SampleRef, StepRecord


def batches_by_step(record: RankRecord, stream_name: str) -> list[range]:
    """Return the batches of a stream that belong to each step, for every step that has some.

    A loop may fetch a batch or two ahead. As it does so in every step, the first has as many more than the others; but
    those at an epoch's end may have fewer. A first step of fewer backward passes than the second hides that.
    Where a loop has fetched all before its first step, nobody knows: then every batch stands for itself.
    """
    counts = [step.batches_delivered.get(stream_name, 0) for step in record.steps]
    grown = [after for before, after in pairwise([0, *counts]) if after > before]
    if len(grown) == 1 and len(counts) > 1:
        return [range(number, number + 1) for number in range(grown[0])]
    each = max((after - before for before, after in pairwise(grown)), default=grown[0] if grown else 0)
    ahead = max(grown[0] - each, 0) if grown else 0
    if len(grown) == len(counts) > 1:
        first, second = (step.facts.get("backward passes", 0) for step in record.steps[:2])
        if 0 < first < second:
            ahead = max(grown[0] - each * first // second, 0)
    return [range(first, end) for first, end in pairwise([0, *(count - ahead for count in grown)])]


def steps_by_batch(record: RankRecord) -> list[list[StepRecord]]:
    """Return the optimizers' steps that belong to the same batches, as where two models take turns."""
    return [list(steps) for _, steps in groupby(record.steps, key=lambda step: step.batches_delivered)]


Placement = Callable[[str, range, list[list[int]]], list[list[list[SampleRef]]]]
"""Function that places a step's samples: from a stream, its batches, and their sizes on every rank."""


def arrange_samples(records: Sequence[RankRecord], placement: Placement) -> Arrangement:
    """Return every step's samples as ``placement`` assigns them."""
    found: Arrangement = {}
    for stream in shared_streams(records):
        found[stream] = []
        for group in batches_by_step(records[0], stream):
            if all(group.stop <= len(record.streams[stream]) for record in records):
                found[stream] += placement(stream, group, batch_sizes(records, stream, group))
    return found


def shared_streams(records: Sequence[RankRecord]) -> list[str]:
    """Return the streams of samples that every rank has.

    Without a loader, numbers that the script draws in every step count as numbers of samples.
    """
    known = [stream for stream in records[0].streams if all(stream in record.streams for record in records)]
    loaded = [stream for stream in known if not stream.startswith(RANDINT_STREAM)]
    counts = {stream: [step.batches_delivered.get(stream, 0) for step in records[0].steps] for stream in known}
    return loaded or [stream for stream in known if counts[stream] and counts[stream][-1] >= len(counts[stream])]


def batch_sizes(records: Sequence[RankRecord], stream_name: str, batch_range: range) -> list[list[int]]:
    return [[len(record.streams[stream_name][number]) for record in records] for number in batch_range]


def sample_refs(batch_range: range, sizes: list[list[int]]) -> list[SampleRef]:
    return [
        (rank, number, place)
        for number, row in zip(batch_range, sizes, strict=True)
        for rank, size in enumerate(row)
        for place in range(size)
    ]


def assign_in_order(samples: Sequence[SampleRef], sizes: list[list[int]]) -> list[list[list[SampleRef]]]:
    rest = iter(samples)
    return [[[next(rest) for _ in range(size)] for size in row] for row in sizes]


def original_placement(stream_name: str, batch_range: range, sizes: list[list[int]]) -> list[list[list[SampleRef]]]:
    """Assign every rank its own samples."""
    return assign_in_order(sample_refs(batch_range, sizes), sizes)


def shuffled_placement(records: Sequence[RankRecord], seed: int) -> Placement:
    """Return a placement that mixes a step's samples over all ranks and micro-batches, in batches of the same sizes.

    In every other step it gives the smallest samples to the first batches and the largest to the last, so that a
    batch's number of tokens differs as much as it can; in the others chance decides. An epoch's last batch may be
    smaller than the others of its step, and so count more: samples are exchanged among batches of one size only.
    """

    def place(stream_name: str, batch_range: range, sizes: list[list[int]]) -> list[list[list[SampleRef]]]:
        found: dict[int, list[list[SampleRef]]] = {}
        for total in {sum(row) for row in sizes}:
            alike = [(number, row) for number, row in zip(batch_range, sizes, strict=True) if sum(row) == total]
            samples = [ref for number, row in alike for ref in sample_refs(range(number, number + 1), [row])]
            rows = assign_in_order(order_stream(samples, stream_name, batch_range), [row for _, row in alike])
            found |= {number: row for (number, _), row in zip(alike, rows, strict=True)}
        return [found[number] for number in batch_range]

    def order_stream(samples: list[SampleRef], stream_name: str, batch_range: range) -> list[SampleRef]:
        order = np.random.default_rng([seed, samples[0][1]]).permutation(len(samples)).tolist()
        if batch_range.start // len(batch_range) % 2 == 0:
            known = [records[rank].streams[stream_name][number][place].part_sizes for rank, number, place in samples]
            order.sort(key=lambda number: sum(known[number].values()))
        return [samples[number] for number in order]

    return place


def one_process_placement(num_micro_batches: int | None) -> Placement:
    """Return a placement that gives one process all: batches of all ranks joined, or so many micro-batches a step."""

    def place(stream_name: str, batch_range: range, sizes: list[list[int]]) -> list[list[list[SampleRef]]]:
        samples = sample_refs(batch_range, sizes)
        if num_micro_batches is None:
            return [[joined] for joined in ([one for one in samples if one[1] == number] for number in batch_range)]
        return [[[samples[place] for place in part]] for part in np.array_split(range(len(samples)), num_micro_batches)]

    return place


def has_moved_samples(arrangement: Arrangement) -> bool:
    """Return whether any sample is on another rank or in another batch than it was."""
    return any(
        (number, rank) != (ref[1], ref[0])
        for batches in arrangement.values()
        for number, row in enumerate(batches)
        for rank, refs in enumerate(row)
        for ref in refs
    )
