"""The record of one round of asynchronous training, as observers get it. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline._arrays import Array, Sizes


@dataclass(frozen=True, eq=False, kw_only=True)
class Round:
    """Record of a round at the server: at least as many pushes as there are workers. Arrays are in their order.

    Parameters
    ----------
    index
        The round's number, from 0 on.
    time
        When it ended, in seconds since the epoch, by the server's clock.
    scheme, bound, batch
        The scheme's name, its bound in versions (``None`` for none), and the samples of a full batch.
    workers
        Names of the workers that take part.
    version, applied
        Updates and samples applied so far.
    sizes
        Samples of each worker's next step, ``[W]``.
    pushes
        How often each pushed in this round, ``[W]``.
    staleness
        Mean staleness of these pushes, ``[W]``, in versions; NaN where there was none that counted.
    expected
        Staleness forecast for the next push, ``[W]``; NaN without a forecast.
    done, wasted
        Samples of each worker that were applied, and computed for nothing, so far, ``[W]``.
    waited
        Seconds that each has waited for others so far, ``[W]``.
    dropped, abandoned, refused
        Samples of all workers whose steps ended like this so far; all of them went back to be drawn again.
    wasted_share
        Share of the samples computed since the server started that was for nothing; ``applied`` may be more than that,
        of a run that was resumed.
    forecast, actual, covered
        Means of the staleness forecast and seen so far, and the share of pushes within the forecast's limit; NaN where
        none was forecast.
    largest
        The largest staleness applied so far.
    stragglers
        Names of the stragglers, by measured or by forecast staleness.
    acted
        Whether workers, sizes or stragglers changed, or a step came to nothing.
    why
        What happened and why, in a sentence or a few.
    """

    index: int
    time: float
    scheme: str
    bound: int | None
    batch: int
    workers: tuple[str, ...]
    version: int
    applied: int
    sizes: Sizes
    pushes: Sizes
    staleness: Array
    expected: Array
    done: Sizes
    wasted: Sizes
    waited: Array
    dropped: int
    abandoned: int
    refused: int
    wasted_share: float
    forecast: float
    actual: float
    covered: float
    largest: int
    stragglers: tuple[str, ...]
    acted: bool
    why: str
