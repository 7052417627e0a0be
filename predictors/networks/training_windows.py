"""Training windows: in memory while they are few, and in files beyond, each of which is a random sample of all.

Spilling into many files at random and reading them one at a time shuffles across traces in bounded memory. Axis: N
windows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._atomic import TemporaryFolder
from paceline.predictors.networks.neural import Examples, Sequences

Part = Examples | Sequences
Records = NDArray[np.void]
"""Windows as records: a field for each column of the examples in single precision, and ``source``, their trace."""

BLOCK = 1 << 16
"""Windows collected before they are written: many small writes cost more than the windows."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Training windows of many traces, in shards that fit into memory.

    Parameters
    ----------
    shards
        Each a function that returns its records.
    names
        The traces that they come from, by ``source``.
    counts
        Windows of each shard.
    validating
        Windows in all that validate.
    kind
        The records' type.
    """

    shards: Sequence[Callable[[], Records]]
    names: Sequence[str]
    counts: Sequence[int]
    validating: int
    kind: np.dtype[np.void]

    def width(self, column: str) -> int:
        """Return the length of the last axis of a column."""
        return int(self.kind[column].shape[-1])

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def too_few(self) -> bool:
        """True if no window validates, or all do."""
        return self.validating in (0, len(self))


def windows_of(parts: Iterable[tuple[str, Iterable[Part]]], expected: int, *, memory: int, seed: int) -> Windows:
    """Collect windows, trace by trace.

    Parameters
    ----------
    parts
        For each trace its name, and its windows part by part.
    expected
        At most so many windows will come, which decides into how many shards they are spread.
    memory
        Bytes of windows to hold at once; where there are more, they are written to temporary files.
    seed
        Decides which shard a window goes to.

    Examples
    --------
    >>> examples = Examples(np.zeros((4, 2)), np.arange(4.0), np.array([False, False, True, True]))
    >>> windows = windows_of([("a", [examples])], 4, memory=10**6, seed=0)
    >>> len(windows), len(windows.shards), windows.validating
    (4, 1, 2)
    """
    names: list[str] = []
    blocks = _blocks(parts, names, expected, memory)
    first = next(blocks, None)
    if first is None:
        return Windows([], names, [], 0, np.dtype([]))
    kind, blocks = first.dtype, _chained(first, blocks)
    # systems commonly allow 1024 open files
    shards = min(-(-expected * kind.itemsize // memory), 500)
    if shards > 1:
        return _spilled(blocks, kind, names, shards, np.random.default_rng(seed))
    records = _joined(list(blocks))
    return Windows([partial(_itself, records)], names, [len(records)], int(records["validates"].sum()), kind)


def _spilled(
    blocks: Iterable[Records], kind: np.dtype[np.void], names: list[str], shards: int, rng: np.random.Generator
) -> Windows:
    # The folder lives as long as the windows do, and goes with them even after an error.
    place = TemporaryFolder()
    paths = [Path(place.name, f"{shard:03}.records") for shard in range(shards)]
    counts, validating = np.zeros(shards, dtype=np.int64), 0
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for block in blocks:
            validating += int(block["validates"].sum())
            shard_N = rng.integers(shards, size=len(block))
            block_counts = np.bincount(shard_N, minlength=shards)
            # In the order of arrival, so that they lie alike however they came in blocks.
            sorted_N = np.argsort(shard_N, kind="stable")
            for file, rows in zip(files, np.split(block[sorted_N], np.cumsum(block_counts)[:-1]), strict=True):
                file.write(rows.tobytes())
            counts += block_counts
    held = np.flatnonzero(counts)
    readers = [partial(read_shard, paths[shard], kind) for shard in held]
    weakref.finalize(readers[0], place.cleanup)
    return Windows(readers, names, counts[held].tolist(), validating, kind)


def _blocks(
    parts: Iterable[tuple[str, Iterable[Part]]], names: list[str], expected: int, memory: int
) -> Iterator[Records]:
    """Yield records in blocks of some size, all in one if they fit into memory, and note the name of each trace."""
    block, count = np.empty(0, dtype=bool), 0
    for name, trace_parts in parts:
        names.append(name)
        for part in trace_parts:
            if not (more := len(part.validates)):
                continue
            if count + more > len(block):
                if count:
                    yield block[:count]
                kind = _kind(part)
                size = expected if expected * kind.itemsize <= memory else BLOCK
                block, count = np.empty(max(size, more), dtype=kind), 0
            _fill(block[count : count + more], part, len(names) - 1)
            count += more
    if count:
        yield block[:count]


def _kind(part: Part) -> np.dtype[np.void]:
    columns: list[tuple[Any, ...]] = [
        (field.name, np.bool_ if field.name == "validates" else np.float32, getattr(part, field.name).shape[1:])
        for field in fields(part)
    ]
    # Aligned: numpy copies numbers that are not several times as slowly.
    return np.dtype([*columns, ("source", np.int32)], align=True)


def _fill(records: Records, part: Part, source: int) -> None:
    for name in (records.dtype.names or ())[:-1]:
        records[name] = getattr(part, name)
    records["source"] = source  # the last column


def _joined(blocks: list[Records]) -> Records:
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def read_shard(path: Path, kind: np.dtype[np.void]) -> Records:
    """Read the windows of one shard into memory."""
    return np.fromfile(path, dtype=kind)


def _itself(records: Records) -> Records:
    return records


def _chained(first: Records, others: Iterable[Records]) -> Iterator[Records]:
    yield first
    yield from others
