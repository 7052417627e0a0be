"""A rank's own time: everything that it does between two waits for the others, on a CPU or on a CUDA device.

Neither the wall time of a step nor that of its backward pass is usable: in both, a fast rank waits for a slow one.
Forward and backward passes alone are not enough: a rank may be slow in its optimiser, in reading data or in writing
logs, and the others wait for that as well.
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
"""Laps whose time between steps is remembered. Reports use their median: an occasional evaluation or checkpoint says
nothing about the next step, while a lasting change counts after five laps."""

LATEST = 16
"""Laps that a device may lag behind; beyond this the oldest are dropped."""


class Measure(NamedTuple):
    """Measurements since the last report.

    They are samples, their micro-batches, steps, own seconds for all of them, and the communication seconds of the
    previous step: from the last gradient being ready to the sum over all ranks.
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
    """A wait between two marks; the second is missing while it lasts."""

    begin: Any
    end: Any = None


@dataclass(eq=False)
class _Lap:
    """One lap: from one step's gradients being ready to the next step's."""

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
    """Measures own time; callers report the parts of every step in order.

    A CUDA device runs behind the process that launches its work. Its marks are read one step later, so that nothing
    ever waits for them.

    Parameters
    ----------
    marks
        How moments are marked: by the CPU's clock, or by CUDA events.

    Attributes
    ----------
    features
        What the work of the last report's samples is made of, summed; empty where nobody said.

    Examples
    --------
    A step of 40 ms, 10 ms of it spent waiting in a collective:

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
        self._lap = _Lap(begin=None)  # the time before the first step is setup, not part of a step
        self._over: deque[_Lap] = deque(maxlen=LATEST)
        self._between: deque[float] = deque(maxlen=REMEMBERED)
        self._open: _Wait | None = None
        self._exchange: _Wait | None = None
        self._given: list[float] = []
        self.features: tuple[float, ...] = ()

    def forward(self, samples: int, *, counts: bool = True, features: tuple[float, ...] = ()) -> None:
        """Note that a forward pass over a new batch begins: the step's first, or a further micro-batch.

        A step that does not count, such as an epoch's short last one, is left out of the reports.
        """
        if self._lap.forward is None:
            self._lap.forward = self._marks.mark()
        self._lap.samples += samples
        self._lap.micro_batches += 1
        self._lap.counts &= counts
        self._lap.features = added(self._lap.features, features)

    def wait_begins(self) -> None:
        """Note that a collective begins to wait for other ranks."""
        self._open = _Wait(self._marks.mark())
        self._lap.waits.append(self._open)

    def wait_ends(self) -> None:
        """Note that the collective's wait is over."""
        if self._open is not None:
            self._open.end, self._open = self._marks.mark(), None

    def ready(self) -> _Wait:
        """Note that all own gradients are ready; the rank waits from now on, until :meth:`summed` gets this wait.

        It ends the lap if the lap had a new batch. A loop may sum gradients more often, as with two losses of one
        batch: the time after the first sum then counts for the next lap.
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
        """Note that the gradients of all ranks are summed and the rank goes on; any thread may call it."""
        wait.end = self._marks.mark()

    def measured(self, seconds: float) -> None:
        """Let the next report carry these own seconds instead of the clock's."""
        self._given.append(seconds)

    def report(self) -> Measure:
        """Return what is known by now, each lap once; NaN where nothing is known."""
        laps = self._finished()
        counted = [lap for lap in laps if lap.counts]
        self.features = reduce(added, (lap.features for lap in counted), ())
        if not counted:
            return Measure(comm_seconds=self._comm_seconds(laps))
        # The time between steps comes from a median, because it is the part that evaluations and checkpoints disturb.
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
        """Take the laps that the device has finished, or all laps if their seconds were given from outside."""
        laps = []
        while self._over and (self._given or self._marks.passed(self._over[0].end)):
            laps.append(self._over.popleft())
        return laps

    def _own_seconds(self, lap: _Lap) -> float:
        """Return the time from forward to ready, and remember the time between the steps before it."""
        if self._given:
            return 0.0
        if lap.begin is not None:
            between = self._marks.seconds(lap.begin, lap.forward) - self._waited(lap.waits_between)
            self._between.append(max(between, 0.0))
        return self._marks.seconds(lap.forward, lap.end) - self._waited(lap.waits_in_step)

    def _waited(self, waits: list[_Wait]) -> float:
        return sum(self._marks.seconds(wait.begin, wait.end) for wait in waits if self._is_known(wait))

    def _comm_seconds(self, laps: list[_Lap]) -> float:
        """Return how long the newest finished exchange took: on a CPU, that of the previous step."""
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
