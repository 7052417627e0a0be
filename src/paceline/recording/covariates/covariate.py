"""The protocol of a covariate: a factor that changes a worker's speed."""

from __future__ import annotations

from typing import Protocol


class Covariate(Protocol):
    """A factor that changes a worker's speed, such as competing tasks, sampled at every boundary."""

    @property
    def name(self) -> str:
        """The covariate's name in traces."""
        ...

    @property
    def unit(self) -> str:
        """The unit of its values."""
        ...

    def sample(self) -> float:
        """Return the value now, or since the last call; NaN if it cannot be read."""
        ...
