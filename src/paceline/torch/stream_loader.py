"""A loader of streams, whose part of every batch follows the rank's speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from paceline.torch.costs import Costs
from paceline.torch.global_batch import GlobalBatch
from paceline.torch.loader_options import rank_and_world_size, require_int
from paceline.torch.loading import OnDemandSource
from paceline.torch.rank_loader import RankLoader
from paceline.torch.stream_assigner import StreamAssigner


class StreamLoader(RankLoader):
    """Loads this rank's part of every global batch of a stream: iterable datasets, WebDataset, Hugging Face streaming.

    Every rank reads and decodes the complete stream, in the same order, and keeps its part. Ranks compare the contents
    of what they drew: a stream that is split over them already, or shuffled without a common seed, ends every rank with
    an error. Each sample comes exactly once an epoch. A resumed epoch reads again, and drops, what came before: it is
    exact if the stream yields the same again.

    Parameters
    ----------
    stream
        What yields samples, again for every epoch; its ``set_epoch`` is called if it has one.
    global_batch
        Samples of all ranks together in one batch.
    rank, world_size
        This process and how many there are; from ``torch.distributed`` where they are not given.
    window
        Samples that are held back and mixed; 1 leaves the stream in its order.
    seed
        Seed of the mixing; the same on every rank.
    costs
        What samples cost, if they cost differently: a :class:`Costs`, of functions of a sample.
    collate_fn
        Makes a batch of a list of samples; by default they are stacked as torch does.
    key
        What a sample is known by, such as its number or file: a function of the sample. By default all that is in it,
        which differs between ranks where the stream itself augments samples at random.

    Raises
    ------
    ValueError
        While batches are drawn, if a number is out of range (the sample is named), or the stream has fewer samples
        than there are ranks.

    Examples
    --------
    Rank 1 of 2, of a stream of words whose cost is their length:

    >>> words = ["a", "long-winded", "stream", "of", "words", "x"]
    >>> loader = StreamLoader(words, 4, rank=1, world_size=2, costs=Costs(cost=len), collate_fn=list)
    >>> list(loader)
    [['a', 'stream', 'of'], ['x']]
    """

    def __init__(
        self,
        stream: Iterable[Any],
        global_batch: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        window: int = 1,
        seed: int = 0,
        costs: Costs | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        key: Callable[[Any], Any] | None = None,
    ) -> None:
        rank, world_size = rank_and_world_size(rank, world_size)
        global_batch = require_int(
            "global_batch", global_batch, world_size, f"sample{'s' * (world_size > 1)}, one for each rank"
        )
        if costs is not None:
            costs.require_callable_costs()
        rule = GlobalBatch(global_batch, world_size)
        window, seed = require_int("window", window, 1, "sample"), require_int("seed", seed, 0)
        assigner = StreamAssigner(stream, rule, rank, costs, window, seed, key)
        super().__init__(assigner, OnDemandSource(None, collate_fn), rule, rank)

    def settings(self) -> dict[str, object]:
        """Return all that must be the same on every rank."""
        return {"global_batch": self.global_batch, "world_size": self.world_size, **self._assigner.settings()}
