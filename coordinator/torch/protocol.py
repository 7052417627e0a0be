"""What is asked of a loader whose batches can be balanced. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.int64]


class Loader(Protocol):
    """What is asked of a loader; :class:`BalancedLoader` is one."""

    global_batch: int
    rank: int
    world_size: int
    accumulate: int
    batch_sizes: Sizes
    before_batch: Callable[[], None] | None

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

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return where the data stands."""
        ...

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Resume where the data stood."""
        ...

    def adopt(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on, in the middle of an epoch, from where another rank stands."""
        ...
