"""Disturbing rank 1: a quota or competing processes, always or in bursts."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

CALM_SECONDS = 0.3
"""A turn with bursts begins calm for at least so long."""


class Switch(Protocol):
    """Turns a disturbance on and off."""

    def turn(self, on: bool) -> None:
        """Turn it on or off."""
        ...


@dataclass(frozen=True)
class Quota:
    """The CPU quota of a control group, in cores; off is no quota."""

    folder: str
    cores: float

    def turn(self, on: bool) -> None:
        """Set or lift the quota."""
        folder = Path(self.folder)
        if (folder / "cpu.cfs_quota_us").exists():
            period = int((folder / "cpu.cfs_period_us").read_text())
            (folder / "cpu.cfs_quota_us").write_text(str(round(self.cores * period) if on else -1))
        else:
            period = int((folder / "cpu.max").read_text().split()[1])
            (folder / "cpu.max").write_text(f"{round(self.cores * period) if on else 'max'} {period}")


@dataclass(frozen=True)
class Hogs:
    """Competing processes, stopped while the disturbance is off."""

    pids: Sequence[int]

    def turn(self, on: bool) -> None:
        """Let them run, or stop them."""
        for pid in self.pids:
            os.kill(pid, signal.SIGCONT if on else signal.SIGSTOP)


class Bursts:
    """Turns a switch on and off at random times, the same for the same seed.

    Parameters
    ----------
    switch
        What to turn.
    mean
        Mean seconds of a burst and of the calm between two.
    """

    def __init__(self, switch: Switch, mean: float) -> None:
        self.switch = switch
        self.mean = mean
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, seed: int) -> None:
        """Begin, calm at first."""
        self._over.clear()
        self._thread = threading.Thread(target=self._run, args=(seed,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and leave calm behind."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self.switch.turn(False)

    def _run(self, seed: int) -> None:
        on = False
        for seconds in self.spans(seed):
            self.switch.turn(on)
            if self._over.wait(seconds):
                return
            on = not on

    def spans(self, seed: int) -> Iterator[float]:
        """Yield the seconds of calm, burst, calm and so on, without an end.

        >>> spans = Bursts(Hogs([]), mean=2.0).spans(seed=0)
        >>> [round(next(spans), 2) for _ in range(3)]
        [1.66, 2.04, 0.04]
        """
        rng = np.random.default_rng(seed)
        yield CALM_SECONDS + float(rng.exponential(self.mean))
        while True:
            yield float(rng.exponential(self.mean))
