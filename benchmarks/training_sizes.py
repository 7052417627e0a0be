"""How large everything in training.py is, and how its times are written."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from training_alone import Found


@dataclass(frozen=True)
class Sizes:
    """How large everything is: by default as in the targets."""

    workers: int = 1000
    steps: int = 2000
    largest: int = 100_000
    megabytes: tuple[int, ...] = (100, 2_000, 20_000)
    full: int = 9_400
    passes: int = 3
    turns: int = 3


WALL, PROCESSOR = 0, 1
"""Places of the two times that a clock returns."""

QUICK = Sizes(workers=100, steps=300, largest=1000, megabytes=(20, 60), full=40, turns=1)


def taken(turns: list[Found], key: str) -> str:
    """Return the median seconds of some turns, by the clock and of the processor."""
    wall, processor = (median(turn[key][k] for turn in turns) for k in (WALL, PROCESSOR))
    return " | ".join(f"{seconds:.{2 if seconds < 10 else 1}f} s" for seconds in (wall, processor))


def ratio(mine: list[Found], theirs: list[Found], key: str, clock: int = PROCESSOR) -> float:
    """Return the ratio of two medians."""
    mine_s, theirs_s = (float(median(one[key][clock] for one in turns)) for turns in (mine, theirs))
    return mine_s / theirs_s


def medians(turns: list[Found]) -> str:
    """Return in words what the numbers of a table are.

    >>> medians([{}, {}])
    'Medians of 2 turns'
    """
    return "One turn" if len(turns) == 1 else f"Medians of {len(turns)} turns"
