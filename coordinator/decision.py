"""The decision: from a forecast and the sizes in use to the next sizes and the reason. Pure. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass

from paceline._arrays import Mask, Sizes
from paceline.coordinator import why
from paceline.coordinator.limits import Bounds
from paceline.coordinator.policy import Policy
from paceline.predictors.forecast import Forecast
from paceline.solver.decided import DecidedCurves
from paceline.solver.risk import caution
from paceline.solver.split import Split

SHOWS = 0.02
"""A worker that ends less than this share before the last one is not reported as held back."""


@dataclass(eq=False, slots=True)
class Situation:
    """All inputs of a decision.

    Parameters
    ----------
    policy, workers, global_batch, horizon
        Settings of the load balancer.
    forecast, curves
        The forecast for the iteration to plan, and its curves.
    bounds
        Fewest and most samples of each worker.
    fits
        Whether the sizes in use keep these bounds.
    sizes
        The sizes in use, ``[W]``.
    chance
        The gain that noise alone may promise.
    known_before
        Forecast from which the sizes in use were chosen.
    risk
        How much to spare workers with noisy forecasts: the policy's, or the one chosen.
    """

    policy: Policy
    workers: tuple[str, ...]
    global_batch: int
    horizon: int
    forecast: Forecast
    curves: DecidedCurves
    bounds: Bounds
    fits: bool
    sizes: Sizes
    chance: float
    known_before: Forecast
    risk: float

    def best(self, spared: DecidedCurves) -> Split:
        """Return the split that ends soonest under these curves."""
        return spared.split(self.global_batch, self.policy.quantum, self.bounds.low, self.bounds.high)

    def expected(self, best: Split, spared: DecidedCurves) -> Split:
        """Return a split under cautious curves with the times that the forecast itself expects."""
        if spared is self.curves:
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
    spared = cautious(now.curves, now.forecast, now.risk) if now.risk else now.curves
    if not now.fits:
        best = now.expected(now.best(spared), spared)
        broken = (why.broken_bounds, (now.workers, now.sizes, now.bounds.high))
        return best, gain_of(kept.makespan, best.makespan), [now.moved(best.sizes), broken]
    chosen, gain, reasons = _weighed(now, kept, spared)
    if now.bounds.any_limited:
        reasons.append((why.held_back, (now.workers, _held_back(now, chosen))))
    return chosen, gain, reasons


def cautious(curves: DecidedCurves, forecast: Forecast, risk: float) -> DecidedCurves:
    """Return the curves to compare sizes under: stretched for noisy workers at a risk above 0."""
    return curves.stretched(caution(forecast.spread, risk)) if risk else curves


def _weighed(now: Situation, kept: Split, spared: DecidedCurves) -> tuple[Split, float, list[why.Reason]]:
    """Compare the best split with the sizes in use."""
    makespan = kept.makespan if spared is now.curves else spared.evaluate(now.sizes).makespan
    least = max(now.policy.dead_band, now.chance) if now.policy.dead_band else 0.0
    # A cheap upper bound comes first: in a steady job it usually makes the solver's run unnecessary.
    soonest = spared.soonest(now.global_batch)
    at_most = gain_of(makespan, soonest)
    if at_most < least:
        return kept, 0.0, [(why.too_little, ("at most ", max(at_most, 0.0), now.policy.dead_band, now.chance))]
    best = now.best(spared)
    gain = gain_of(makespan, best.makespan)
    if gain <= 0:
        return kept, 0.0, [(why.nothing_to_gain, ())]
    if gain < least:
        return kept, 0.0, [(why.too_little, ("", gain, now.policy.dead_band, now.chance))]
    chosen = now.expected(best, spared)
    expected = (why.expected, (best.makespan, makespan, now.horizon, now.risk))
    rounding = (why.rounded, (now.policy.quantum, best.makespan, soonest))
    if spared is not now.curves:
        gain = gain_of(kept.makespan, chosen.makespan)
    return chosen, gain, [now.moved(best.sizes), expected, rounding]


def _held_back(now: Situation, chosen: Split) -> Mask:
    """Return which workers memory keeps from taking more while they wait for others, ``[W]``."""
    full_W = now.bounds.limited & (chosen.sizes + now.policy.quantum > now.bounds.high)
    early_W = chosen.seconds < (1 - max(now.policy.dead_band, SHOWS)) * chosen.makespan
    held_W: Mask = full_W & early_W
    return held_W


def gain_of(kept: float, proposed: float) -> float:
    """Return the share of the time that a proposal saves, given the makespans of keeping and of changing.

    Of no time nothing can be saved:

    >>> gain_of(0.5, 0.375), gain_of(0.0, 0.0)
    (0.25, 0.0)
    """
    return 1.0 - proposed / kept if kept > 0 else 0.0
