"""The policy: when to change sizes, and by how much at once. Every rule is a small pure function. Axis: W workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline._curves import Curves


@dataclass(frozen=True, kw_only=True)
class Policy:
    """When a load balancer changes sizes, and by how much at once.

    With a good predictor, the defaults change sizes a third as often as no policy would, at almost no loss of time, and
    follow a lasting change within five iterations. Strict cool-downs and half steps cost more than they save where
    changes are free; ``benchmarks/balancer.md`` has the numbers.

    Parameters
    ----------
    warmup
        Iterations of equal batches at the start, in which the predictor learns the workers; 5 as in LB-BSP.
    dead_band
        Sizes are kept unless the best split is expected to save at least this share of the iteration's time.
    cooldown
        Iterations after a change during which sizes are kept, unless the gain is urgent.
    urgent
        Expected gain from which a change does not wait for the cool-down; 1 means it always waits.
    largest_change
        How much a size may grow in one step, relative to itself; it may shrink by the same ratio. 3 means four times or
        a quarter, 1 double or half; infinite means no limit. One quantum is always allowed.
    reversal_memory
        A worker whose size reverses direction within this many iterations of its last change takes half the step; 0
        switches the rule off, 3 suits a fleet whose sizes oscillate.
    excitation
        Size of the excitation, relative to a worker's size, for workers whose fixed time and time per sample the
        predictor cannot separate (those it marks in ``wants_excitation``); 0 switches it off.
    seed
        Seed of the excitation, so that every rank makes the same one.
    quantum
        Every size is a multiple of this many samples.
    lower, upper
        Fewest and most samples: one number for all workers, or a mapping by name. A worker that is not named has a
        lower bound of 1 and no upper bound. Memory limits that a predictor learns come with its forecast.
    risk
        How much to spare workers with noisy forecasts, 0 to 2: see :func:`paceline.solver.caution`. With ``"auto"`` it
        is chosen online, from what each choice would lately have cost.

    Raises
    ------
    ValueError
        If a number is out of range.

    Examples
    --------
    >>> Policy(quantum=8, upper={"gpu1": 128}).dead_band
    0.04
    >>> Policy(dead_band=1.5)
    Traceback (most recent call last):
    ValueError: dead_band must lie in [0, 1), got 1.5
    """

    warmup: int = 5
    dead_band: float = 0.04
    cooldown: int = 1
    urgent: float = 0.08
    largest_change: float = 3.0
    reversal_memory: int = 0
    excitation: float = 0.05
    seed: int = 0
    quantum: int = 1
    lower: int | Mapping[str, int] = 1
    upper: int | Mapping[str, int] | None = None
    risk: float | Literal["auto"] = 0.0

    def __post_init__(self) -> None:
        for name in ("warmup", "cooldown", "reversal_memory", "seed"):
            _require(name, getattr(self, name), getattr(self, name) >= 0, "be 0 or more")
        for name in ("dead_band", "excitation"):
            _require(name, getattr(self, name), 0 <= getattr(self, name) < 1, "lie in [0, 1)")
        _require("urgent", self.urgent, 0 <= self.urgent <= 1, "lie in [0, 1]")
        _require("largest_change", self.largest_change, self.largest_change > 0, "be above 0")
        _require("quantum", self.quantum, self.quantum >= 1, "be at least 1 sample")
        known = self.risk == "auto" if isinstance(self.risk, str) else 0 <= self.risk <= 2
        _require("risk", self.risk, known, "lie in [0, 2], or be 'auto'")
        for name in ("lower", "upper"):
            bounds = getattr(self, name)
            each = bounds.values() if isinstance(bounds, Mapping) else () if bounds is None else (bounds,)
            _require(name, bounds, all(bound >= 0 for bound in each), "be 0 samples or more")


def gain_of(kept: float, proposed: float) -> float:
    """Return the share of the time that a proposal saves, given the makespans of keeping and of changing.

    Of no time nothing can be saved:

    >>> gain_of(0.5, 0.375), gain_of(0.0, 0.0)
    (0.25, 0.0)
    """
    return 1.0 - proposed / kept if kept > 0 else 0.0


def largest_gain(curves: Curves, global_batch: int, kept: float) -> float:
    """Return an upper bound of the share of the makespan ``kept`` that any split can save; 1 if there is no easy bound.

    The bound needs no solver: nothing ends sooner than if all workers ended together on their lines, with fractions of
    samples and without floors or bounds.

    >>> largest_gain(Curves.from_speed(np.array([100.0, 50.0])), 60, kept=0.8)
    0.5
    """
    with np.errstate(all="ignore"):
        rate = 1 / curves.slope
        together = float((global_batch + (curves.intercept * rate).sum()) / rate.sum())
    # A worker whose intercept alone takes longer would idle, which the formula ignores; level lines give NaN here.
    return gain_of(kept, together) if together >= curves.intercept.max() else 1.0


def within_largest_change(current: Sizes, change: float, quantum: int) -> tuple[Array, Array]:
    """Return the fewest and most samples of each worker after one step, ``[W]``.

    >>> within_largest_change(np.array([100, 4]), 0.5, quantum=2)
    (array([66.66666667,  2.        ]), array([150.,   6.]))
    """
    fewest = np.minimum(current / (1 + change), current - quantum)
    if np.isinf(change):
        return fewest, np.full(len(current), np.inf)
    return fewest, np.maximum(current * (1 + change), current + quantum)


def turning(current: Sizes, proposed: Sizes, direction: Sizes, changed_ago: Sizes, memory: int) -> Mask:
    """Return which workers would reverse direction within ``memory`` iterations of their last change, ``[W]``.

    >>> before, now = np.array([1, -1, -1]), np.array([2, 2, 50])
    >>> turning(np.array([64, 64, 64]), np.array([48, 72, 72]), before, now, memory=10)
    array([ True,  True, False])
    """
    turns: Mask = (np.sign(proposed - current) * direction < 0) & (changed_ago <= memory)
    return turns


def within_half_step(current: Sizes, proposed: Sizes, turns: Mask, quantum: int) -> tuple[Array, Array]:
    """Return the fewest and most samples of each worker, ``[W]``, if those that reverse direction go half the way.

    >>> within_half_step(np.array([64, 64]), np.array([48, 80]), np.array([True, False]), quantum=1)
    (array([56.,  0.]), array([inf, inf]))
    """
    half = np.ceil(np.abs(proposed - current) / (2 * quantum)) * quantum
    fewest = np.where(turns & (proposed < current), current - half, 0.0)
    most = np.where(turns & (proposed > current), current + half, np.inf)
    return fewest, most


def excited(
    sizes: Sizes, wanted: Mask, low: Array, high: Array, *, amount: float, quantum: int, seed: tuple[int, int]
) -> Sizes:
    """Return sizes in which random pairs of workers exchange a few samples; sum and bounds are kept.

    >>> sizes, no_limit = np.array([100, 100, 100]), np.full(3, np.inf)
    >>> excited(sizes, np.array([True, True, False]), np.ones(3), no_limit, amount=0.05, quantum=1, seed=(0, 9))
    array([ 95, 105, 100])
    """
    # Seeded by policy and iteration, not by global state: every rank must draw the same pairs.
    chance = np.random.default_rng(seed)
    order = chance.permutation(np.flatnonzero(wanted))
    if len(order) % 2:
        others = np.delete(np.arange(len(sizes)), order[-1])
        order = np.append(order, chance.choice(others)) if len(others) else order[:-1]
    result = sizes.copy()
    for give, take in chance.permuted(order.reshape(-1, 2), axis=1):  # one by one: a worker may be in two pairs
        wish = max(amount * min(sizes[give], sizes[take]), quantum)
        room = min(wish, result[give] - low[give], high[take] - result[take])
        handed = int(max(room, 0) // quantum * quantum)
        result[give] -= handed
        result[take] += handed
    return result


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must {wanted}, got {value}")
