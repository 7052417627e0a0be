"""What all loaders share: sizes, loops, micro-batches, the place in the data. Axis: W ranks."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Never
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.torch.assigner import EpochAssigner, MicroBatch, State
from paceline.torch.global_batch import GlobalBatch, RankBatch
from paceline.torch.loader_options import UNSUPPORTED_ATTRIBUTES, require_int
from paceline.torch.loading import BatchSource
from paceline.torch.state_lists import from_lists, to_lists
from paceline.torch.stream_assigner import StreamAssigner

Assigner = EpochAssigner | StreamAssigner


class EpochProgress:
    """Counts epochs; ``next_epoch`` is the one that the next loop begins.

    A resumed epoch begins where it was resumed, and again there after no more than a peek: what came before belongs to
    a job that is over. If nothing is left of it, the next one comes; where the script sets the resumed epoch
    nevertheless, as ``for epoch in range(saved_epoch, epochs)`` does, its loop is empty.
    """

    def __init__(self, assigner: Assigner) -> None:
        self.assigner = assigner
        self.next_epoch = 0
        self.resumed_state: State | None = None
        self._left_text = ""

    def start(self) -> None:
        """Begin the next epoch, or the rest of it if it was resumed."""
        epoch = self.next_epoch
        if self.resumed_state is not None and epoch == self.resumed_state["epoch"]:
            self.assigner.load_state_dict(self.resumed_state)
        else:
            self._warn_of_skipped_rest(epoch)
            self.assigner.start(epoch)
        self.next_epoch = epoch + 1

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return the place in the data."""
        return {**self.assigner.state_dict(), "next_epoch": np.array(self.next_epoch)}

    def resume(self, state: State, *, skip_rest: bool = False) -> None:
        """Continue with the rest of the interrupted epoch, or skip it with a warning."""
        self.assigner.require_loadable(state, with_rest=not skip_rest)
        self.assigner.load_state_dict(state)
        self.next_epoch, epoch, self._left_text = int(state["next_epoch"]), self.assigner.epoch, ""
        if not self.assigner.is_over:
            left = self.assigner.remaining
            self._left_text = f"{'some' if left is None else left} samples"
            if skip_rest:
                skipped = f"skipping {self._left_text} of epoch {epoch}, as requested by skip_rest=True"
                warnings.warn(skipped, stacklevel=3)
                self.assigner.end()
                self.next_epoch, self._left_text = max(self.next_epoch, epoch + 1), ""
            else:
                self.next_epoch = epoch
        begun = self._left_text or self.assigner.batches
        self.resumed_state = self.assigner.state_dict() if begun else None

    def _warn_of_skipped_rest(self, epoch: int) -> None:
        """Warn if an epoch was resumed, and another one begins before more than a peek was taken of its rest."""
        if self.resumed_state is None or not self._left_text:
            return
        resumed, rest = int(self.resumed_state["epoch"]), int(self.resumed_state["batches"])
        self.resumed_state = None
        if self.assigner.batches <= rest + 1:
            warnings.warn(
                f"epoch {epoch} begins, but the loader was resumed in epoch {resumed}, of which {self._left_text} are "
                f"left out now: to continue with them, call set_epoch({resumed}) before the loop",
                stacklevel=6,  # the loop itself
            )


class LoaderIterator:
    """Iterator over the batches of one loop: after its end it stays ended, after an error it raises that again.

    A generator that has failed ends, when it is asked again, as if all were well: a loop that goes on after an error
    would leave out the rest of the epoch on this rank alone.
    """

    def __init__(self, loader: RankLoader) -> None:
        self._loader = loader
        self._pending_parts: list[MicroBatch] = []
        self._has_begun = self._is_over = False
        self._error = ""  # as text: the error itself would hold this loop, and so the loading processes

    def __iter__(self) -> LoaderIterator:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch, or micro-batch, after a balance has seen it."""
        loader = self._loader
        try:
            if loader.newest_loop() is not self:
                self._begin()
            if not self._pending_parts and not self._is_over:
                self._pending_parts = loader.next_micro_batches()
            if self._pending_parts:
                rank_batch, batch = self._pending_parts.pop(0)
                loader.rank_batch, loader.step_ends = rank_batch, rank_batch.ends_step
                if loader.after_batch:
                    loader.after_batch(rank_batch.sizes, batch)
                return batch
        except BaseException as error:
            self._error = self._error or f"{type(error).__name__}: {error}"
            loader.end(self)
            if isinstance(error, StopIteration):  # a dataset's own: the epoch is not over
                raise RuntimeError(f"a dataset or collate_fn must not raise StopIteration: {error}") from error
            raise
        self._is_over = True
        loader.end(self)
        raise StopIteration

    def _begin(self) -> None:
        """Become the loader's newest loop, or raise the reason why this loop cannot continue."""
        if self._error:
            raise RuntimeError(
                f"this loop ended with an error ({self._error}): start a new one, or resume at the batch that "
                "failed, in a new loop after loader.load_state_dict(loader.state_dict())"
            )
        if self._has_begun and not self._is_over:
            raise RuntimeError(
                "this loop over the loader has ended, because another loop began or load_state_dict was called: "
                "start a new one. Nested loops need a loader each"
            )
        if not self._has_begun:
            self._has_begun = True
            self._loader.begin(self)


class RankLoader(ABC):
    """Hands out one rank's part of every global batch: an assigner says which samples it is, and a source loads them.

    Attributes
    ----------
    global_batch
        Samples of all ranks together in one batch.
    accumulate
        Micro-batches per optimizer step, each a global batch of its own.
    micro_batch
        Samples of a micro-batch, where ranks get their part in micro-batches of one size; None otherwise.
    packs
        Whether ranks get their part packed into micro-batches, whose rows say nothing of their samples.
    micro_batches
        Divides this rank's part of a batch into micro-batches; None where it comes as a whole.
    counts_differ
        Whether ranks may have different numbers of micro-batches in a step.
    step_ends
        Whether the batch yielded last is the last of its step on this rank.
    batch_sizes, rank_batch
        Samples of each rank in the batch yielded last, ``[W]`` int64, and this rank's part of it.
    since_uneven
        Batches yielded since one of which ranks had different numbers of samples; infinite if there was none.
    has_ended
        Whether the newest loop over it has reached its end, and was not left before.
    before_batch
        Called before every batch, or every ``accumulate``-th, is cut: the moment to set ``shares``.
    after_batch
        Called with the sizes of a batch, ``[W]``, and this rank's part of it, just before the loop gets it.
    on_start
        Called when a new series of batches begins, also as a state is loaded or another rank's is adopted. Batches
        yielded before may never be computed.
    before_load, after_load
        Called around the loading of a batch; the second with the seconds in which the rank waited for its loading
        processes, and those that they took for the batch, divided by their number.
    before_state
        Called before a state is made: batches that were yielded and not computed yet are not in it.
    """

    accumulate = 1
    micro_batch: int | None = None
    counts_differ = False
    packs = False
    micro_batches: Callable[[RankBatch, Any], list[MicroBatch]] | None = None
    counts_all = True

    def __init__(self, assigner: Assigner, source: BatchSource, rule: GlobalBatch, rank: int) -> None:
        self.rank, self.world_size, self.global_batch = rank, rule.world_size, rule.samples
        self._assigner, self._source, self._rule = assigner, source, rule
        self._progress = EpochProgress(assigner)
        self.newest_loop: Callable[[], LoaderIterator | None] = _no_loop
        self.has_ended = False
        self._shares = rule.validate_sizes(rule.equal_sizes())
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

    def __repr__(self) -> str:
        share = f"rank {self.rank} of {self.world_size}, batch_sizes={self.batch_sizes.tolist()}"
        return f"{type(self).__name__}(global_batch={self.global_batch}, {share})"

    def __getattr__(self, name: str) -> Never:
        """Name the replacement for an attribute of torch's loader."""
        raise AttributeError(
            f"{type(self).__name__} has no {name}"
            + (f": {UNSUPPORTED_ATTRIBUTES[name]}" if name in UNSUPPORTED_ATTRIBUTES else "")
        )

    # -- what a balance sets ---------------------------------------------------------------------------------------

    @property
    def shares(self) -> Sizes:
        """Shares of the ranks in the work of the next full batch, ``[W]``, in average samples; to change some, set all.

        Where samples have no costs, all are average, and shares are sizes.
        """
        return self._shares

    @shares.setter
    def shares(self, shares_W: Sizes) -> None:
        self._shares = self._rule.validate_sizes(shares_W)

    @property
    def sizes(self) -> Sizes:
        """Samples of each rank in the next full batch, ``[W]``. Not where samples have costs."""
        if self.coefficients is not None:
            raise AttributeError(UNSUPPORTED_ATTRIBUTES["sizes"])
        return self._shares

    @sizes.setter
    def sizes(self, sizes_W: Sizes) -> None:
        if self.coefficients is not None:
            raise AttributeError(f"{type(self).__name__} has no sizes: {UNSUPPORTED_ATTRIBUTES['sizes']}")
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

    def set_accumulate(self, steps: int, source: str) -> None:
        """Set a trainer's number of micro-batches per step, so that sizes change only between steps."""
        if self.accumulate not in (1, steps):
            raise ValueError(f"{source}, but the loader accumulate={self.accumulate}: remove it from the loader")
        self.accumulate = steps

    # -- where it stands -------------------------------------------------------------------------------------------

    @property
    def is_iterating(self) -> bool:
        """True if a loop over the loader is under way: until its end, or until the script leaves it."""
        return self.newest_loop() is not None

    @property
    def epoch(self) -> int:
        """The epoch under way, or the one that ended last; the first is 0."""
        return self._assigner.epoch

    @abstractmethod
    def settings(self) -> dict[str, object]:
        """Return everything that must be the same on every rank, under readable names."""

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, batches yielded in it, and a checksum of who took what: ranks that loop alike have the same."""
        return self._assigner.epoch, self._assigner.batches, self._assigner.digest

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch. By default, epochs count up from 0, including peeks."""
        self._progress.next_epoch = require_int("epoch", epoch, 0)

    def position_state(self) -> dict[str, NDArray[Any]]:
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
            raise RuntimeError(
                "state_dict() was called in the middle of a step: call it where loader.step_ends is true"
            )
        if self.before_state:
            self.before_state()
        return to_lists(self.position_state())

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
        self.newest_loop, self.step_ends = _no_loop, True
        self._restore_shares(place)
        self._restart()

    def sync_from(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue, in the middle of an epoch, from the place of another rank, after the two have diverged."""
        self._assigner.sync_from(state)
        self._progress.next_epoch = int(state["next_epoch"])
        self._restore_shares(state)
        self._restart()

    def _restore_shares(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Use the shares and costs of a state, unless they are those of other ranks, batches or features."""
        shares_W, saved, learned = state["sizes"], state.get("coefficients"), self.coefficients
        if len(shares_W) == self.world_size and shares_W.sum() == self.global_batch:
            self.shares = shares_W
        if saved is not None and learned is not None and saved.shape == learned.shape:
            self.coefficients = saved

    # -- loops -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; or the rest of one that was resumed."""
        return LoaderIterator(self)

    def begin(self, iterator: LoaderIterator) -> None:
        """Begin an epoch: any loop before this one is over."""
        self.has_ended = False
        self.newest_loop = ref(iterator)  # weakly: a loop that the script leaves is over
        self._progress.start()
        self._restart()

    def end(self, iterator: LoaderIterator) -> None:
        """Note that a loop has ended."""
        if self.newest_loop() is iterator:
            self.newest_loop, self.has_ended = _no_loop, True

    def next_micro_batches(self) -> list[MicroBatch]:
        """Return this rank's part of the next global batch, whole or in micro-batches; nothing if the epoch is over."""
        assigner = self._assigner
        if assigner.is_over:
            self._progress.resumed_state = None  # if a resumed epoch is set again, all of it comes
            return []
        if self.before_batch and assigner.batches % self.accumulate == 0:
            self.before_batch()
        rank_batch, samples = assigner.peek(self._shares)
        parts = self.micro_batches(rank_batch, samples) if self.micro_batches else [(rank_batch, samples)]
        rank_batches, samples_of_parts = zip(*parts, strict=True)
        if self.before_load:
            self.before_load()
        batches = self._source.take(samples_of_parts)
        if self.after_load:
            self.after_load(*self._source.load_seconds)
        assigner.advance()  # only now: a batch that could not be loaded has not been yielded
        self.batch_sizes = rank_batch.sizes
        uneven = self.packs or len(set(self.batch_sizes.tolist())) > 1  # packed rows are as long as their tokens
        self.since_uneven = 0 if uneven else self.since_uneven + 1
        return list(zip(rank_batches, batches, strict=True))

    def _restart(self) -> None:
        """Forget what was loaded ahead: other samples come from now on."""
        self._source.restart()
        if self.on_start:
            self.on_start()


def _no_loop() -> None:
    return None
