"""Where a batch comes from: loaded when it is asked for, or ahead of time by other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any
from weakref import WeakMethod

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from paceline.coordinator.torch.dealer import Dealer

Samples = NDArray[np.int64]
Collate = Callable[[list[Any]], Any]


class OnDemand:
    """Loads a batch in this process, when it is asked for."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self.chunks = Chunks(dataset, collate or default_collate)

    def take(self, samples: Samples) -> Any:
        """Load these samples."""
        return self.chunks[samples]

    def forget(self) -> None:
        """There is nothing to forget."""


class AheadOfTime:
    """Lets other processes load the samples that this rank holds, and cuts batches from what has arrived.

    Samples are asked for in chunks that end where batches end at the size now in force: as long as it stays, a chunk
    is a batch and nothing is copied. When it changes, the next batches are cut out of the chunks already loaded, so
    that no batch waits for a new size.
    """

    def __init__(
        self, dataset: Any, dealer: Dealer, rank: int, collate: Collate | None, options: Mapping[str, Any]
    ) -> None:
        self.dealer = dealer
        self.rank = rank
        self.collate = collate
        self._size = 1
        self._epoch = -1
        self._asked: deque[tuple[int, Samples]] = deque()
        self._asked_of_hand = 0
        self._stock: dict[int, tuple[Any, int]] = {}
        self._loader = DataLoader(
            Chunks(dataset, default_collate if collate is None else list),
            batch_size=None,
            sampler=Requests(WeakMethod(self._next_request)),
            collate_fn=_unchanged,
            **options,
        )
        self._arrivals: Iterator[Any] | None = None

    def take(self, samples: Samples) -> Any:
        """Return a batch of these samples, the first that this rank holds; wait for those not yet there."""
        if self.dealer.epoch != self._epoch:
            self._epoch, self._asked_of_hand, self._stock = self.dealer.epoch, 0, {}
        self._size = len(samples)
        self._asked_of_hand = min(self._asked_of_hand, len(self.dealer.hand(self.rank)))  # another may have its end
        if self._arrivals is None:
            self._arrivals = iter(self._loader)
        for sample in samples.tolist():
            while sample not in self._stock:
                self._receive(next(self._arrivals))
        places = [self._stock.pop(sample) for sample in samples.tolist()]
        self._asked_of_hand -= len(samples)
        if self.collate is not None:
            return self.collate([chunk[row] for chunk, row in places])
        return joined([cut(chunk, rows) for chunk, rows in runs(places)])

    def forget(self) -> None:
        """Forget what was loaded ahead: the hand may have changed."""
        self._epoch = -1

    def _receive(self, chunk: Any) -> None:
        epoch, samples = self._asked.popleft()
        if epoch == self._epoch:
            self._stock.update((sample, (chunk, row)) for row, sample in enumerate(samples.tolist()))

    def _next_request(self) -> Samples:
        """Return the samples of the hand to ask for next, up to the end of a batch; there may be none."""
        start = self._asked_of_hand
        samples = self.dealer.hand(self.rank)[start : (start // self._size + 1) * self._size]
        self._asked_of_hand += len(samples)
        self._asked.append((self.dealer.epoch, samples))
        return samples


class Chunks(Dataset[Any]):
    """A dataset whose items are chunks of another's samples."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self.dataset = dataset
        self.collate = collate

    def __getitem__(self, samples: Samples) -> Any:
        """Load these samples and make a chunk of them; None of none."""
        if not len(samples):
            return None
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(samples.tolist()))
        return self.collate([self.dataset[sample] for sample in samples.tolist()])


class Requests:
    """What the loading processes are asked for, one after the other, as long as there is somebody who asks.

    The one who asks is known weakly: it owns the processes, which end at once only if it is not part of a cycle.
    """

    def __init__(self, next_request: WeakMethod[Callable[[], Samples]]) -> None:
        self.next_request = next_request

    def __iter__(self) -> Iterator[Samples]:
        """Ask for a chunk whenever one is taken away."""
        while (ask := self.next_request()) is not None:
            samples = ask()
            del ask
            yield samples


def runs(places: Sequence[tuple[Any, int]]) -> list[tuple[Any, slice]]:
    """Return the chunks that these rows lie in, with the slice of each.

    >>> first, second = ["a", "b", "c"], ["d", "e"]
    >>> runs([(first, 1), (first, 2), (second, 0)])
    [(['a', 'b', 'c'], slice(1, 3, None)), (['d', 'e'], slice(0, 1, None))]
    """
    numbered = [(chunk, row, row - index) for index, (chunk, row) in enumerate(places)]
    groups = [list(group) for _, group in groupby(numbered, key=lambda place: (id(place[0]), place[2]))]
    return [(group[0][0], slice(group[0][1], group[-1][1] + 1)) for group in groups]


def cut(batch: Any, rows: slice) -> Any:
    """Return these rows of a batch made by torch's ``default_collate``.

    >>> cut({"image": torch.arange(4), "name": ["a", "b", "c", "d"]}, slice(1, 3))
    {'image': tensor([1, 2]), 'name': ['b', 'c']}
    """
    if isinstance(batch, torch.Tensor) or _is_text(batch):
        return batch[rows]
    if isinstance(batch, Mapping):
        return {key: cut(value, rows) for key, value in batch.items()}
    return _like(batch, [cut(value, rows) for value in batch])


def joined(batches: Sequence[Any]) -> Any:
    """Join batches made by torch's ``default_collate``.

    >>> joined([[torch.tensor([1]), ["a"]], [torch.tensor([2, 3]), ["b", "c"]]])
    [tensor([1, 2, 3]), ['a', 'b', 'c']]
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, torch.Tensor):
        return torch.cat(list(batches))
    if _is_text(first):
        return [text for batch in batches for text in batch]
    if isinstance(first, Mapping):
        return {key: joined([batch[key] for batch in batches]) for key in first}
    return _like(first, [joined(parts) for parts in zip(*batches, strict=True)])


def _is_text(batch: Any) -> bool:
    """Texts are not stacked: a batch of them is a list."""
    return isinstance(batch, Sequence) and isinstance(batch[0], str | bytes)


def _like(original: Any, parts: list[Any]) -> Any:
    """Return the parts in a sequence of the original's kind; a named tuple wants them one by one."""
    kind = type(original)
    return kind(*parts) if hasattr(original, "_fields") else kind(parts)


def _unchanged(chunk: Any) -> Any:
    return chunk
