"""A rank's own time: everything that it does between two waits for the others, on a CPU or on a CUDA device.

Neither the wall time of a step nor that of its backward pass would do: in both a fast rank waits for a slow one. Nor
does forward and backward alone: a rank may be slow in its optimiser, in reading data or in writing logs, and the others
wait for that as well.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import reduce
from statistics import median
from typing import Any, NamedTuple

from paceline.recording.torch.marks import CPUMarks, Marks

NAN = float("nan")

REMEMBERED = 9
"""Laps whose time between steps is remembered. Their median is what is usual: an evaluation or a checkpoint, which
takes long once in a while, says nothing about the next step; a lasting change counts after five laps."""

LATEST = 16
"""Laps that a device may lag behind before the oldest is given up."""


class Measure(NamedTuple):
    """What was measured since the last report.

    That is: samples, their micro-batches, steps, own seconds for all of them, and the seconds from the last gradients
    ready to their sum, of the step before.
    """

    samples: float = NAN
    micro_batches: float = NAN
    steps: float = NAN
    seconds: float = NAN
    comm_seconds: float = NAN

    def by_steps(self) -> Measure:
        """Return the same with a step's micro-batches taken as one."""
        return self._replace(micro_batches=self.steps)


@dataclass(eq=False)
class _Wait:
    """From one mark to another; the second is missing as long as it lasts."""

    begin: Any
    end: Any = None


@dataclass(eq=False)
class _Lap:
    """From one step's gradients ready to the next's."""

    begin: Any
    forward: Any = None
    end: Any = None
    waits_between: list[_Wait] = field(default_factory=list)
    waits_in_step: list[_Wait] = field(default_factory=list)
    exchange: _Wait | None = None
    samples: int = 0
    micro_batches: int = 0
    counts: bool = True
    features: tuple[float, ...] = ()

    @property
    def waits(self) -> list[_Wait]:
        return self.waits_between if self.forward is None else self.waits_in_step


class Clock:
    """Measures own time, told of the parts of every step in their order.

    A CUDA device is behind the process that tells it what to do: its marks are read one step later, so that nothing
    ever waits for them.

    Parameters
    ----------
    marks
        How moments are marked.

    Attributes
    ----------
    features
        What the work of the last report's samples is made of, summed; empty where nobody said.

    Examples
    --------
    A step of 40 ms, of which 10 were spent waiting in a collective:

    >>> class Ticks(CPUMarks):
    ...     ticks = iter([1.00, 1.01, 1.02, 1.04])
    ...     def mark(self):
    ...         return next(self.ticks)
    >>> clock = Clock(Ticks())
    >>> clock.forward(samples=64)
    >>> clock.wait_begins()  # an all-gather of parameters
    >>> clock.wait_ends()
    >>> waiting = clock.ready()
    >>> clock.report().seconds.__round__(3)
    0.03
    """

    def __init__(self, marks: Marks) -> None:
        self.delay = 0 if isinstance(marks, CPUMarks) else 1
        self._marks = marks
        self._lap = _Lap(begin=None)  # what happened before the first step says nothing about steps
        self._over: deque[_Lap] = deque(maxlen=LATEST)
        self._between: deque[float] = deque(maxlen=REMEMBERED)
        self._open: _Wait | None = None
        self._exchange: _Wait | None = None
        self._given: list[float] = []
        self.features: tuple[float, ...] = ()

    def forward(self, samples: int, *, counts: bool = True, features: tuple[float, ...] = ()) -> None:
        """A forward pass over a new batch begins: the step's first, or a further micro-batch.

        A step that does not count, such as one of an epoch's last few samples, is left out of the reports.
        """
        if self._lap.forward is None:
            self._lap.forward = self._marks.mark()
        self._lap.samples += samples
        self._lap.micro_batches += 1
        self._lap.counts &= counts
        self._lap.features = added(self._lap.features, features)

    def wait_begins(self) -> None:
        """A collective begins to wait for other ranks."""
        self._open = _Wait(self._marks.mark())
        self._lap.waits.append(self._open)

    def wait_ends(self) -> None:
        """It is over."""
        if self._open is not None:
            self._open.end, self._open = self._marks.mark(), None

    def ready(self) -> _Wait:
        """All own gradients are ready; the rank waits from now on, until :meth:`summed` is told of this wait.

        Ends the lap if it had a new batch. A loop may sum gradients more often than that, as two losses of one batch
        are: what comes between then counts for the lap to come.
        """
        ready, lap = self._marks.mark(), self._lap
        wait = _Wait(ready)
        if lap.forward is not None:
            lap.end, lap.exchange = ready, wait
            self._over.append(lap)
            self._lap = _Lap(begin=ready)
        self._lap.waits.append(wait)
        return wait

    def summed(self, wait: _Wait) -> None:
        """The gradients of all ranks are summed and the rank goes on; another thread may say so."""
        wait.end = self._marks.mark()

    def measured(self, seconds: float) -> None:
        """Let the next report carry these own seconds in place of the clock's."""
        self._given.append(seconds)

    def report(self) -> Measure:
        """Return what can be known by now, each lap once; NaN where there is nothing."""
        laps = self._finished()
        counted = [lap for lap in laps if lap.counts]
        self.features = reduce(added, (lap.features for lap in counted), ())
        if not counted:
            return Measure(comm_seconds=self._comm_seconds(laps))
        own = [self._own_seconds(lap) for lap in counted]
        seconds = sum(own) + len(own) * (median(self._between) if self._between else 0.0)
        if self._given:
            seconds = sum(self._given) / len(self._given) * len(counted)
            self._given.clear()
        return Measure(
            float(sum(lap.samples for lap in counted)),
            float(sum(lap.micro_batches for lap in counted)),
            float(len(counted)),
            seconds,
            self._comm_seconds(laps),
        )

    def _finished(self) -> list[_Lap]:
        """Take the laps that the device has finished; with seconds given from outside, there is no need to look."""
        laps = []
        while self._over and (self._given or self._marks.passed(self._over[0].end)):
            laps.append(self._over.popleft())
        return laps

    def _own_seconds(self, lap: _Lap) -> float:
        """Return the time from forward to ready, and remember the time before."""
        if self._given:
            return 0.0
        if lap.begin is not None:
            between = self._marks.seconds(lap.begin, lap.forward) - self._waited(lap.waits_between)
            self._between.append(max(between, 0.0))
        return self._marks.seconds(lap.forward, lap.end) - self._waited(lap.waits_in_step)

    def _waited(self, waits: list[_Wait]) -> float:
        return sum(self._marks.seconds(wait.begin, wait.end) for wait in waits if self._is_known(wait))

    def _comm_seconds(self, laps: list[_Lap]) -> float:
        """Return how long the newest exchange lasted that is over: on a CPU that of the step before."""
        exchanges = [lap.exchange for lap in laps if lap.exchange is not None]
        known = [wait for wait in (self._exchange, *exchanges) if wait is not None and self._is_known(wait)]
        self._exchange = exchanges[-1] if exchanges else self._exchange
        return self._marks.seconds(known[-1].begin, known[-1].end) if known else NAN

    def _is_known(self, wait: _Wait) -> bool:
        return wait.end is not None and self._marks.passed(wait.end)


def added(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """Return the sums of two rows of numbers, of which either may be empty.

    >>> added((1.0, 2.0), (0.5, 0.5)), added((), (1.0,))
    ((1.5, 2.5), (1.0,))
    """
    if not one or not other:
        return one or other
    return tuple(a + b for a, b in zip(one, other, strict=True))
