"""Assign the samples of a stream, drawn alike on every rank. Axes: W ranks, N samples of a global batch, F features."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.torch.assigner import State, require_same
from paceline.torch.costs import Costs, SampleCosts
from paceline.torch.global_batch import GlobalBatch, RankBatch


class StreamAssigner:
    """Draws global batches from a stream, which every rank reads again for every epoch, and divides them.

    ``window`` samples are held back and mixed, as ``seed`` says. Attributes are those of an :class:`EpochAssigner`.
    """

    coefficients: Array | None = None
    min_samples = 1
    remaining = None  # a stream has no length
    is_over = True

    def __init__(
        self,
        stream: Iterable[Any],
        rule: GlobalBatch,
        rank: int,
        costs: Costs | None,
        window: int,
        seed: int,
        key: Callable[[Any], Any] | None = None,
    ) -> None:
        self.rule, self.rank = rule, rank
        self.epoch = self.batches = self.digest = 0
        self.stream, self.costs, self.window, self.seed, self.key = stream, costs, window, seed, key
        if costs is not None:
            self.coefficients = costs.prior()
        self._scale = np.zeros(0)
        self._position = 0
        self._samples: Iterator[Any] | None = None
        self._batch: list[Any] = []
        self._read_ahead: list[Any] = []

    def start(self, epoch: int) -> None:
        """Begin this epoch."""
        self.epoch, self.batches, self.digest = epoch, 0, 0
        self._set_offset(0)

    def end(self) -> None:
        """Leave out the rest of the epoch."""
        self.is_over = True

    def peek(self, shares_W: Sizes) -> tuple[RankBatch, list[Any]]:
        """Return facts about the next batch at these shares, and this rank's samples, without counting it as taken."""
        samples = self._batch or self._draw()
        if self.costs is None:
            rank_batch = RankBatch(self.rule.sizes(len(samples), shares_W))
            known, owner_N = np.zeros(0), np.repeat(np.arange(len(shares_W)), rank_batch.sizes)
        else:
            known, rank_batch, owner_N = self._divide_batch(self.costs, samples, shares_W)
        content = b"".join(fingerprint(sample if self.key is None else self.key(sample)) for sample in samples)
        self._digest_bytes = np.ascontiguousarray(known).tobytes() + owner_N.astype("<i8").tobytes() + content
        return rank_batch, [samples[number] for number in np.flatnonzero(owner_N == self.rank)]

    def advance(self) -> None:
        """Count the next batch as taken."""
        self.digest = zlib.crc32(self._digest_bytes, self.digest)
        self.batches += 1
        self._position += len(self._batch)
        self._batch, self.is_over = [], not self._read_ahead

    def settings(self) -> dict[str, object]:
        """Return what must be the same on every rank, beside the rule."""
        known: dict[str, object] = {"window": self.window, "seed": self.seed}
        if self.costs is None:
            return known
        read = [*(["cost"] if self.costs.cost is not None else []), *self.costs.parts]
        return {**known, **self.costs.settings(), "numbers of a sample": read}

    def require_loadable(self, state: State, *, with_rest: bool) -> None:
        """Refuse a state of a stream that was mixed in another way."""
        require_same(state, {"window": self.window, "seed": self.seed})

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the place in the stream: the epoch, the samples drawn from it, and whether it is over."""
        names = ("epoch", "batches", "digest", "window", "seed")
        numbers = {name: np.array(getattr(self, name)) for name in names}
        return {**numbers, "over": np.array(self.is_over), "drawn": np.array(self._position), "scale": self._scale}

    def load_state_dict(self, state: State) -> None:
        """Move to a saved place: with the next batch, samples drawn before it are read again and dropped."""
        self.sync_from(state)
        self._set_offset(int(state["drawn"]))
        self.is_over = bool(state["over"])

    def sync_from(self, state: State) -> None:
        """Load the state of another rank; the place in the stream is the same on every rank."""
        self.epoch, self.batches, self.digest = (int(state[name]) for name in ("epoch", "batches", "digest"))
        self._scale = np.array(state["scale"])

    def _set_offset(self, offset: int) -> None:
        self._position, self.is_over = offset, False
        self._samples, self._batch, self._read_ahead = None, [], []

    def _draw(self) -> list[Any]:
        if self._samples is None:
            stream: Any = self.stream
            if hasattr(stream, "set_epoch"):
                stream.set_epoch(self.epoch)
            self._samples = islice(shuffled_in_window(stream, self.window, self.seed, self.epoch), self._position, None)
        ranks = self.rule.world_size
        self._batch = self._read_ahead + list(islice(self._samples, self.rule.samples - len(self._read_ahead)))
        # As many as ranks are read ahead: where there are fewer, they are the stream's end, and join this batch.
        self._read_ahead = list(islice(self._samples, ranks))
        if len(self._read_ahead) < ranks:
            self._batch, self._read_ahead = self._batch + self._read_ahead, []
        if len(self._batch) < ranks:
            raise ValueError(
                f"the stream has {len(self._batch)} samples, too few for {ranks} ranks, as each needs "
                "at least one: use fewer ranks"
            )
        return self._batch

    def _divide_batch(self, costs: Costs, samples: list[Any], shares_W: Sizes) -> tuple[Array, RankBatch, Sizes]:
        """Return the features of the drawn samples, the facts about the batch, and the rank of each sample, ``[N]``."""
        known = costs.of_samples(samples, self._position)
        if not len(self._scale):  # an average sample of the first batch costs 1: the same on every rank
            mean_F = known.features.cumsum(axis=0)[-1] / len(samples)
            self._scale = np.where(mean_F > 0, mean_F, 1.0)  # no sample may have had an image yet
        scaled = SampleCosts(known.features / self._scale, known.tokens)
        assert self.coefficients is not None
        found = costs.assign_samples(scaled, shares_W, self.coefficients, self.min_samples)
        rank_batch = RankBatch(found.counts, costs.work(scaled[found.samples_of(self.rank)]))
        return known.features, rank_batch, found.owner


def fingerprint(sample: Any) -> bytes:
    """Return four bytes that tell samples apart: by both ends of large arrays, and by WebDataset's ``__key__`` alone.

    >>> fingerprint({"x": np.arange(3), "y": "a"}) == fingerprint({"x": np.arange(3), "y": "b"})
    False
    """
    return zlib.crc32(b"".join(_content_bytes(sample))).to_bytes(4, "little")


def _content_bytes(sample_part: Any) -> Iterator[bytes]:
    if isinstance(sample_part, Mapping):
        if "__key__" in sample_part:
            sample_part = {"__key__": sample_part["__key__"]}
        for name, value in sample_part.items():
            yield repr(name).encode()
            yield from _content_bytes(value)
    elif isinstance(sample_part, list | tuple):
        yield b"%d" % len(sample_part)
        for value in sample_part:
            yield from _content_bytes(value)
    elif isinstance(sample_part, str | bytes | bool | int | float | complex | np.generic | None):
        yield repr(sample_part).encode()
    elif hasattr(sample_part, "numel") or isinstance(sample_part, np.ndarray):
        flat = sample_part.reshape(-1)
        yield repr((str(sample_part.dtype), tuple(sample_part.shape))).encode()
        # Both ends of a large array make its fingerprint: all of it would cost as much as decoding.
        for ends in (flat[:128], flat[-128:]) if len(flat) > 256 else (flat,):
            yield repr(ends.tolist()).encode()
    else:
        try:
            yield pickle.dumps(sample_part)
        except Exception:  # what cannot be pickled is told apart by its kind alone
            yield type(sample_part).__qualname__.encode()


def shuffled_in_window(stream: Iterable[Any], window: int, seed: int, epoch: int) -> Iterator[Any]:
    """Yield a stream's samples in a random order, each at most about a window away from its place; once each.

    >>> sorted(shuffled_in_window(range(7), window=3, seed=0, epoch=0))
    [0, 1, 2, 3, 4, 5, 6]
    """
    source, bits = iter(stream), np.random.PCG64([seed, epoch])
    held = list(islice(source, window))
    for sample in source:
        # Raw bits: their stream is the same in every version of numpy, and so on every rank.
        place = int(bits.random_raw()) % len(held)
        held[place], yielded = sample, held[place]
        yield yielded
    while held:
        place = int(bits.random_raw()) % len(held)
        held[place], held[-1] = held[-1], held[place]
        yield held.pop()
