"""A rank's busy time: everything that it does between two waits for the others, on a CPU or on a CUDA device.

Neither the wall time of a step nor that of its backward pass is usable: in both, a fast rank waits for a slow one.
Forward and backward passes alone are not enough: a rank may be slow in its optimiser, in reading data or in writing
logs, and the others wait for that as well.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from paceline.recording.allowance import Allowance, Spent, lasting
from paceline.recording.torch.marks import CPUMarks, Marks

NAN = float("nan")

REMEMBERED = 9
"""Laps whose time between steps is remembered. Reports use their median: an occasional evaluation or checkpoint says
nothing about the next step, while a lasting change counts after five laps."""

LATEST = 16
"""Laps that wait for a device at most. Where it lags behind by more, as with few and long kernels, the newest are left
out: the oldest are those that it passes next, and without them no report would ever come."""


LOOK = 0.1
"""Seconds from one look at the CPU quota to the next: a quota counts in periods of 100 ms."""

NOTHING = Spent()


class Measure(NamedTuple):
    """Measurements since the last report.

    They are samples, their micro-batches, steps, busy time for all of them, and the communication seconds of the
    previous step: from the last gradient being ready to the sum over all ranks. Under a CPU quota busy time are those
    that the work takes if the quota lasts.
    """

    samples: float = NAN
    micro_batches: float = NAN
    steps: float = NAN
    seconds: float = NAN
    comm_seconds: float = NAN

    def by_steps(self) -> Measure:
        """Return these measurements with the micro-batches of a step taken as one."""
        return self._replace(micro_batches=self.steps)


class _Span(NamedTuple):
    """A part of a lap: its seconds without waits, and what had been spent of a CPU quota before and after it."""

    seconds: float
    before: Spent
    after: Spent


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait between two marks; the second is missing while it lasts."""

    begin: Any
    end: Any = None


@dataclass(eq=False, slots=True)
class _Lap:
    """One lap: from one step's gradients being ready to the next step's."""

    begin: Any
    waits: list[_Wait]
    waits_between: list[_Wait] = field(default_factory=list)
    forward: Any = None
    end: Any = None
    exchange: _Wait | None = None
    samples: int = 0
    micro_batches: int = 0
    counts: bool = True
    features: tuple[float, ...] = ()
    # What was spent of a CPU quota until the three moments above.
    spent_begin: Spent = NOTHING
    spent_forward: Spent = NOTHING
    spent_end: Spent = NOTHING


class Clock:
    """Measures busy time; callers report the parts of every step in order.

    A CUDA device runs behind the process that launches its work. Its marks are read one step later, so that nothing
    ever waits for them.

    Parameters
    ----------
    marks
        How moments are marked: by the CPU's clock, or by CUDA events.
    allowance
        The CPU quota of the process; only for work on a CPU.
    threads
        Threads that compute.

    Attributes
    ----------
    features
        What the work of the last report's samples is made of, summed; empty where nobody said.
    next_look
        When to look at the CPU quota again, by ``time.perf_counter``; never without one to look at.

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

    def __init__(self, marks: Marks, allowance: Allowance | None = None, threads: int = 1) -> None:
        self.delay = 0 if isinstance(marks, CPUMarks) else 1
        self._marks = marks
        self._allowance, self._threads = allowance, threads
        self._spent: Callable[[], Spent] = Spent if allowance is None else allowance.spent
        self._lap = _Lap(begin=None, waits=[])  # the time before the first step is setup, not part of a step
        self._over: deque[_Lap] = deque()
        self._between: deque[_Span] = deque(maxlen=REMEMBERED)
        self._open: _Wait | None = None
        self._exchange: _Wait | None = None
        self._given: list[float] = []
        self.features: tuple[float, ...] = ()
        self.next_look = math.inf if allowance is None else 0.0

    def forward(self, samples: int, *, counts: bool = True, features: tuple[float, ...] = ()) -> None:
        """Note that a forward pass over a new batch begins: the step's first, or a further micro-batch.

        A step that does not count, such as an epoch's short last one, is left out of the reports.
        """
        lap = self._lap
        if lap.forward is None:
            lap.forward, lap.spent_forward = self._marks.mark(), self._spent()
            lap.waits_between, lap.waits = lap.waits, []
        lap.samples += samples
        lap.micro_batches += 1
        lap.counts &= counts
        if features:
            lap.features = added(lap.features, features)

    def wait_begins(self) -> None:
        """Note that a collective begins to wait for other ranks."""
        waits = self._lap.waits
        if waits and waits[-1].end is None:  # gradients are under way, and the rank waits for those anyway
            self._open = waits[-1]
        else:
            self._open = _Wait(self._marks.mark())
            waits.append(self._open)

    def wait_ends(self) -> None:
        """Note that the collective's wait is over; a wait for gradients goes on until they are summed, if later."""
        if self._open is not None:
            self._open.end, self._open = self._marks.mark(), None

    def ready(self) -> _Wait:
        """Note that all own gradients are ready; the rank waits from now on, until :meth:`summed` gets this wait.

        It ends the lap if the lap had a new batch. A loop may sum gradients more often, as with two losses of one
        batch: the time after the first sum then counts for the next lap.
        """
        ready, lap = self._marks.mark(), self._lap
        wait = _Wait(ready)
        if lap.forward is None:
            lap.waits.append(wait)
            return wait
        lap.end, lap.exchange, lap.spent_end = ready, wait, self._spent()
        if len(self._over) < LATEST:
            self._over.append(lap)
        self._lap = _Lap(ready, [wait], spent_begin=lap.spent_end)
        return wait

    def summed(self, wait: _Wait) -> None:
        """Note that the gradients of all ranks are summed and the rank goes on; any thread may call it."""
        wait.end = self._marks.mark()

    def measured(self, seconds: float) -> None:
        """Let the next report carry this busy time instead of the clock's."""
        self._given.append(seconds)

    def look(self) -> None:
        """Read the present CPU quota: call it while other ranks are awaited, as reading takes longer than all else."""
        if self._allowance is not None:
            self._allowance.look()
            self.next_look = time.perf_counter() + LOOK

    def report(self) -> Measure:
        """Return the measurements since the last report, of laps whose times are known; NaN where nothing is known."""
        over, spans, given, exchanges = self._over, [], self._given, [self._exchange]
        samples = parts = steps = 0
        self.features = ()
        while over and (given or not self.delay or self._marks.passed(over[0].end)):
            lap = over.popleft()
            self._exchange = lap.exchange
            exchanges.append(lap.exchange)
            if lap.counts:
                samples, parts, steps = samples + lap.samples, parts + lap.micro_batches, steps + 1
                if lap.features:
                    self.features = added(self.features, lap.features)
                if not given:
                    spans.append(self._in_step(lap))
        comm_seconds = self._newest(exchanges)
        if not steps:
            return Measure(comm_seconds=comm_seconds)
        if given:
            seconds = sum(given) / len(given) * steps
            given.clear()
        else:
            # The time between steps comes from a median: it is the part that evaluations and checkpoints disturb.
            seconds_of = self._lasting([*spans, *self._between])
            between = seconds_of[len(spans) :]
            seconds = sum(seconds_of[: len(spans)]) + (steps * median(between) if between else 0.0)
        return Measure(float(samples), float(parts), float(steps), seconds, comm_seconds)

    def _in_step(self, lap: _Lap) -> _Span:
        """Return what a lap took from forward to ready, and remember what it took before, between steps."""
        seconds = self._marks.seconds
        if lap.begin is not None:
            between = seconds(lap.begin, lap.forward) - self._waited(lap.waits_between)
            self._between.append(_Span(max(between, 0.0), lap.spent_begin, lap.spent_forward))
        in_step = seconds(lap.forward, lap.end)
        if lap.waits:
            in_step -= self._waited(lap.waits)
        return _Span(in_step, lap.spent_forward, lap.spent_end)

    def _lasting(self, spans: Iterable[_Span]) -> list[float]:
        """Return what spans take under the quota that holds now: they may have begun with an unspent budget."""
        cores = math.inf if self._allowance is None else self._allowance.cores
        lasting_seconds = []
        for seconds, before, after in spans:
            if cores == math.inf and before.throttled == after.throttled:  # as a rule there is no quota
                lasting_seconds.append(seconds)
            else:
                lasting_seconds.append(lasting(seconds, difference(before, after), cores, self._threads))
        return lasting_seconds

    def _waited(self, waits: Iterable[_Wait]) -> float:
        """Return the time of those of these waits that are over."""
        waited = 0.0
        for wait in waits:
            if wait.end is not None and (not self.delay or self._marks.passed(wait.end)):
                waited += self._marks.seconds(wait.begin, wait.end)
        return waited

    def _newest(self, exchanges: Iterable[_Wait | None]) -> float:
        """Return how long the newest exchange took that is over: on a CPU, that of the previous step."""
        took = NAN
        for wait in exchanges:
            if wait is not None and wait.end is not None and (not self.delay or self._marks.passed(wait.end)):
                took = self._marks.seconds(wait.begin, wait.end)
        return took


def difference(start: Spent, stop: Spent) -> Spent:
    """Return the CPU time spent between two moments.

    >>> difference(Spent(1.0, 0.5), Spent(1.5, 0.5))
    Spent(cpu=0.5, throttled=0.0)
    """
    return Spent(stop.cpu - start.cpu, stop.throttled - start.throttled)


def added(one: tuple[float, ...], other: tuple[float, ...]) -> tuple[float, ...]:
    """Return the sums of two rows of numbers; either may be empty.

    >>> added((1.0, 2.0), (0.5, 0.5)), added((), (1.0,))
    ((1.5, 2.5), (1.0,))
    """
    if not one or not other:
        return one or other
    return tuple(a + b for a, b in zip(one, other, strict=True))
