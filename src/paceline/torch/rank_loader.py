"""The part of a loader that all kinds share: its sizes, its loops, its place in the data. Axis: W ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.torch.assigner import Assigner
from paceline.torch.epoch_position import Progress
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.loop import Loop
from paceline.torch.micro import Borders, micro_batches
from paceline.torch.options import UNKNOWN, require_int
from paceline.torch.source import BatchSource
from paceline.torch.state import from_lists, to_lists


class RankLoader:
    """Hands out one rank's part of every global batch: an assigner says which samples it is, and a source loads them.

    Its attributes are those of :class:`paceline.torch.loader_protocol.Loader`; ``newest_loop`` returns the loop
    that is under way, or None.
    """

    accumulate = 1
    micro_batch: int | None = None
    counts_differ = False
    packs = False
    borders: Borders | None = None
    counts_all = True

    def __init__(self, assigner: Assigner, source: BatchSource, rule: GlobalBatch, rank: int) -> None:
        self.rank, self.world_size, self.global_batch = rank, rule.world_size, rule.samples
        self._assigner, self._source, self._rule = assigner, source, rule
        self._progress = Progress(assigner)
        self.newest_loop: Callable[[], Loop | None] = _none
        self.ended = False
        self._shares = rule.checked(rule.equal())
        self.batch_sizes = self._shares
        self.since_uneven = math.inf
        self.rank_batch = RankBatch(self._shares)
        self.step_ends = True
        self.before_batch: Callable[[], None] | None = None
        self.after_batch: Callable[[Sizes, Any], None] | None = None
        self.on_start: Callable[[], None] | None = None
        self.before_load: Callable[[], None] | None = None
        self.after_load: Callable[[float, float], None] | None = None
        self.before_state: Callable[[], None] | None = None

    def __getattr__(self, name: str) -> Never:
        """Name the replacement for an attribute of torch's loader."""
        raise AttributeError(f"{type(self).__name__} has no {name}" + (f": {UNKNOWN[name]}" if name in UNKNOWN else ""))

    # -- what a balance sets ---------------------------------------------------------------------------------------

    @property
    def shares(self) -> Sizes:
        """Shares of the ranks in the work of the next full batch, ``[W]``, in average samples; to change some, set all.

        Where samples have no costs, all are average, and shares are sizes.
        """
        return self._shares

    @shares.setter
    def shares(self, shares_W: Sizes) -> None:
        self._shares = self._rule.checked(shares_W)

    @property
    def sizes(self) -> Sizes:
        """Samples of each rank in the next full batch, ``[W]``. Not where samples have costs."""
        if self.coefficients is not None:
            raise AttributeError(UNKNOWN["sizes"])
        return self._shares

    @sizes.setter
    def sizes(self, sizes_W: Sizes) -> None:
        if self.coefficients is not None:
            raise AttributeError(f"{type(self).__name__} has no sizes: {UNKNOWN['sizes']}")
        self.shares = sizes_W

    @property
    def coefficients(self) -> Array | None:
        """Factors by which costs follow from features, ``[F]``, to be set alike on every rank; None without costs.

        They sum to 1, so that an average sample costs 1.
        """
        return self._assigner.coefficients

    @coefficients.setter
    def coefficients(self, coefficients_F: Array) -> None:
        self._assigner.coefficients = np.array(coefficients_F)

    @property
    def min_samples(self) -> int:
        """Fewest samples of a rank where samples have costs: 2 for models with batch normalization."""
        return self._assigner.min_samples

    @min_samples.setter
    def min_samples(self, samples: int) -> None:
        self._assigner.min_samples = samples

    # -- where it stands -------------------------------------------------------------------------------------------

    @property
    def looping(self) -> bool:
        """True if a loop over the loader is under way: until its end, or until the script leaves it."""
        return self.newest_loop() is not None

    @property
    def epoch(self) -> int:
        """The epoch under way, or the one that ended last; the first is 0."""
        return self._assigner.epoch

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, batches yielded in it, and a checksum of who took what: ranks that loop alike have the same."""
        return self._assigner.epoch, self._assigner.batches, self._assigner.digest

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch. By default, epochs count up from 0, including peeks."""
        self._progress.next_epoch = require_int("epoch", epoch, 0)

    def place(self) -> dict[str, NDArray[Any]]:
        """Return the place in the data, as arrays."""
        place = {**self._progress.state_dict(), "sizes": self._shares}
        return place if self.coefficients is None else {**place, "coefficients": self.coefficients}

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, as lists, for an exact resume with any number of ranks.

        Raises
        ------
        RuntimeError
            If a step has micro-batches left on this rank: they would come neither in this job nor in the next.
        """
        if not self.step_ends:
            raise RuntimeError("state_dict() in the middle of a step: call it where loader.step_ends is true")
        if self.before_state:
            self.before_state()
        return to_lists(self.place())

    def load_state_dict(self, state: Mapping[str, Any], *, skip_rest: bool = False) -> None:
        """Resume: the next loop over this loader yields the rest of the epoch that was under way.

        If nothing is left of it, the next epoch comes; and where ``set_epoch`` asks for the finished one, as a script
        does that goes on ``for epoch in range(saved_epoch, epochs)``, its loop is empty.

        Parameters
        ----------
        state
            What ``state_dict`` returned, on any rank.
        skip_rest
            Whether to leave the rest out instead, and go on with the next epoch; a warning says how many samples.

        Raises
        ------
        ValueError
            If the state is that of other samples, or of another order of them, or the rest of the epoch is too small
            for so many ranks. Nothing has changed then.
        """
        place = from_lists(state)
        self._progress.resume(place, skip_rest=skip_rest)
        self.newest_loop, self.step_ends = _none, True
        self._take_shares(place)
        self._restart()

    def adopt(self, place: Mapping[str, NDArray[Any]]) -> None:
        """Continue, in the middle of an epoch, from the place of another rank, after the two have diverged."""
        self._progress.adopt(place)
        self._take_shares(place)
        self._restart()

    def _take_shares(self, place: Mapping[str, NDArray[Any]]) -> None:
        """Use the shares and costs of a state, unless they are those of other ranks, batches or features."""
        shares_W, saved, learned = place["sizes"], place.get("coefficients"), self.coefficients
        if len(shares_W) == self.world_size and shares_W.sum() == self.global_batch:
            self.shares = shares_W
        if saved is not None and learned is not None and saved.shape == learned.shape:
            self.coefficients = saved

    # -- loops -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; or the rest of one that was resumed."""
        return Loop(self)

    def begin(self, loop: Loop) -> None:
        """Begin an epoch: any loop before this one is over."""
        self.ended = False
        self.newest_loop = ref(loop)  # weakly: a loop that the script leaves is over
        self._progress.start()
        self._restart()

    def end(self, loop: Loop) -> None:
        """Note that a loop has ended."""
        if self.newest_loop() is loop:
            self.newest_loop, self.ended = _none, True

    def next_parts(self) -> list[tuple[RankBatch, Any]]:
        """Return this rank's part of the next global batch, whole or in micro-batches; nothing if the epoch is over."""
        assigner = self._assigner
        if assigner.over:
            self._progress.finish()
            return []
        if self.before_batch and assigner.batches % self.accumulate == 0:
            self.before_batch()
        rank_batch, samples = assigner.next(self._shares, self.accumulate)
        if self.before_load:
            self.before_load()
        batch = self._source.take(samples)
        places = self.borders(len(samples)) if self.borders else None
        if self.after_load:
            self.after_load(*self._source.ahead)
        assigner.advance()  # only now: a batch that could not be loaded has not been yielded
        self.batch_sizes = rank_batch.sizes
        uneven = self.packs or len(set(rank_batch.sizes.tolist())) > 1  # packed rows are as long as their tokens
        self.since_uneven = 0 if uneven else self.since_uneven + 1
        if places is None:
            return [(rank_batch, batch)]
        return micro_batches(assigner, rank_batch, samples, batch, places)

    def _restart(self) -> None:
        """Forget what was loaded ahead: other samples come from now on."""
        self._source.restart()
        if self.on_start:
            self.on_start()


def _none() -> None:
    """Return None: no loop is under way."""
