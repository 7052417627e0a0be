"""Protocol of a loader whose batches can be balanced. Axes: W ranks, F features of a sample's cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.torch.global_batch import RankBatch


class Loader(Protocol):
    """The interface of a loader whose batches can be balanced, which both loaders here keep.

    Attributes
    ----------
    global_batch
        Samples of all ranks together in one batch.
    rank, world_size
        This process, and the number of processes.
    accumulate
        Micro-batches per optimizer step, each a global batch of its own.
    micro_batch
        Samples of a micro-batch, where ranks get their part in micro-batches of one size; None otherwise.
    packs
        Whether ranks get their part packed into micro-batches, whose rows say nothing of their samples.
    counts_differ
        Whether ranks may have different numbers of micro-batches in a step.
    step_ends
        Whether the batch yielded last is the last of its step on this rank.
    batch_sizes
        Samples of each rank in the batch yielded last, ``[W]`` int64.
    since_uneven
        Batches yielded since one of which ranks had different numbers of samples; infinite if there was none.
    ended
        Whether the newest loop over it has reached its end, and was not left before.
    assigned
        What else is known of that batch.
    before_batch
        Called before every batch, or every ``accumulate``-th, is cut: the moment to set ``shares``.
    after_batch
        Called with the sizes of a batch, ``[W]``, and this rank's collated part of it, just before the part is handed
        out. Only this call shows which sizes belong to which batch, even if a loop fetches batches early.
    on_start
        Called when a new series of batches begins: with the first batch of a loop, when a state is loaded, and when
        another rank's state is adopted (then inside ``before_batch``). Batches yielded before it may never be
        trained on, so records of them can be dropped.
    before_load, after_load
        Called around the loading of this rank's part of a batch; the second with the seconds in which the rank waited
        for its loading processes, and those that they took for the batch, divided by their number.
    before_state
        Called before a state is made: batches that were yielded and not computed yet are not in it.
    """

    global_batch: int
    rank: int
    world_size: int
    accumulate: int
    micro_batch: int | None
    packs: bool
    counts_differ: bool
    step_ends: bool
    batch_sizes: Sizes
    since_uneven: float
    ended: bool
    rank_batch: RankBatch
    before_batch: Callable[[], None] | None
    after_batch: Callable[[Sizes, Any], None] | None
    on_start: Callable[[], None] | None
    before_load: Callable[[], None] | None
    after_load: Callable[[float, float], None] | None
    before_state: Callable[[], None] | None

    @property
    def shares(self) -> Sizes:
        """Shares of the ranks in the work of the next full batch, ``[W]`` int64, in average samples."""
        ...

    @shares.setter
    def shares(self, shares_W: Sizes) -> None: ...

    @property
    def coefficients(self) -> Array | None:
        """Factors by which costs follow from features, ``[F]``, to be set alike on every rank; None without costs."""
        ...

    @coefficients.setter
    def coefficients(self, coefficients_F: Array) -> None: ...

    @property
    def min_samples(self) -> int:
        """Fewest samples of a rank where samples have costs."""
        ...

    @min_samples.setter
    def min_samples(self, samples: int) -> None: ...

    @property
    def looping(self) -> bool:
        """True if a loop over the loader is under way: the same on every rank, wherever the script stands."""
        ...

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, batches yielded in it, and a checksum below 2**32 of the sizes of all ranks in them.

        Ranks that train together must have the same position. If they do not, one has looped alone (it peeked, or began
        a loop, when the others did not) or used other sizes, and samples come twice or not at all.
        """
        ...

    def settings(self) -> dict[str, object]:
        """Return everything that must be the same on every rank, under readable names."""
        ...

    def place(self) -> dict[str, NDArray[Any]]:
        """Return the place in the data, as arrays."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, as lists, which ``torch.load`` reads."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], *, skip_rest: bool = False) -> None:
        """Resume at a saved place in the data, or with the epoch after it; a loop under way ends."""
        ...

    def adopt(self, place: Mapping[str, NDArray[Any]]) -> None:
        """Continue from another rank's place, in the middle of an epoch and of a loop."""
        ...
