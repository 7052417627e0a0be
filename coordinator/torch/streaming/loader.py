"""A loader of streams, whose part of every batch follows the rank's speed. Axes: W ranks, N samples, F features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import default_collate

from paceline._arrays import Array
from paceline.coordinator.torch.loading.costs.costs import STEADY, require_rules
from paceline.coordinator.torch.loading.handing import HandsOut, placed
from paceline.coordinator.torch.loading.loop import Loop
from paceline.coordinator.torch.loading.options import whole
from paceline.coordinator.torch.loading.shares import Shares
from paceline.coordinator.torch.state import from_torch
from paceline.coordinator.torch.streaming.draw import Asked, Number, digest_of, mixed
from paceline.coordinator.torch.weighing.dealt import Dealt
from paceline.coordinator.work import sum_of_products
from paceline.solver import assign

Columns = tuple[Array, Array]


class StreamLoader(HandsOut):
    """Loads this rank's part of every global batch of a stream: iterable datasets, WebDataset, Hugging Face streaming.

    Every rank reads the whole stream, in the same order, and keeps its part. So what comes, and when, is that of one
    process; reading and decoding are done by every rank. A stream that is split over the ranks already (by
    ``split_dataset_by_node``, or a node splitter) differs between them: that shows in the first exchange of reports,
    and ends the job with an error.

    Each sample of the stream comes exactly once an epoch. The last batch takes what is left; fewer samples than ranks
    join the one before. A resumed epoch reads again, and drops, what came before: it is exact if the stream yields the
    same again.

    Parameters
    ----------
    stream
        What yields samples, anew for every epoch; its ``set_epoch`` is called if it has one.
    global_batch
        Samples of all ranks together in one batch.
    rank, world_size
        This process and how many there are; from ``torch.distributed`` where they are not given.
    window
        Samples that are held back and mixed; 1 leaves the stream in its order.
    seed
        Seed of the mixing; the same on every rank.
    cost, lengths, items
        Functions of a sample: its cost, or its length, of which the cost is learned, and its number of loss terms.
    cap
        Most tokens of a rank in a batch, in units of ``lengths``, or else of ``cost``.
    padded
        Whether a rank's samples are padded to its longest.
    collate_fn
        Makes a batch of a list of samples; by default they are stacked as torch does.

    Raises
    ------
    ValueError
        While batches are drawn, if a number is out of range (the sample is named), or the stream has fewer samples
        than there are ranks.

    Examples
    --------
    Rank 1 of 2, of a stream of words whose cost is their length:

    >>> words = ["a", "long-winded", "stream", "of", "words", "x"]
    >>> loader = StreamLoader(words, 4, rank=1, world_size=2, cost=len, collate_fn=list)
    >>> list(loader)
    [['a', 'stream', 'of'], ['x']]
    """

    accumulate = 1
    micro_batch = None

    def __init__(
        self,
        stream: Iterable[Any],
        global_batch: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        window: int = 1,
        seed: int = 0,
        cost: Number | None = None,
        lengths: Number | None = None,
        items: Number | None = None,
        cap: float | None = None,
        padded: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        rank, world_size = placed(rank, world_size)
        global_batch = whole("global_batch", global_batch, world_size, "samples, one for each rank")
        super().__init__(Shares(global_batch, world_size), rank)
        require_rules(cost is not None or lengths is not None, cap=cap, padded=bool(padded))
        self.window, self.seed = whole("window", window, 1, "sample"), whole("seed", seed, 0)
        self.stream = stream
        self.cap, self.padded = cap, bool(padded)
        self.least_samples = 1
        self._next_dealt = self.dealt
        self._asked = Asked(cost, lengths, items)
        self._collate = collate_fn or default_collate
        self.coefficients: Array | None = np.eye(3 if lengths and not cost else 1)[0]
        self._scale = np.zeros(0)
        self._epoch, self._next_epoch, self._batches, self._digest, self._skipped = 0, 0, 0, 0, 0
        self._drawn = 0

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, batches handed out in it, and a checksum of what was drawn and who took it."""
        return self._epoch, self._batches, self._digest

    def settings(self) -> dict[str, object]:
        """Return all that must be the same on every rank."""
        names = ("global_batch", "world_size", "window", "seed", "cap", "padded")
        asked = [name for name in ("cost", "lengths", "items") if getattr(self._asked, name)]
        return {**{name: getattr(self, name) for name in names}, "numbers of a sample": asked}

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be this one; without it they count up."""
        self._next_epoch = whole("epoch", epoch, 0)

    def place(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands, as arrays: how many samples of which epoch were drawn."""
        numbers = {
            "epoch": self._epoch,
            "next_epoch": self._next_epoch,
            "batches": self._batches,
            "digest": self._digest,
            "drawn": self._drawn,
        }
        assert self.coefficients is not None
        arrays = {"sizes": self.sizes, "scale": self._scale, "coefficients": self.coefficients}
        return {**{name: np.array(value) for name, value in numbers.items()}, **arrays}

    def load_state_dict(self, state: Mapping[str, Any], *, skip_rest: bool = False) -> None:
        """Resume: the next loop yields the rest of the epoch that was under way, or the epoch after it."""
        self.adopt(from_torch(state))
        under_way = int(state["drawn"]) > 0 and not skip_rest
        self._skipped = int(state["drawn"]) if under_way else 0
        self._next_epoch = int(state["epoch"]) if under_way else int(state["next_epoch"])
        if self.on_start:
            self.on_start()

    def adopt(self, place: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what another rank has learnt; the place in the stream is every rank's own."""
        self._epoch, self._batches, self._digest = (int(place[name]) for name in ("epoch", "batches", "digest"))
        self._scale = np.array(place["scale"])
        self._take_saved_sizes(place["sizes"])
        if self.coefficients is not None and place["coefficients"].shape == self.coefficients.shape:
            self.coefficients = np.array(place["coefficients"])

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; or the rest of one that was resumed."""
        return Loop(self._under_way(self._loop()))

    def _loop(self) -> Iterator[Any]:
        self._epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        if not self._skipped:
            self._batches = self._digest = 0
        stream: Any = self.stream
        if hasattr(stream, "set_epoch"):
            stream.set_epoch(self._epoch)
        if self.on_start:
            self.on_start()
        samples = mixed(self.stream, self.window, self.seed, self._epoch)
        self._drawn = sum(1 for _ in islice(samples, self._skipped))
        self._skipped = 0
        for drawn in self._global_batches(samples):
            if self.before_batch:
                self.before_batch()
            batch = self._collate([drawn[number] for number in self._own(drawn)])
            self._drawn += len(drawn)
            self._batches += 1
            yield self._hand_out(self._next_dealt, batch)
        self._drawn = 0

    def _global_batches(self, samples: Iterator[Any]) -> Iterator[list[Any]]:
        """Yield the samples of each global batch: so many, and in the last one what is left."""
        drawn = list(islice(samples, self.global_batch))
        while drawn:
            # As many as ranks are read ahead: where there are fewer, they are the stream's end, and join this batch.
            ahead = list(islice(samples, self.world_size))
            if len(ahead) < self.world_size:
                drawn, ahead = drawn + ahead, []
            if len(drawn) < self.world_size:
                raise ValueError(
                    f"the stream has {len(drawn)} samples, too few for {self.world_size} ranks, as none may go without"
                )
            yield drawn
            drawn = ahead + list(islice(samples, self.global_batch - len(ahead))) if ahead else []

    def _own(self, drawn: list[Any]) -> list[int]:
        """Return the places of this rank's samples in a global batch, and note what is known of them."""
        features_NF, items_N = self._asked.columns(drawn, self._drawn)
        tokens_N = features_NF[:, 0]
        if self.cap is not None and (tokens_N > self.cap).any():
            place = int(tokens_N.argmax())
            raise ValueError(
                f"sample {self._drawn + place} of the stream takes {tokens_N[place]:g} tokens, more than the cap of "
                f"{self.cap:g} for a rank"
            )
        if not len(self._scale):  # an average sample of the first batch costs 1: the same on every rank
            self._scale = np.array([column.cumsum()[-1] / len(drawn) for column in features_NF.T])
        scaled_NF = features_NF / self._scale
        assert self.coefficients is not None
        lower = min(self.least_samples, len(drawn) // self.world_size)
        costs_N = sum_of_products(scaled_NF, self.coefficients)
        found = assign(
            costs_N, self.sizes, tokens=tokens_N, cap=self.cap, lower=lower, padded=self.padded, steady=STEADY
        )
        self._digest = digest_of(features_NF, found.owner, self._digest)
        own = found.of(self.rank)
        self.batch_sizes = found.counts
        self._next_dealt = self._known(scaled_NF[own], float(items_N[own].sum()), float(items_N.sum()))
        return [int(number) for number in own]

    def _known(self, own_NF: Array, items: float, all_items: float) -> Dealt:
        total = own_NF.max(axis=0) * len(own_NF) if self.padded else own_NF.sum(axis=0)
        plain = Dealt.plain(self.batch_sizes, self.rank)
        if self._asked.items is None:
            return Dealt(plain.sizes, plain.weight, plain.part, features=tuple(total.tolist()))
        part = items / all_items if all_items else plain.part
        weight = part if all_items else 0.0
        return Dealt(plain.sizes, weight, part, 1.0 if all_items else 0.0, tuple(total.tolist()))
