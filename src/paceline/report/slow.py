"""Slow workers: who is slow, since when, and how slow. Axes: T iterations, P pieces of a job, W workers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline._wording import listed
from paceline.report.blocks import named
from paceline.report.shown import answer, say

SLOW = 0.9
"""A worker below this share of the usual speed is slow: less than the spread of machines that are called alike."""

LASTING = 9
"""Iterations of which more than half must be slow: fewer are a stray value."""

PIECES = 400
"""A job is looked at in this many pieces at most."""


@dataclass(frozen=True, kw_only=True)
class Slowness:
    """The longest time for which a worker was slow.

    Parameters
    ----------
    worker
        Its column.
    first, last
        Its first and last slow iteration, as positions in the job.
    lasts
        Whether it was still slow at the end.
    speed
        Its median speed meanwhile, over the usual one.
    lost
        How much it lost: iterations of the whole fleet that its missing speed would make, were all as slow.
    """

    worker: int
    first: int
    last: int
    lasts: bool
    speed: float
    lost: float


def slow_workers(speed_TW: Array) -> list[Slowness]:
    """Return the workers that were slow for a while, the one that lost most first.

    The usual speed is the fleet's median of the iteration; of two workers it is the other's.

    Examples
    --------
    >>> speed_TW = np.full((100, 4), 50.0)
    >>> speed_TW[60:, 2] = 20.0
    >>> [(one.worker, one.first, one.last, one.lasts, one.speed) for one in slow_workers(speed_TW)]
    [(2, 60, 99, True, 0.4)]
    """
    pieces = np.array_split(np.arange(len(speed_TW)), min(PIECES, len(speed_TW)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # nobody may have reported
        relative_TW = speed_TW / _usual(speed_TW)
        relative_PW = _smooth(_medians(relative_TW, len(pieces)), -(-LASTING // len(pieces[0])))
    starts = [int(piece[0]) for piece in pieces] + [len(speed_TW)]
    found = [_longest(w, relative_P, starts) for w, relative_P in enumerate(relative_PW.T)]
    return sorted((one for one in found if one is not None), key=lambda one: -one.lost)


def who_is_slow(speed_TW: Array, workers: Sequence[str], index_T: Sequence[int] | NDArray[Any]) -> dict[str, Any]:
    """Return the verdict on who is slow, and since which iteration."""
    found, asks = slow_workers(speed_TW), "Who is slow?"
    if len(workers) < 2:
        return answer(asks, "One worker", say("There is nobody to compare it with."))
    if not np.isfinite(speed_TW).any():
        return answer(asks, "Not known", say("No worker reported a time."))
    if not found:
        return answer(
            asks,
            "Nobody",
            say("No worker stayed more than {least} below the usual speed.", least=(1 - SLOW, "percent")),
        )
    worst, other = found[0], "the other" if len(workers) == 2 else "the median"
    slower, first = (1 - worst.speed, "percent"), (float(index_T[worst.first]), "count")
    if not worst.lasts:
        last = (float(index_T[worst.last]), "count")
        text = f"It was {{slower}} slower than {other} from iteration {{first}} to {{last}}."
        said = say(text, slower=slower, first=first, last=last)
    elif worst.first:
        said = say(f"It has been {{slower}} slower than {other} since iteration {{first}}.", slower=slower, first=first)
    else:
        said = say(f"It has been {{slower}} slower than {other} ever since the first iteration.", slower=slower)
    if 2 * len(found) > len(workers) > 2 and not worst.lasts:
        turns = say(
            "{count} of {workers} workers were slow at times.",
            count=(len(found), "count"),
            workers=(len(workers), "count"),
        )
        longest = say("The longest time was that of {worker}:", worker=(named(workers[worst.worker]), "text"))
        return answer(asks, "It moves", turns, longest, said | {"text": said["text"].replace("It was", "it was")})
    if len(found) == 1:
        return answer(asks, named(workers[worst.worker]), said)
    names = listed([named(workers[one.worker]) for one in found[1:3]], max(len(found) - 3, 0))
    too = say(
        "{names} {were} slow for a while too.",
        names=(names, "text"),
        were=("was" if len(found) == 2 else "were", "text"),
    )
    return answer(asks, named(workers[worst.worker]), said, too)


def _usual(speed_TW: Array) -> Array:
    if speed_TW.shape[1] == 2:
        return speed_TW[:, ::-1]
    return np.asarray(np.nanmedian(speed_TW, axis=1, keepdims=True))


def _medians(values_TW: Array, count: int) -> Array:
    """Return the medians of pieces, ``[P, W]``, as ``numpy.array_split`` cuts them: those longer by one come first.

    Pieces of one length are taken at once: a median a piece takes longer than all else on a page.
    """
    workers, (size, longer) = values_TW.shape[1], divmod(len(values_TW), count)
    first_TW, rest_TW = np.split(values_TW, [longer * (size + 1)])
    parts = first_TW.reshape(longer, size + 1, workers), rest_TW.reshape(count - longer, size, workers)
    return np.concatenate([np.nanmedian(part, axis=1) for part in parts])


def _smooth(values_PW: Array, window: int) -> Array:
    """Return running medians of an odd window, shortened at both ends."""
    half = window // 2
    if not half or len(values_PW) < 2:
        return values_PW
    filled = np.pad(values_PW, ((half, half), (0, 0)), constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(filled, 2 * half + 1, axis=0)
    return np.asarray(np.nanmedian(windows, axis=-1))


def _longest(worker: int, relative_P: Array, starts: Sequence[int]) -> Slowness | None:
    """Return the episode of a worker in which it lost most; None if it was never slow."""
    slow_P = relative_P < SLOW
    edges: NDArray[np.int64] = np.flatnonzero(np.diff(np.concatenate([[False], slow_P, [False]]).astype(np.int8)))
    found = []
    for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        first, last = starts[begin], starts[end] - 1
        if last - first + 1 < min(LASTING // 2 + 1, starts[-1]):
            continue
        speed = float(np.median(relative_P[begin:end]))
        lost = (last - first + 1) * (1.0 - speed)
        lasts = end == len(relative_P)
        found.append(Slowness(worker=worker, first=first, last=last, lasts=lasts, speed=speed, lost=lost))
    return max(found, key=lambda one: one.lost, default=None)
