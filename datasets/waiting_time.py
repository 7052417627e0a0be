"""Causes of waiting: workers of uneven speed, or uneven work. Axes: T iterations, W workers.

Each iteration is replayed twice. Once every worker keeps its own speed of that iteration but gets equal work: what is
waited then comes from uneven workers. Once every worker keeps its own work but all have the same speed: what is waited
then comes from uneven work. The two need not add up to the waiting that was measured: work that follows the speeds, as
a balancer divides it, makes it less than either, and a slow worker with much work makes it more.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline._text import percent
from paceline.datasets.trace import Trace

MAX_WALL_SPREAD = 0.02
"""Wall times differ by less than this share."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Shares of the computing time that workers wait, by cause; ``str`` of it is a text to read. NaN where unknown.

    This is the library's one definition of waiting, for recordings, replays, live runs and their pages. All shares are
    the sum over iterations of the mean time that workers wait for the slowest one, divided by the sum of the slowest
    one's times: measured, or in the replay in question. Communication is left out.

    Parameters
    ----------
    share
        Of the time measured.
    from_workers
        Of the time with equal work, every worker at its own speed of that iteration.
    from_work
        Of the time with the recorded work, every worker at the same speed.
    iterations
        Iterations in which all workers that reported a time had work recorded too.
    of
        Iterations in which at least two workers reported a time.
    is_wall_time
        True if all have the same time in every iteration: then it holds the waiting, and nothing is known.
    """

    share: float = float("nan")
    from_workers: float = float("nan")
    from_work: float = float("nan")
    iterations: int = 0
    of: int = 0
    is_wall_time: bool = False

    @property
    def is_known(self) -> bool:
        """True if the waiting could be divided by cause."""
        return self.iterations > 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences that explain the shares, or why waiting cannot be divided by cause."""
        if self.is_wall_time:
            return ("How much workers wait is unknown: all have the same time in every iteration, waiting included.",)
        if not self.of:
            return ("How much workers wait is unknown: no two workers reported a time in the same iteration.",)
        total = f"Workers wait {percent(self.share)} of the computing time for the slowest one."
        if not self.is_known:
            return (
                total,
                "How much of it comes from uneven samples is unknown: no work was recorded with the times.",
            )
        part = "" if self.iterations == self.of else f", in {self.iterations} of {self.of} iterations"
        workers, work = percent(self.from_workers), percent(self.from_work)
        causes = (
            f"From uneven workers: with equal work, each at its own speed, they would wait {workers}{part}.",
            f"From uneven samples: with the recorded work, all at one speed, they would wait {work}{part}.",
        )
        # shares of the time below half a percent are not named
        if self.share + 0.005 < min(self.from_workers, self.from_work):
            return (total, *causes, "Together less than either: the work follows the speeds.")
        return (total, *causes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; ``None`` for unknown numbers."""
        about = asdict(self) | {"sentences": list(self.sentences)}
        return {key: None if isinstance(value, float) and np.isnan(value) else value for key, value in about.items()}

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def waiting(seconds_TW: Array, work_TW: Array | None) -> Waiting:
    """Return how much workers wait, and how much of that comes from uneven speeds, and from uneven work.

    Own compute times in seconds, and the cost of each worker's samples in any unit, ``[T, W]`` each, NaN where not
    known. Iterations in which fewer than two workers reported are left out. What a cost leaves out of the work counts
    as speed: a part of the time that does not depend on the work, or noise.

    Workers of equal speed; in the second iteration one has twice the work:

    >>> found = waiting(np.array([[1.0, 1.0], [2.0, 1.0]]), np.array([[8.0, 8.0], [16.0, 8.0]]))
    >>> found.share.__round__(3), found.from_workers, found.from_work.__round__(3)
    (0.167, 0.0, 0.167)

    Equal work, but one worker is half as fast:

    >>> print(waiting(np.array([[2.0, 1.0]]), np.array([[8.0, 8.0]])))
    Workers wait 25% of the computing time for the slowest one.
    From uneven workers: with equal work, each at its own speed, they would wait 25%.
    From uneven samples: with the recorded work, all at one speed, they would wait 0%.
    """
    seconds_TW = np.where(np.isfinite(seconds_TW) & (seconds_TW > 0), seconds_TW, np.nan)
    there_TW = np.isfinite(seconds_TW)
    several_T = there_TW.sum(axis=1) >= 2
    if not several_T.any():
        return Waiting()
    share, of = _waiting_share(seconds_TW[several_T]), int(several_T.sum())
    if work_TW is None:
        return Waiting(share=share, of=of)
    known_T = several_T & ((np.isfinite(work_TW) & (work_TW > 0)) | ~there_TW).all(axis=1)
    if not known_T.any():
        return Waiting(share=share, of=of)
    seconds_TW, work_TW = seconds_TW[known_T], np.where(there_TW, work_TW, np.nan)[known_T]
    compute_TW = np.nanmean(work_TW, axis=1, keepdims=True) * (seconds_TW / work_TW)
    alike_TW = work_TW * (np.nansum(seconds_TW, axis=1, keepdims=True) / np.nansum(work_TW, axis=1, keepdims=True))
    return Waiting(
        share=share,
        from_workers=_waiting_share(compute_TW),
        from_work=_waiting_share(alike_TW),
        iterations=int(known_T.sum()),
        of=of,
    )


def waiting_of(trace: Trace) -> Waiting:
    """Return how much the workers of a recorded job wait, by cause."""
    return Waiting(is_wall_time=True) if holds_wall_times(trace) else waiting(trace.seconds, trace.work)


def holds_wall_times(trace: Trace) -> bool:
    """Return whether a trace holds the times of whole iterations, which are the same on all workers."""
    complete_T = np.isfinite(trace.seconds).all(axis=1)
    return not has_measured_waiting(trace) and are_wall_times(trace.seconds[complete_T])


def has_measured_waiting(trace: Trace) -> bool:
    """Return whether waiting was recorded beside the times, which are then busy times."""
    return trace.wait_seconds is not None and bool(np.isfinite(trace.wait_seconds).any())


def are_wall_times(seconds_TW: Array) -> bool:
    """Return whether all workers have the same time in every iteration, as they wait for each other."""
    if len(seconds_TW) < 3 or seconds_TW.shape[1] < 2:
        return False
    spread_T = np.ptp(seconds_TW, axis=1) / seconds_TW.max(axis=1)
    # times within 0.1% are the same
    if np.mean(spread_T <= 1e-3) > 0.9:
        return True
    mean_T = seconds_TW.mean(axis=1)
    deviation = np.median(np.abs(seconds_TW - mean_T[:, None]))
    # so are times that differ little, and vary together four times as much
    return bool(
        np.median(spread_T) < MAX_WALL_SPREAD and np.median(np.abs(mean_T - np.median(mean_T))) > 4.0 * deviation
    )


def _waiting_share(seconds_TW: Array) -> float:
    longest_T = np.nanmax(seconds_TW, axis=1)
    return float((longest_T - np.nanmean(seconds_TW, axis=1)).sum() / longest_T.sum())
