"""The sentences that say why a plan is as it is. Axis: W workers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline._arrays import Array, Mask, Sizes

SHOWN = 3
"""This many workers are named; the others are counted."""

WORTH_NAMING = 0.01
"""A worker that is slower by less than this is no reason for anything."""


WORTH_A_WORD = 0.03
"""Rounding that costs less than this is not mentioned."""


def rounded(quantum: int, lost: float) -> str:
    """Return what sizes in whole quanta cost.

    >>> rounded(8, 0.041)
    '; in multiples of 8 samples, which costs at most 4.1 %'
    """
    return f"; in multiples of {quantum} samples, which costs at most {percent(lost)}"


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.0123), percent(0.03), percent(0.618)
    ('1.2 %', '3 %', '62 %')
    """
    value = 100 * share
    return f"{value:.1f}".removesuffix(".0") + " %" if abs(value) < 9.95 else f"{value:.0f} %"


def duration(seconds: float) -> str:
    """Return a time with its unit, in three digits.

    >>> duration(0.0414), duration(0.00033), duration(7.2)
    ('41.4 ms', '330 us', '7.2 s')
    """
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def count(number: int, thing: str) -> str:
    """Return a number of things.

    >>> count(1, "sample"), count(24, "sample")
    ('1 sample', '24 samples')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], more: int = 0) -> str:
    """Return names as one reads them, and how many more there are.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b"], more=3)
    ('a', 'a and b', 'a, b and 3 others')
    """
    words = [*names, "1 other" if more == 1 else f"{more} others"] if more else list(names)
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def moved(workers: Sequence[str], before: Sizes, after: Sizes, speed: Array) -> str:
    """Return who gave how many samples to whom.

    >>> speed = np.array([100.0, 100.0, 38.0, 110.0])
    >>> moved(["g0", "g1", "g2", "g3"], np.array([64] * 4), np.array([70, 72, 40, 74]), speed)
    'Moved 24 samples from g2 (62 % slower than the median) to g3, g1 and g0'
    """
    change = after - before
    givers, more_givers = _largest(-change)
    takers, more_takers = _largest(change)
    names = [workers[i] for i in givers]
    other, than = _usual(workers, speed, givers[0])
    slower = 1 - float(speed[givers[0]]) / other
    if slower >= WORTH_NAMING:
        names[0] += f" ({percent(slower)} slower than {than})"
    samples = count(int(change[change > 0].sum()), "sample")
    to = listed([workers[i] for i in takers], more_takers)
    return f"Moved {samples} from {listed(names, more_givers)} to {to}"


def _usual(workers: Sequence[str], speed: Array, one: int) -> tuple[float, str]:
    """Return the speed with which a worker's is compared, and whose it is."""
    if len(workers) == 2:
        return float(speed[1 - one]), workers[1 - one]
    return float(np.median(speed)), "the median"


def moved_samples(before: Sizes, after: Sizes) -> int:
    """Return how many samples went from one worker to another.

    >>> moved_samples(np.array([64, 64]), np.array([60, 68]))
    4
    """
    return int(np.abs(after - before).sum()) // 2


def with_excitation(reason: str, before: int, now: int) -> str:
    """Return the reason, and what becomes of samples that are moved for a while to learn from it.

    >>> with_excitation("Kept the sizes: no split is expected to be faster", before=0, now=6)
    'Moved 6 samples for a while, to tell fixed time from time per sample; otherwise kept the sizes: no split is
    expected to be faster'
    """
    done = []
    if before:
        done.append(f"took {count(before, 'sample')} back that had been moved for a while")
    if now:
        done.append(f"moved {count(now, 'sample')} for a while, to tell fixed time from time per sample")
    if not done:
        return reason
    if reason.startswith("Kept the sizes"):
        first = " and ".join(done)
        return f"{first[0].upper()}{first[1:]}; otherwise kept{reason.removeprefix('Kept')}"
    return f"{reason}; {' and '.join(done)}"


def expected(made: float, kept: float, horizon: int, risk: float) -> str:
    """Return what a change is expected to save.

    >>> expected(0.041, 0.055, horizon=1, risk=0)
    'the next iteration is expected to take 41 ms instead of 55 ms'
    """
    which = {1: "the next iteration", 2: "the iteration after the next"}.get(horizon, f"the {horizon}th iteration on")
    verb = "is planned, with caution for noisy workers, at" if risk else "is expected to take"
    return f"{which} {verb} {duration(made)} instead of {duration(kept)}"


def cut(workers: Sequence[str], too_far: Mask, turns: Mask) -> str:
    """Return which rules shortened the step, and for whom.

    >>> cut(["g0", "g1"], np.array([True, False]), np.array([False, True]))
    ', held to the largest change for g0 and to half a step for g1, which turned round'
    """
    rules = []
    if too_far.any():
        rules.append(f"to the largest change for {_those(workers, too_far)}")
    if turns.any():
        rules.append(f"to half a step for {_those(workers, turns)}, which turned round")
    return f", held {' and '.join(rules)}"


def broken_bounds(workers: Sequence[str], sizes: Sizes, high: Array) -> str:
    """Return which bound had to be put right.

    >>> broken_bounds(["g0", "g1"], np.array([64, 128]), np.array([256.0, 102.0]))
    'g1 has room for 102 samples only'
    """
    over = sizes > high
    if not over.any():
        return "the sizes before broke a lower bound or the quantum"
    if over.sum() == 1:
        i = int(np.argmax(over))
        return f"{workers[i]} has room for {count(int(high[i]), 'sample')} only"
    return f"{_those(workers, over)} have room for fewer"


def _those(workers: Sequence[str], chosen: Mask) -> str:
    rows = np.flatnonzero(chosen)
    return listed([workers[int(i)] for i in rows[:SHOWN]], max(len(rows) - SHOWN, 0))


def _largest(change: Sizes) -> tuple[list[int], int]:
    """Return who changed most, and how many more changed."""
    order = np.argsort(-change, kind="stable")[:SHOWN]
    changed = int((change > 0).sum())
    return [int(i) for i in order if change[i] > 0], max(changed - SHOWN, 0)
