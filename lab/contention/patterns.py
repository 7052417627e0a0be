"""Patterns of contention: which competitor is busy beside which worker, and when, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

ON_SECONDS, OFF_SECONDS = 1.2, 1.5
"""Mean length of a burst, and of the calm between two (pattern ``bursty``)."""
STAY_SECONDS = (2.0, 6.0)
"""Shortest and longest stay beside one worker (pattern ``moving``)."""

Span = tuple[float, float]


@dataclass(frozen=True)
class Competitor:
    """A process beside one worker, busy during these spans of seconds since the job began."""

    worker: int
    spans: Sequence[Span]


def plan(pattern: str, workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
    """Return the competitors of each worker, and when they are busy.

    Parameters
    ----------
    pattern
        ``none``; ``steady``: always, beside half of the workers; ``bursty``: on and off at random, beside every
        worker, each competitor independently; ``moving``: from worker to worker every few seconds.
    competitors
        Number beside each contended worker, or the number that move around.
    seconds
        The plan's length; a longer plan with the same seed begins identically.
    seed
        Makes the plan repeatable.

    Raises
    ------
    ValueError
        If there is no such pattern; the message lists the valid ones.

    Examples
    --------
    >>> for competitor in plan("moving", workers=2, competitors=1, seconds=8, seed=0):
    ...     print(competitor.worker, [(round(start, 1), round(stop, 1)) for start, stop in competitor.spans])
    0 [(3.1, 5.2), (7.3, 8)]
    1 [(0.0, 3.1), (5.2, 7.3)]
    """
    if pattern not in PATTERNS:
        raise ValueError(f"pattern must be one of {sorted(PATTERNS)}, got {pattern!r}")
    return PATTERNS[pattern](workers, competitors, seconds, seed)


def _none(workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
    return []


def _steady(workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
    contended = np.random.default_rng(seed).permutation(workers)[: max(1, workers // 2)]
    return [Competitor(int(w), [(0.0, seconds)]) for w in sorted(contended) for _ in range(competitors)]


def _bursty(workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
    sites = [(w, c) for w in range(workers) for c in range(competitors)]
    return [Competitor(w, list(_bursts(np.random.default_rng([seed, w, c]), seconds))) for w, c in sites]


def _bursts(rng: np.random.Generator, seconds: float) -> Iterator[Span]:
    lengths = alternating(rng, OFF_SECONDS, ON_SECONDS)
    start = next(lengths)
    while start < seconds:
        stop = start + next(lengths)
        yield start, min(stop, seconds)
        start = stop + next(lengths)


def alternating(rng: np.random.Generator, calm: float, burst: float) -> Iterator[float]:
    """Yield the seconds of calm, burst, calm and so on, endlessly; exponential, with these means."""
    while True:
        yield float(rng.exponential(calm))
        yield float(rng.exponential(burst))


def _moving(workers: int, competitors: int, seconds: float, seed: int) -> list[Competitor]:
    # A mover consists of one process beside every worker; only one of them is busy at a time.
    plans: list[Competitor] = []
    for c in range(competitors):
        spans: list[list[Span]] = [[] for _ in range(workers)]
        for worker, span in _stays(np.random.default_rng([seed, c]), workers, seconds):
            spans[worker].append(span)
        plans += [Competitor(worker, own) for worker, own in enumerate(spans) if own]
    return plans


def _stays(rng: np.random.Generator, workers: int, seconds: float) -> Iterator[tuple[int, Span]]:
    start, worker = 0.0, int(rng.integers(workers))
    while start < seconds:
        stop = start + float(rng.uniform(*STAY_SECONDS))
        yield worker, (start, min(stop, seconds))
        start, worker = stop, (worker + int(rng.integers(1, max(2, workers)))) % workers


PATTERNS: dict[str, Callable[[int, int, float, int], list[Competitor]]] = {
    "none": _none,
    "steady": _steady,
    "bursty": _bursty,
    "moving": _moving,
}
