"""Disturb rank 1 with a quota or competing processes, all the time or in bursts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


def set_quota(folder: str | Path, cores: float, is_active: bool) -> None:
    """Set the CPU quota of a control group, or remove it."""
    folder = Path(folder)
    if (folder / "cpu.cfs_quota_us").exists():
        period = int((folder / "cpu.cfs_period_us").read_text())
        (folder / "cpu.cfs_quota_us").write_text(str(round(cores * period) if is_active else -1))
    else:
        period = int((folder / "cpu.max").read_text().split()[1])
        (folder / "cpu.max").write_text(f"{round(cores * period) if is_active else 'max'} {period}")


def set_running(pids: Sequence[int], is_active: bool) -> None:
    """Continue or stop competing processes."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT if is_active else signal.SIGSTOP)


class Bursts:
    """Calls a switch with True and False at random times, the same for the same seed, ``mean`` seconds apart."""

    def __init__(self, switch: Callable[[bool], object], mean: float) -> None:
        self.switch = switch
        self.mean = mean
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, seed: int) -> None:
        """Start, with a calm span first."""
        self._stop_event.clear()
        self._thread = threading.Thread(target=self._run, args=(seed,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and leave the disturbance off."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join()
        self.switch(False)  # only after the thread has ended, which might turn it on again otherwise

    def _run(self, seed: int) -> None:
        on = False
        for seconds in self.durations(seed):
            self.switch(on)
            if self._stop_event.wait(seconds):
                return
            on = not on

    def durations(self, seed: int) -> Iterator[float]:
        """Yield the seconds of calm, burst, calm and so on, forever.

        >>> durations = Bursts(print, mean=2.0).durations(seed=0)
        >>> [round(next(durations), 2) for _ in range(3)]
        [1.66, 2.04, 0.04]
        """
        rng = np.random.default_rng(seed)
        yield 0.3 + float(rng.exponential(self.mean))  # at least 0.3 s of calm at the start of a turn
        while True:
            yield float(rng.exponential(self.mean))


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Disturbance of rank 1."""

    quota: float | None = None  # cores that it may use meanwhile
    num_hogs: int = 0  # processes that compete for its core
    between_seconds: float = 0.0  # of other work between two iterations, such as reading data or writing logs
    burst_seconds: float | None = None  # mean length of a disturbance, and of the calm between two; None for permanent

    def __str__(self) -> str:
        """Return a phrase that describes the disturbance."""
        what = f"a quota of {self.quota:.0%} of a core" if self.quota else f"{self.num_hogs} competing processes"
        if self.between_seconds:
            what = f"{self.between_seconds * 1e3:g} ms of other work after each iteration"
        elif not self.quota and not self.num_hogs:
            return "no rank is disturbed"
        if self.burst_seconds is None:
            return f"rank 1 has {what}, all the time"
        return f"rank 1 has {what}, on and off at random, {self.burst_seconds:g} s each on average"


DISTURBANCES = {
    "none": Disturbance(),
    "quota": Disturbance(quota=0.5),
    "hogs": Disturbance(num_hogs=3),
    "bursty": Disturbance(quota=0.25, burst_seconds=2.0),
    "between": Disturbance(between_seconds=0.04),
    "bursty-hogs": Disturbance(num_hogs=3, burst_seconds=2.0),
}
"""The kinds of disturbance, by name. Quotas need writable control groups."""
