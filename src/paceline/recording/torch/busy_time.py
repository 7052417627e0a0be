"""A rank's busy time: everything that it does between two waits for the others, for the batch that caused it.

Neither the wall time of a step nor that of its backward pass is usable: in both, a fast rank waits for a slow one.
Forward and backward passes alone are not enough: a rank may be slow in loading data, in the loop's body, in its
optimizer or in writing logs, and the others wait for that as well.

A lap lasts from one step's gradients being ready to the next step's. Its time, without waits, is split by cause:

- loading counts for the batch that is loaded, which a prefetching loop computes one or more laps later;
- the end of the step before (the optimizer, metrics, a second model), up to the request for the next batch, follows
  the size of the batch before as far as it has been seen to do so, and is fixed otherwise;
- all else counts for the batch of the lap's forward passes.

A pause (evaluation, checkpoint, log) is no speed: it is left out. Loading processes work beside the rank, so a batch
takes the longer of what they need for it and what the rank does itself.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.recording.control_group import CPUSnapshot, QuotaTracker, sustained_seconds

if TYPE_CHECKING:
    import torch

# -- events: moments of a step, on a CPU or a CUDA device, whose distances are computed later -----------------
#
# The CPU only launches work on a CUDA device, so the CPU's clock does not show when that work is done. An event in the
# device's queue does. It is read once the device has passed it, so nothing ever waits for it.


class CPUEvents:
    """Moments at which all work launched so far is done: on the CPU, whose work is done as soon as its call returns."""

    record = staticmethod(time.perf_counter)

    def has_passed(self, event: float) -> bool:
        """Return whether an event has happened."""
        return True

    def wait(self, event: float) -> None:
        """Wait until an event has happened. Only for the end of a recording, never inside a loop."""

    seconds = staticmethod(float.__rsub__)
    """``seconds(start, stop)``: the time between two moments. A function of C, as every step asks several times."""


class CUDAEvents:
    """Events in the current stream of the CUDA device that computes.

    The current device is another where a script gives numbers of devices and chooses none, and in threads of gloo; its
    events would have passed long before the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def record(self) -> torch.cuda.Event:
        """Record an event in the device's current stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def has_passed(self, event: torch.cuda.Event) -> bool:
        """Return whether the device has passed the event."""
        return bool(event.query())

    def wait(self, event: torch.cuda.Event) -> None:
        """Wait for the device to pass the event."""
        event.synchronize()

    def seconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        """Return the time between two events that the device has passed."""
        return float(start.elapsed_time(stop)) / 1000


Events = CPUEvents | CUDAEvents
"""Events that may still lie in the future when they are recorded."""


def choose_events(model: torch.nn.Module) -> Events:
    """Return the events for a model: those of the device of its first parameter."""
    parameter = next(model.parameters(), None)
    return CUDAEvents(parameter.device) if parameter is not None and parameter.is_cuda else CPUEvents()


class AsyncScalar:
    """One number on its way from a CUDA device to main memory."""

    def __init__(self) -> None:
        self._arrival: torch.cuda.Event | None = None
        self._buffer: torch.Tensor | None = None

    def fetch(self, number: torch.Tensor) -> None:
        """Begin to copy a number, a tensor without axes, behind all work that the device has by now."""
        import torch

        if self._buffer is None:
            self._buffer = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._buffer.copy_(number.detach().double(), non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record(torch.cuda.current_stream(number.device))
        self._arrival = arrival  # last, as another thread may look

    def take(self) -> float | None:
        """Return the number if it has arrived, once; None if there is none, or it is still on its way."""
        if self._arrival is None or self._buffer is None or not self._arrival.query():
            return None
        self._arrival = None
        return float(self._buffer)

    def forget(self) -> None:
        """Drop the number that is on its way."""
        self._arrival = None


# -- laps -------------------------------------------------------------------------------------------------------------

MAX_LAPS = 16
"""Laps that wait for a device at most. Where it lags behind by more, as with few and long kernels, the newest are left
out: the oldest are those that it passes next, and without them no report would ever come."""


NO_CPU_USAGE = CPUSnapshot()


class Measurements(NamedTuple):
    """Measurements since the last report."""

    samples: float = math.nan
    micro_batches: float = math.nan
    steps: float = math.nan
    seconds: float = math.nan  # busy time for all of them; under a CPU quota, what it is if the quota lasts
    comm_seconds: float = math.nan  # of the previous step, from the last gradient being ready to the sum over all ranks


@dataclass(eq=False, slots=True)
class _Wait:
    """A wait between two events; the second is missing while it lasts."""

    begin: Any
    end: Any = None


@dataclass(eq=False, slots=True)
class _Load:
    """The loading of a batch between two events."""

    begin: Any
    end: Any = None
    waited_seconds: float = 0.0  # seconds of it in which the rank waited for its loading processes
    loader_process_seconds: float = 0.0  # seconds that they took for the batch, divided by their number
    seconds: float | None = None  # between the events, once it has been read


@dataclass(eq=False, slots=True)
class _Lap:
    """One lap: from one step's gradients being ready to the next step's."""

    begin: Any
    waits: list[_Wait]
    loads: list[_Load] = field(default_factory=list)
    batches: list[_Load] = field(default_factory=list)  # the loading of its own batches, whenever that was
    first_fetch: Any = None  # the first request for a batch, if it came before the first forward pass
    first_forward: Any = None
    end: Any = None
    waits_before: tuple[int, int] = (0, 0)  # waits that began before these two moments
    loads_before: int = 0
    exchange: _Wait | None = None
    samples: int = 0
    micro_batches: int = 0
    in_report: bool = True
    features: tuple[float, ...] = ()
    # CPU time used until the beginning and until the end.
    cpu_begin: CPUSnapshot = NO_CPU_USAGE
    cpu_end: CPUSnapshot = NO_CPU_USAGE


@dataclass(slots=True)
class _StepEnd:
    """The time from a step's gradients to the request for the next batch, as it depends on the step's batch."""

    samples: int = 0
    seconds: float = 0.0
    _size_time_product: float = 0.0
    _size_square: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether a change of size has shown what depends on it."""
        return self._size_square > 0

    def update(self, samples: int, seconds: float) -> None:
        """Learn what it took after a step of so many samples."""
        if self.samples and samples != self.samples:
            change = samples - self.samples
            self._size_time_product = 0.8 * self._size_time_product + change * (seconds - self.seconds)
            self._size_square = 0.8 * self._size_square + change**2
        self.samples, self.seconds = samples, seconds

    def predict_seconds(self, samples: int) -> float:
        """Return what is expected after a step of so many samples: as much as the last one, until a change shows."""
        if not self.is_known or samples == self.samples:
            return self.seconds
        slope = min(max(self._size_time_product / self._size_square, 0.0), self.seconds / self.samples)
        return self.seconds + slope * (samples - self.samples)


class BusyTimer:
    """Measures busy time; callers report the parts of every step in order.

    A CUDA device runs behind the process that launches its work. Its events are read one step later, so that nothing
    ever waits for them.

    ``allowance`` is the CPU quota of the process, only for work on a CPU, and ``threads`` are those that compute.
    """

    def __init__(self, events: Events, allowance: QuotaTracker | None = None, threads: int = 1) -> None:
        self.delay = 0 if isinstance(events, CPUEvents) else 1
        self._events = events
        self._allowance, self._threads = allowance, threads
        self._read_cpu: Callable[[], CPUSnapshot] = CPUSnapshot if allowance is None else allowance.snapshot
        self._lap = _Lap(begin=None, waits=[])  # the time before the first batch is setup, not part of a step
        self._finished_laps: deque[_Lap] = deque()
        self._load: _Load | None = None
        self._loaded_batches: deque[tuple[int, _Load | None]] = deque(maxlen=64)
        self._open_wait: _Wait | None = None
        self._depth = 0
        self._exchange: _Wait | None = None
        self._overrides: list[float] = []
        self._step_end = _StepEnd()
        self._samples = 0  # of the last lap that was reported
        # Samples, between steps and in all, of the last usual lap.
        self._typical_lap: tuple[int, float, float] | None = None
        self._was_paused = False
        self.features: tuple[float, ...] = ()  # of the last report's samples, summed; empty where nobody said
        self.next_refresh = math.inf if allowance is None else 0.0  # when to read the quota again, by time.perf_counter

    def load_begins(self) -> None:
        """Note that the loader begins to load a batch, or to wait for its loading processes."""
        lap, event = self._lap, self._events.record()
        if lap.begin is None:
            lap.begin, lap.cpu_begin = event, self._read_cpu()
        if lap.first_forward is None and lap.first_fetch is None:
            lap.first_fetch, lap.waits_before = event, (len(lap.waits), 0)
        self._load = _Load(event)
        lap.loads.append(self._load)

    def load_ends(self, waited_seconds: float = 0.0, loader_process_seconds: float = 0.0) -> None:
        """Note that the batch is there, and how long its loading processes were waited for, and took ahead, each."""
        if (load := self._load) is not None:
            load.end = self._events.record()
            load.waited_seconds, load.loader_process_seconds = waited_seconds, loader_process_seconds

    def add_batch(self, samples: int) -> None:
        """Note a batch that the loop is given, or a micro-batch; the first takes the time of loading."""
        self._loaded_batches.append((samples, self._load))
        self._load = None

    def forget_batches(self) -> None:
        """Forget the batches that the loop was given and has not computed: their loop is over."""
        self._loaded_batches.clear()

    def forward_begins(self, samples: int, *, in_report: bool = True, features: tuple[float, ...] = ()) -> None:
        """Note that a forward pass over a new batch begins: the step's first, or a further micro-batch.

        A step that does not count, such as an epoch's short last one, is left out of the reports.
        """
        lap = self._lap
        if lap.first_forward is None:
            lap.first_forward = self._events.record()
            lap.waits_before, lap.loads_before = (lap.waits_before[0], len(lap.waits)), len(lap.loads)
            if lap.begin is None:
                lap.begin, lap.cpu_begin = lap.first_forward, self._read_cpu()
        if any(loaded == samples for loaded, _ in self._loaded_batches):
            loaded, load = self._loaded_batches.popleft()
            while loaded != samples:  # those before it were skipped
                loaded, load = self._loaded_batches.popleft()
            if load is not None:
                lap.batches.append(load)
        lap.samples += samples
        lap.micro_batches += 1
        lap.in_report &= in_report
        lap.features = add_rows(lap.features, features)

    def wait_begins(self) -> None:
        """Note that a collective begins to wait for other ranks; a wait inside a wait is part of it."""
        self._depth += 1
        if self._depth > 1:
            return
        waits = self._lap.waits
        if not waits or waits[-1].end is not None:  # else gradients are under way, and the rank waits for those anyway
            waits.append(_Wait(self._events.record()))
        self._open_wait = waits[-1]

    def wait_ends(self) -> None:
        """Note that the collective's wait is over; a wait for gradients goes on until they are summed, if later."""
        self._depth = max(self._depth - 1, 0)
        if self._open_wait is not None and not self._depth:
            self._open_wait.end, self._open_wait = self._events.record(), None

    def gradients_ready(self) -> _Wait:
        """Note that all own gradients are ready; the rank waits until :meth:`gradients_summed` gets this wait.

        It ends the lap if the lap had a new batch. A loop may sum gradients more often, as with two losses of one
        batch: the time after the first sum then counts for the next lap.
        """
        ready, lap = self._events.record(), self._lap
        wait = _Wait(ready)
        if lap.first_forward is None:
            lap.waits.append(wait)
            return wait
        lap.end, lap.exchange, lap.cpu_end = ready, wait, self._read_cpu()
        if len(self._finished_laps) < MAX_LAPS:
            self._finished_laps.append(lap)
        self._lap = _Lap(ready, [wait], cpu_begin=lap.cpu_end)
        return wait

    def gradients_summed(self, wait: _Wait) -> None:
        """Note that the gradients of all ranks are summed and the rank goes on; any thread may call it."""
        wait.end = self._events.record()

    def override_seconds(self, seconds: float) -> None:
        """Report this busy time next, in place of the measured one."""
        self._overrides.append(seconds)

    def refresh(self) -> None:
        """Read the current CPU quota: call it while other ranks are awaited, as reading takes longer than all else."""
        if self._allowance is not None:
            self._allowance.refresh()
            # a quota counts in periods of 100 ms
            self.next_refresh = time.perf_counter() + 0.1

    def report(self) -> Measurements:
        """Return the measurements since the last report, of laps whose times are known; NaN where nothing is known."""
        over, pieces, exchanges = self._finished_laps, self._overrides, [self._exchange]
        samples, parts, steps, seconds = 0, 0, 0, 0.0
        self.features = ()
        while over and (pieces or not self.delay or self._events.has_passed(over[0].end)):
            lap = over.popleft()
            self._exchange = lap.exchange
            exchanges.append(lap.exchange)
            compute = 0.0 if pieces else self._compute_seconds(lap)
            if lap.in_report:
                samples, parts, steps = samples + lap.samples, parts + lap.micro_batches, steps + 1
                seconds += compute
                self.features = add_rows(self.features, lap.features)
        comm_seconds = self._latest_exchange_seconds(exchanges)
        if not steps:
            return Measurements(comm_seconds=comm_seconds)
        if pieces:
            seconds = sum(pieces) / len(pieces) * steps
            pieces.clear()
        return Measurements(float(samples), float(parts), float(steps), seconds, comm_seconds)

    def _compute_seconds(self, lap: _Lap) -> float:
        """Return the seconds that the batches of a lap caused, wherever they lie."""
        before_fetch, before_forward = lap.waits_before
        span = self._events.seconds
        loads, waits = [self._loading_seconds(load) for load in lap.loads], self._waiting_seconds(lap)
        total = span(lap.begin, lap.end) - waits[-1] - sum(loads)
        between = max(span(lap.begin, lap.first_forward) - waits[before_forward] - sum(loads[: lap.loads_before]), 0.0)
        end = 0.0 if lap.first_fetch is None else span(lap.begin, lap.first_fetch) - waits[before_fetch]
        local = 0.0
        for load in lap.batches:
            local += (took := self._loading_seconds(load)) - min(took, load.waited_seconds)
        seconds = total + local - between
        regular = self._without_pause(between, seconds, max(lap.samples, self._samples))
        if regular < between:
            seconds += regular
            if self._samples and self._samples != lap.samples and not self._step_end.is_known:
                lap.in_report = False  # what of it was due to the batch before is not known
        else:
            if self._samples:
                end = min(max(end, 0.0), between)
                # beyond a tenth of a lap, the unknown end of the step before makes the report too uncertain
                if not self._step_end.is_known and self._samples != lap.samples and end > 0.1 * (seconds + between):
                    lap.in_report = False
                self._step_end.update(self._samples, end)
            seconds += between - self._step_end.seconds + self._step_end.predict_seconds(lap.samples)
            self._typical_lap = min(lap.samples, self._samples or lap.samples), between, seconds
        self._samples = lap.samples
        loader_process_seconds = sum(load.loader_process_seconds for load in lap.batches)
        return max(seconds * self._quota_factor(total, lap), loader_process_seconds, 0.0)

    def _without_pause(self, between_seconds: float, rest_seconds: float, samples: int) -> float:
        """Return the time between two steps without a pause: longer than the usual, for once, by a good part of a lap.

        What is as long in the next lap too is no pause, but slow.
        """
        if self._typical_lap is None:
            return between_seconds
        regular_samples, regular, lap = self._typical_lap
        scale = max(samples / regular_samples, 1.0)
        pauses = between_seconds > regular * scale + 0.5 * max(lap * scale, rest_seconds)
        self._was_paused, was_paused = pauses, self._was_paused
        return regular * scale if pauses and not was_paused else between_seconds

    def _quota_factor(self, seconds: float, lap: _Lap) -> float:
        """Return by what factor a lap takes longer under the current quota: it may have used a budget saved before."""
        cores = math.inf if self._allowance is None else self._allowance.cores
        before, after = lap.cpu_begin, lap.cpu_end
        if seconds <= 0 or (cores == math.inf and before.throttled == after.throttled):  # as a rule there is no quota
            return 1.0
        spent = CPUSnapshot(after.cpu - before.cpu, after.throttled - before.throttled)
        return sustained_seconds(seconds, spent, cores, self._threads) / seconds

    def _loading_seconds(self, load: _Load) -> float:
        """Return the time that loading took; 0 if it is not known to be over. Events of a device are slow to read."""
        if load.seconds is None and self._is_over(load):
            load.seconds = self._events.seconds(load.begin, load.end)
        return load.seconds or 0.0

    def _waiting_seconds(self, lap: _Lap) -> list[float]:
        """Return the time that the first n of a lap's waits cover, for n from 0 to all; only those that are over.

        They may overlap: gradients of HSDP are awaited while further collectives of the backward pass are.
        """
        totals, covered = [0.0], -math.inf
        for wait in lap.waits:  # in the order in which they began
            total = totals[-1]
            if self._is_over(wait):
                start = 0.0 if wait.begin is lap.begin else self._events.seconds(lap.begin, wait.begin)
                stop = self._events.seconds(lap.begin, wait.end)
                total += max(stop - max(start, covered), 0.0)
                covered = max(covered, stop)
            totals.append(total)
        return totals

    def _latest_exchange_seconds(self, exchanges: Sequence[_Wait | None]) -> float:
        newest = next((wait for wait in reversed(exchanges) if wait is not None and self._is_over(wait)), None)
        return math.nan if newest is None else self._events.seconds(newest.begin, newest.end)

    def _is_over(self, span: _Wait | _Load) -> bool:
        return span.end is not None and (not self.delay or self._events.has_passed(span.end))


def add_rows(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    """Return the elementwise sum of two rows of numbers; either may be empty."""
    if not first or not second:
        return first or second
    return tuple(a + b for a, b in zip(first, second, strict=True))
