"""A number that a device computes, read once it has arrived in main memory, so that nothing waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Late:
    """One number on its way from a CUDA device to main memory."""

    def __init__(self) -> None:
        self._arrival: torch.cuda.Event | None = None
        self._place: torch.Tensor | None = None

    @property
    def under_way(self) -> bool:
        """True if a number was fetched and not taken yet."""
        return self._arrival is not None

    def fetch(self, number: torch.Tensor) -> None:
        """Begin to copy a number, a tensor without axes, behind all work that the device has by now."""
        import torch

        if self._place is None:
            self._place = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._place.copy_(number.detach().double(), non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record(torch.cuda.current_stream(number.device))
        self._arrival = arrival  # last, as another thread may look

    def take(self) -> float | None:
        """Return the number if it has arrived, once; None if there is none, or it is still on its way."""
        if self._arrival is None or self._place is None or not self._arrival.query():
            return None
        self._arrival = None
        return float(self._place)

    def forget(self) -> None:
        """Drop the number that is on its way."""
        self._arrival = None
