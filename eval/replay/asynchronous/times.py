"""Durations of steps: a trace's speeds, as a function of simulated time. Axes: T rows, W workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Array
from paceline.datasets import Trace


@dataclass(frozen=True, eq=False)
class Times:
    """Speeds that change with time, not with the steps taken: every scheme meets the same fleet.

    Parameters
    ----------
    speed
        Speed in each span of time, ``[T, W]``, in samples/s; after the last span it begins again.
    span
        Length of a span, in seconds.
    comm_seconds
        Time that each step spends on the wire, pull and push together.

    Raises
    ------
    ValueError
        If a speed is not above 0, or a time is out of range.

    Examples
    --------
    Ten samples at 10 samples/s, and the next ten when the speed has halved:

    >>> times = Times(np.array([[10.0], [5.0]]), span=1.0, comm_seconds=0.0)
    >>> times.seconds(0, samples=10, start=0.0), times.seconds(0, samples=10, start=0.5)
    (1.0, 1.5)
    """

    speed: Array
    span: float
    comm_seconds: float

    def __post_init__(self) -> None:
        if self.speed.ndim != 2 or not (np.isfinite(self.speed) & (self.speed > 0)).all():
            raise ValueError("speed must be [T, W], above 0 and finite: fill gaps before")
        if not 0 < self.span < np.inf or not 0 <= self.comm_seconds < np.inf:
            raise ValueError(f"span must be above 0 and comm_seconds 0 or more, got {self.span}, {self.comm_seconds}")

    @classmethod
    def of(cls, trace: Trace, *, workers: int, batch: int, comm_share: float = 0.1) -> Times:
        """Return the times of a fleet like a trace's, scaled so that the median full batch takes a second.

        Parameters
        ----------
        trace
            Its speeds are taken as they are relative to each other; gaps are filled with what was before. A row of
            the trace lasts a second. If more workers are wanted than it has, its workers come again from a later row.
        workers
            How many are wanted.
        batch
            Samples of a full batch.
        comm_share
            Time on the wire, in median full batches.
        """
        speed_TW = _filled(trace.speed)
        rows, have = speed_TW.shape
        # Copies of one worker start at different rows: they would slow down in step otherwise.
        turns = [np.roll(speed_TW[:, w % have], -(w // have) * rows // (workers // have + 1)) for w in range(workers)]
        speed_TW = np.stack(turns, axis=1)
        return cls(batch * speed_TW / np.median(speed_TW), span=1.0, comm_seconds=comm_share)

    @property
    def workers(self) -> int:
        """Size of the fleet."""
        return int(self.speed.shape[1])

    def seconds(self, worker: int, samples: float, start: float) -> float:
        """Return how long a worker that starts then computes on this many samples."""
        row, left, now = int(start // self.span), float(samples), start
        while True:
            speed = self.speed[row % len(self.speed), worker]
            end = max((row + 1) * self.span, now)
            if left <= speed * (end - now):
                return float(now + left / speed - start)
            left -= speed * (end - now)
            row, now = row + 1, end

    def samples(self, worker: int, start: float, end: float) -> float:
        """Return how many samples a worker computes between two times."""
        row, done, now = int(start // self.span), 0.0, start
        while now < end:
            # The row is counted: where it begins, rounding may take a time for one of the row before.
            until = max(min((row + 1) * self.span, end), now)
            done += float(self.speed[row % len(self.speed), worker]) * (until - now)
            row, now = row + 1, until
        return done


def graded_fleet(workers: int, *, rows: int = 400, noise: float = 0.1, seed: int = 0) -> Trace:
    """Return a synthetic fleet of four grades: a quarter each needs once, twice, four and eight times as long.

    >>> graded_fleet(4, noise=0.0).speed[0] * 8
    array([8., 4., 2., 1.])
    """
    rng = np.random.default_rng([workers, seed])
    base_W = 0.5 ** (np.arange(workers) * 4 // workers)
    speed_TW = base_W * np.exp(rng.normal(0.0, noise, (rows, workers)))
    return Trace(np.ones_like(speed_TW), 1.0 / speed_TW, meta={"job": "1x/2x/4x/8x", "source": "synthetic"})


def _filled(speed_TW: Array) -> Array:
    """Fill gaps with the last speed before, and at the beginning with the worker's median."""
    filled_TW = speed_TW.copy()
    for speed_T in filled_TW.T:
        usual = np.median(speed_T[np.isfinite(speed_T)])
        for t in range(len(speed_T)):
            if not np.isfinite(speed_T[t]):
                speed_T[t] = speed_T[t - 1] if t else usual
    return filled_TW
