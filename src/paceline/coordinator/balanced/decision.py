"""The decision: from a forecast and the sizes in use to the next sizes and the reason. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline._arrays import Mask, Sizes
from paceline.coordinator.balanced import reasons as why
from paceline.coordinator.balanced.limits import Bounds
from paceline.coordinator.balanced.policy import Policy
from paceline.predictors.forecast import Forecast
from paceline.solver.decided import DecidedCurves
from paceline.solver.split import Split

SHOWS = 0.02
"""A worker that ends less than this share before the last one is not reported as held back."""


EXTREME, WORTH_AN_EXTREME = 0.75, 0.01
"""Sizes that deviate from equal ones by more than this share are extreme: they must save this share of an iteration's
time, or less extreme ones are taken. They cost memory on one worker and steady kernels on another."""

LOOK, NOTICEABLE, NOTHING = 16, 0.1, 0.002
"""Each so many iterations, sizes of which one deviates by a noticeable share from an equal batch are given up for equal
ones, if these take no longer than by a share that is nothing."""


@dataclass(eq=False, slots=True)
class Forgone:
    """Time that keeping the sizes is expected to have cost since they were chosen, in iterations.

    The exact gain of the best split is asked of the solver only where a cheap upper bound might be too much to forgo.

    Parameters
    ----------
    known
        Sum of the gains.
    bound
        Sum of the upper bounds since the solver was asked.
    """

    known: float = 0.0
    bound: float = 0.0


@dataclass(eq=False, slots=True)
class Situation:
    """All inputs of a decision.

    Parameters
    ----------
    policy, workers, global_batch, horizon
        Settings of the load balancer.
    forecast, curves
        The forecast for the iteration to plan, and its curves.
    spared
        The curves to compare sizes under: those of the forecast, or hedged ones.
    bounds
        Fewest and most samples of each worker.
    fits
        Whether the sizes in use keep these bounds.
    sizes
        The sizes in use, ``[W]``.
    forgone
        Time that keeping them has cost; a decision adds to it.
    known_before
        Forecast from which the sizes in use were chosen.
    equal
        Sizes as equal as the bounds allow, ``[W]``.
    looks
        Whether to ask if equal or less extreme sizes are as good: only now and then, as it takes time.
    """

    policy: Policy
    workers: tuple[str, ...]
    global_batch: int
    horizon: int
    forecast: Forecast
    curves: DecidedCurves
    spared: DecidedCurves
    bounds: Bounds
    fits: bool
    sizes: Sizes
    forgone: Forgone
    known_before: Forecast
    equal: Sizes
    looks: bool

    def best(self) -> Split:
        """Return the split that ends soonest under the curves to compare sizes under, if that is worth its extremes."""
        best = self._within(np.inf)
        while (far := float(np.abs(best.sizes - self.equal).max())) > EXTREME * self.global_batch / len(self.sizes):
            nearer = self._within(far / 2)
            if nearer.makespan > (1 + WORTH_AN_EXTREME) * best.makespan:
                break
            best = nearer
        return best

    def _within(self, far: float) -> Split:
        """Return the best split whose sizes are so many samples away from equal ones at most."""
        multiple = self.policy.batch_multiple
        far = np.floor(far / multiple) * multiple
        low, high = np.maximum(self.bounds.low, self.equal - far), np.minimum(self.bounds.high, self.equal + far)
        return self.spared.split(self.global_batch, multiple, low, high)

    def nearer(self, kept: Split) -> Split | None:
        """Return equal sizes, or less extreme ones, if those in use gain nothing over them."""
        far, share = float(np.abs(self.sizes - self.equal).max()), self.global_batch / len(self.sizes)
        if far <= NOTICEABLE * share:
            return None
        equal = self.spared.evaluate(self.equal)
        if equal.makespan <= (1 + NOTHING) * kept.makespan:
            return equal
        if far <= EXTREME * share:
            return None
        less = self._within(far / 2)
        return less if less.makespan <= (1 + WORTH_AN_EXTREME) * kept.makespan else None

    def proven(self) -> bool:
        """Return whether the sizes in use are the best without a search."""
        return self.spared.proven(self.sizes, self.policy.batch_multiple, self.bounds.low, self.bounds.high)

    def expected(self, best: Split) -> Split:
        """Return the best split with the times that the forecast itself expects."""
        if self.spared is self.curves:
            return best
        expected = self.curves.evaluate(best.sizes)
        return Split(best.sizes, expected.seconds, expected.makespan, best.status)

    def moved(self, sizes: Sizes) -> why.Reason:
        """Return the sentence about a change to these sizes."""
        return why.moved, (self.workers, self.sizes, sizes, self.forecast.speed, self.known_before)


def decide(now: Situation) -> tuple[Split, float, list[why.Reason]]:
    """Return the split to use, its gain, and the reasons, by the rules of the policy.

    Sizes that violate a bound are corrected at once; any other change must be worth it.
    """
    kept = now.curves.evaluate(now.sizes)
    if not now.fits:
        best = now.expected(now.best())
        broken = (why.broken_bounds, (now.workers, now.sizes, now.bounds.high))
        return best, gain_of(kept.makespan, best.makespan), [now.moved(best.sizes), broken]
    chosen, gain, reasons = _weighted(now, kept)
    if now.bounds.any_limited:
        reasons.append((why.held_back, (now.workers, _held_back(now, chosen))))
    return chosen, gain, reasons


def _weighted(now: Situation, kept: Split) -> tuple[Split, float, list[why.Reason]]:
    """Compare the best split with the sizes in use."""
    plain, cost, forgone = now.spared is now.curves, now.policy.change_cost, now.forgone
    in_use = kept if plain else now.spared.evaluate(now.sizes)
    makespan = in_use.makespan
    if now.looks and (nearer := now.nearer(in_use)) is not None:
        return now.expected(nearer), 0.0, [now.moved(nearer.sizes), (why.no_extremes, ())]
    # A cheap upper bound comes first: in a steady job it usually makes the solver's run unnecessary.
    soonest = now.spared.soonest(now.global_batch)
    at_most = gain_of(makespan, soonest)
    if at_most <= 0:
        return kept, 0.0, [(why.nothing_to_gain, ())]
    forgone.bound += at_most
    if forgone.known + forgone.bound <= cost:
        return kept, 0.0, [(why.too_little, ("at most ", at_most, forgone.known + forgone.bound, cost))]
    best = None if now.proven() else now.best()
    gain = 0.0 if best is None else max(gain_of(makespan, best.makespan), 0.0)
    # Where only bounds are known, the gain is taken to have been as large a share of them as it is now.
    forgone.known, forgone.bound = forgone.known + forgone.bound * gain / at_most, 0.0
    if best is None or gain == 0:
        return kept, 0.0, [(why.nothing_to_gain, ())]
    if forgone.known <= cost:
        return kept, 0.0, [(why.too_little, ("", gain, forgone.known, cost))]
    expected = (why.expected, (best.makespan, makespan, now.horizon, not plain))
    rounding = (why.rounded, (now.policy.batch_multiple, best.makespan, soonest))
    return now.expected(best), gain, [now.moved(best.sizes), expected, rounding]


def _held_back(now: Situation, chosen: Split) -> Mask:
    """Return which workers memory keeps from taking more while they wait for others, ``[W]``."""
    full_W = now.bounds.limited & (chosen.sizes + now.policy.batch_multiple > now.bounds.high)
    early_W = chosen.seconds < (1 - SHOWS) * chosen.makespan
    held_W: Mask = full_W & early_W
    return held_W


def gain_of(kept: float, proposed: float) -> float:
    """Return the share of the time that a proposal saves, given the makespans of keeping and of changing.

    Of no time nothing can be saved:

    >>> gain_of(0.5, 0.375), gain_of(0.0, 0.0)
    (0.25, 0.0)
    """
    return 1.0 - proposed / kept if kept > 0 else 0.0
