"""What a driver is."""

from __future__ import annotations

from typing import Protocol


class Driver(Protocol):
    """Something that changes a worker's speed, sampled at every boundary."""

    @property
    def name(self) -> str:
        """The driver's name in traces."""
        ...

    @property
    def unit(self) -> str:
        """What a value of one means."""
        ...

    def sample(self) -> float:
        """Return the value now, or since the last call; NaN where it cannot be read."""
        ...
