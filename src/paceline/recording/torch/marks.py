"""Marks in time: moments of a training step, on a CPU or a CUDA device, whose distances are computed later.

The CPU only launches work on a CUDA device, so the CPU's clock does not show when that work is done. An event in the
device's queue does. It is read once the device has passed it, so nothing ever waits for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class CPUMarks:
    """Moments at which all work launched so far is done: on the CPU, whose work is done as soon as its call returns.

    >>> marks = CPUMarks()
    >>> first, second = marks.mark(), marks.mark()
    >>> marks.passed(second), marks.seconds(first, second) >= 0
    (True, True)
    """

    mark = staticmethod(time.perf_counter)

    def passed(self, mark: float) -> bool:
        """Return whether a marked moment has come."""
        return True

    def wait(self, mark: float) -> None:
        """Wait until a marked moment has come. Only for the end of a recording, never inside a loop."""

    seconds = staticmethod(float.__rsub__)
    """``seconds(start, stop)``: the time between two moments. A function of C, as every step asks several times."""


class CUDAMarks:
    """Moments of a CUDA device's current stream, marked by events.

    Parameters
    ----------
    device
        The device that computes. The current one is another where a script gives numbers of devices and chooses none,
        and in threads of gloo; its events would have passed long before the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        """Record an event in the device's current stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Return whether the device has passed the event."""
        return bool(mark.query())

    def wait(self, mark: torch.cuda.Event) -> None:
        """Wait for the device to pass the event."""
        mark.synchronize()

    def seconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Return the time between two events that the device has passed."""
        return float(start.elapsed_time(stop)) / 1000


Marks = CPUMarks | CUDAMarks
"""A clock whose moments may still lie in the future when they are marked."""


def marks_of(model: torch.nn.Module) -> Marks:
    """Return the marks for a model, by the device of its first parameter."""
    parameter = next(model.parameters(), None)
    return CUDAMarks(parameter.device) if parameter is not None and parameter.is_cuda else CPUMarks()


class Delayed:
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
