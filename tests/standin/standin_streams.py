"""Streams and events of a CUDA device that is not there: in order, and late by chance.

Work that tensors do is done by the CPU at the call. Its end, and that of :meth:`Streams.sleep`, is seen later, by a
random time, as a device lags behind the process that launches its work. Times between events are those of the work.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import torch

LATEST = 0.004
"""Seconds by which the end of work is seen at most later than it came."""

OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<frozen", "<string>", "contextlib.py")
"""Frames that are not the caller's."""


class Streams:
    """The streams of all devices, the current one of each thread, and who waited for a device.

    Parameters
    ----------
    devices
        How many devices there are.
    seed
        Seed of the lags.
    latest
        The largest lag, in seconds.

    Attributes
    ----------
    waits
        Where a device was waited for: a line ``file:number`` for each time.
    """

    def __init__(self, devices: int = 1, seed: int = 0, latest: float = LATEST) -> None:
        self.devices, self.latest = devices, latest
        self.chance = random.Random(seed)
        self.waits: list[str] = []
        self._default = [Stream(self, device) for device in range(devices)]
        self._here = threading.local()

    def current_device(self) -> int:
        """Return the number of this thread's device: 0 in a thread that chose none, as with CUDA."""
        return getattr(self._here, "device", 0)

    def set_device(self, device) -> None:
        """Choose this thread's device."""
        self._here.device = self.number(device)

    def number(self, device=None) -> int:
        """Return the number of a device given as torch takes it."""
        if device is None:
            return self.current_device()
        if isinstance(device, int):
            return device if device >= 0 else self.current_device()
        name, _, number = str(device).partition(":")
        assert name == "cuda", f"{device} is no CUDA device"
        return int(number) if number else self.current_device()

    def current_stream(self, device=None) -> Stream:
        """Return this thread's stream of a device."""
        number = self.number(device)
        return getattr(self._here, "streams", {}).get(number, self._default[number])

    @contextmanager
    def device(self, device):
        """Choose a device for the block."""
        before = self.current_device()
        self.set_device(device)
        try:
            yield
        finally:
            self.set_device(before)

    @contextmanager
    def stream(self, stream):
        """Choose a stream, and its device, for the block."""
        streams = self._here.__dict__.setdefault("streams", {})
        before = streams.get(stream.device.index)
        streams[stream.device.index] = stream
        try:
            with self.device(stream.device.index):
                yield
        finally:
            streams[stream.device.index] = before or self._default[stream.device.index]

    def synchronize(self, device=None) -> None:
        """Wait for a device."""
        self.waited()
        self._default[self.number(device)].until_seen()

    def sleep(self, seconds: float) -> None:
        """Put work of this length into the current stream."""
        self.current_stream().works(seconds)

    def waited(self) -> None:
        """Note who waits for a device."""
        self.waits.append(caller())

    def read(self) -> None:
        """Wait for the current stream, as the CPU does to read a number of the device."""
        self.waited()
        self.current_stream().until_seen()


class Stream:
    """A queue of work on one device."""

    def __init__(self, streams: Streams, device: int) -> None:
        self.streams, self.device = streams, torch.device("cuda", device)
        self._ends = self._seen = 0.0

    def works(self, seconds: float = 0.0) -> tuple[float, float]:
        """Put work into the queue; return when it ends, and when that is seen."""
        lag = self.streams.chance.uniform(0, self.streams.latest)
        self._ends = max(self._ends, time.perf_counter()) + seconds
        self._seen = max(self._seen, self._ends + lag)  # in order
        return self._ends, self._seen

    def wait_event(self, event: Event) -> None:
        """Let later work wait for an event."""
        self._ends, self._seen = max(self._ends, event.moment), max(self._seen, event.seen)

    def wait_stream(self, other: Stream) -> None:
        """Let later work wait for what another stream has to do now."""
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here."""
        event = event or Event(self.streams)
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is seen to be done."""
        return time.perf_counter() >= self._seen

    def synchronize(self) -> None:
        """Wait for all work."""
        self.streams.waited()
        self.until_seen()

    def until_seen(self) -> None:
        """Sleep until all work is seen to be done."""
        sleep_until(self._seen)


class Event:
    """A moment of a stream. What CUDA answers without a word, as for an event never recorded, is an error here."""

    def __init__(self, streams: Streams, enable_timing: bool = False, blocking: bool = False) -> None:
        self.streams, self.enable_timing = streams, enable_timing
        self.moment = self.seen = float("nan")
        self.device = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of all work that the stream has now."""
        stream = stream or self.streams.current_stream()
        self.device = stream.device
        self.moment, self.seen = stream.works()

    def query(self) -> bool:
        """Whether the device is seen to have passed it."""
        self._require_recorded()
        return time.perf_counter() >= self.seen

    def synchronize(self) -> None:
        """Wait for the device to pass it."""
        self._require_recorded()
        self.streams.waited()
        sleep_until(self.seen)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for it."""
        (stream or self.streams.current_stream()).wait_event(self)

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds to another event that was passed, as this one was."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("both events must be made with enable_timing=True")
        if self.device != end.device:
            raise RuntimeError(f"events of two devices have no time between them: {self.device} and {end.device}")
        if not (self.query() and end.query()):
            raise RuntimeError("the device has not passed both events yet")
        return 1e3 * (end.moment - self.moment)

    def _require_recorded(self) -> None:
        if self.device is None:
            raise RuntimeError("the event was not recorded")


def sleep_until(moment: float) -> None:
    """Sleep until a moment has come."""
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)


def caller() -> str:
    """Return the innermost frame that is neither torch's nor the stand-in's."""
    frame = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in OURS):
        frame = frame.f_back
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
