"""What is asked of a loader whose batches can be balanced. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.torch.dealt import Dealt


class Loader(Protocol):
    """What is asked of a loader; :class:`BalancedLoader` is one.

    Attributes
    ----------
    global_batch
        Samples of all ranks together in one batch.
    rank, world_size
        This process and how many there are.
    accumulate
        Micro-batches of one optimiser step.
    batch_sizes
        Samples of each rank in the batch handed out last, ``[W]`` int64.
    before_batch
        Called before every batch, or every ``accumulate``-th, is cut: the moment to set ``sizes``.
    after_batch
        Called with the sizes of a batch, ``[W]``, and this rank's part of it, collated, just before that is handed
        out: the one place that knows which sizes belong to which batch, however early a loop fetches its batches.
    on_start
        Called when a new generation of batches begins: with the first batch of a loop, when a state is loaded, and
        when another rank's is adopted (then inside ``before_batch``). Batches handed out before it may never be
        trained on; what is known of them can be forgotten.
    """

    global_batch: int
    rank: int
    world_size: int
    accumulate: int
    batch_sizes: Sizes
    before_batch: Callable[[], None] | None
    after_batch: Callable[[Sizes, Any], None] | None
    on_start: Callable[[], None] | None

    @property
    def sizes(self) -> Sizes:
        """Samples of each rank in the next full batch, ``[W]``."""
        ...

    @sizes.setter
    def sizes(self, sizes_W: Sizes) -> None: ...

    @property
    def weight(self) -> float:
        """Weight of this rank in the mean gradient of the batch handed out last."""
        ...

    @property
    def position(self) -> tuple[int, int, int]:
        """Epoch, batches handed out in it, and a checksum below 2**32 of the sizes of all ranks in them.

        Ranks that train together have the same position whenever they have handed out as many batches. If they have
        not, one has looped alone (it peeked, or began a loop, when the others did not) or with other sizes, and
        samples come twice or not at all.
        """
        ...

    def settings(self) -> dict[str, object]:
        """Return all that must be the same on every rank, by readable names."""
        ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]], *, skip_rest: bool = False) -> None:
        """Resume where the data stood, or with the epoch after it; a loop that was under way is over."""
        ...

    def adopt(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on, in the middle of an epoch and of a loop, from where another rank stands."""
        ...


@runtime_checkable
class KnowsWork(Protocol):
    """What is asked of a loader whose samples may have unequal costs, or unequal numbers of loss terms.

    Attributes
    ----------
    dealt
        What is known of the batch handed out last.
    coefficients
        By which costs follow from features, ``[F]``, to be set alike on every rank; None where samples have no costs.
    least_samples
        Fewest samples of a rank.
    micro_batch
        Samples of a micro-batch, where ranks have different numbers of them; None otherwise.
    step_ends
        Whether the batch handed out last is the last of its step on this rank.
    """

    dealt: Dealt
    coefficients: Array | None
    least_samples: int
    micro_batch: int | None
    step_ends: bool
