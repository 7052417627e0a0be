"""Clocks that tell a rank's own computing from its communicating and waiting: of a CPU, and of a CUDA device.

Own computing goes from the start of an iteration to the moment when the rank's last gradients are ready. The wall
time of a step or of its backward pass would not do: in both, a fast rank waits for a slow one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

NAN = float("nan")


class Measure(NamedTuple):
    """An iteration's samples, its micro-batches, own seconds computed, and seconds until all gradients were summed."""

    samples: float = NAN
    micro_batches: float = NAN
    seconds: float = NAN
    comm_seconds: float = NAN


class Clock(Protocol):
    """Measures own computing. Calls come in the order ``begin``, ``ready``, ``summed``, once an iteration."""

    delay: int
    """Iterations between ``ready`` and the moment when its measure can be had."""

    def begin(self) -> None:
        """An iteration starts."""
        ...

    def ready(self, samples: float, micro_batches: int = 1) -> Measure:
        """Own gradients of so many samples are ready; return the newest measure there is, each once."""
        ...

    def summed(self) -> None:
        """The gradients of all ranks are summed."""
        ...


class WallClock:
    """The clock of a rank that computes on CPU.

    Parameters
    ----------
    now
        Seconds by a clock that never goes back.

    Examples
    --------
    An iteration of 40 ms, of which 10 ms were spent in collectives:

    >>> ticks = iter([1.00, 1.01, 1.02, 1.04, 1.09])
    >>> clock = WallClock(now=lambda: next(ticks))
    >>> clock.begin()
    >>> with clock.waiting():
    ...     pass  # all-gather of parameters
    >>> clock.ready(64).seconds.__round__(3)
    0.03
    >>> clock.summed()
    """

    delay = 0

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._began = self._ready = NAN
        self._waited = 0.0
        self._comm_seconds = NAN

    def begin(self) -> None:
        """Start to measure."""
        self._waited = 0.0
        self._began = self._now()

    def waiting(self) -> _Waiting:
        """Return a context whose time is left out: a collective inside the iteration."""
        return _Waiting(self)

    def ready(self, samples: float, micro_batches: int = 1) -> Measure:
        """Return the measure of this iteration; its ``comm_seconds`` are those of the one before."""
        self._ready = self._now()
        measure = Measure(samples, micro_batches, self._ready - self._began - self._waited, self._comm_seconds)
        self._comm_seconds = NAN
        return measure

    def summed(self) -> None:
        """Note how long it took until all gradients were summed."""
        self._comm_seconds = self._now() - self._ready


class _Waiting:
    def __init__(self, clock: WallClock) -> None:
        self.clock = clock

    def __enter__(self) -> None:
        self.since = self.clock._now()

    def __exit__(self, *_: object) -> None:
        self.clock._waited += self.clock._now() - self.since


@dataclass
class _Marks:
    begun: Any
    ready: Any = None
    summed: Any = None
    samples: float = NAN
    micro_batches: float = NAN


class EventClock:
    """The clock of a rank that computes on a CUDA device: marks its stream and looks later, so that nothing waits.

    The process runs ahead of its device: when it hands over the last gradients, the device still computes earlier
    layers. The measure of an iteration is therefore taken at the end of the next.

    Parameters
    ----------
    mark
        Records an event on the current stream and returns it; it has ``query`` and ``elapsed_time``, in ms, as a
        ``torch.cuda.Event`` with timing.
    """

    delay = 1

    def __init__(self, mark: Callable[[], Any]) -> None:
        self._mark = mark
        self._marks: deque[_Marks] = deque(maxlen=16)

    def begin(self) -> None:
        """Mark the start on the current stream."""
        self._marks.append(_Marks(self._mark()))

    def ready(self, samples: float, micro_batches: int = 1) -> Measure:
        """Mark the end, and return the newest iteration before it that the device has finished."""
        finished = None
        while len(self._marks) > 1 and self._is_over(self._marks[0]):
            finished = self._marks.popleft()
        if self._marks:
            self._marks[-1].ready = self._mark()
            self._marks[-1].samples, self._marks[-1].micro_batches = samples, micro_batches
        return Measure() if finished is None else _between(finished)

    def summed(self) -> None:
        """Mark, on the current stream, that the gradients of all ranks are summed."""
        if self._marks:
            self._marks[-1].summed = self._mark()

    def _is_over(self, marks: _Marks) -> bool:
        return marks.ready is None or marks.ready.query()


def _between(marks: _Marks) -> Measure:
    if marks.ready is None:
        return Measure()
    comm = NAN
    if marks.summed is not None and marks.summed.query():
        comm = marks.ready.elapsed_time(marks.summed) / 1e3
    return Measure(marks.samples, marks.micro_batches, marks.begun.elapsed_time(marks.ready) / 1e3, comm)
