"""The decision: from a forecast and the sizes in use to the next sizes and the reason. Pure. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline._arrays import Array, Sizes
from paceline._curves import Curves
from paceline.coordinator import why
from paceline.coordinator.limits import Limits
from paceline.coordinator.policy import Policy, gain_of, largest_gain, turning, within_half_step, within_largest_change
from paceline.predictors.forecast import Forecast
from paceline.solver.risk import cautious
from paceline.solver.split import Split, evaluate

SHOWS = 0.02
"""A worker that ends less than this share before the last one is not reported as held back."""


@dataclass(frozen=True, eq=False)
class Situation:
    """All inputs of a decision.

    Parameters
    ----------
    policy, limits, workers, horizon
        Settings of the load balancer.
    forecast
        The forecast for the iteration to plan.
    sizes
        The sizes in use, ``[W]``.
    direction
        Which way each size went when it last changed, ``[W]``: 1, -1, or 0 if it never did.
    changed_ago
        Iterations since that change, ``[W]``.
    chance
        The gain that noise alone may promise.
    speed_before
        Forecast speeds from which the sizes in use were chosen, ``[W]``; NaN where nothing was known.
    risk
        How much to spare workers with noisy forecasts: the policy's, or the one chosen.
    """

    policy: Policy
    limits: Limits
    workers: tuple[str, ...]
    horizon: int
    forecast: Forecast
    sizes: Sizes
    direction: Sizes
    changed_ago: Sizes
    chance: float
    speed_before: Array
    risk: float

    @cached_property
    def curves(self) -> Curves:
        """The forecast's curves, without caution."""
        return self.forecast.curves

    @cached_property
    def cautious_curves(self) -> Curves:
        """The curves to compare sizes with: stretched for noisy workers at a risk above 0."""
        return cautious(self.curves, self.forecast.spread, self.risk) if self.risk else self.curves

    @cached_property
    def bounds(self) -> tuple[Array, Array, bool]:
        """Fewest and most samples of each worker, ``[W]``, and whether the memory limits leave room for the batch."""
        return self.limits.bounds(self.curves.limit)

    @property
    def least_gain(self) -> float:
        """The least gain that is worth a change: the dead-band, or what noise alone may promise if that is more."""
        return max(self.policy.dead_band, self.chance) if self.policy.dead_band else 0.0

    def makespan(self, sizes: Sizes) -> float:
        """Return the planned seconds until the last worker is done."""
        return float(self.cautious_curves.busy_seconds(sizes).max())

    def best(self, low: Array, high: Array) -> Split:
        """Return the split that ends soonest between these bounds, ``[W]``."""
        return self.limits.split(self.curves, low, high, self.forecast.spread, self.risk)

    @cached_property
    def kept(self) -> Split:
        """The sizes in use, under the curves of the forecast."""
        return evaluate(self.curves, self.sizes)


def decide(now: Situation) -> tuple[Split, str]:
    """Return the split to use, and the reason, by the rules of the policy.

    Sizes that violate a bound are corrected at once; any other change must be worth it.
    """
    low, high, _ = now.bounds
    if ((now.sizes < low) | (now.sizes > high) | (now.sizes % now.policy.quantum != 0)).any():
        best = now.best(low, high)
        return best, f"{_moved(now, best.sizes)}: {why.broken_bounds(now.workers, now.sizes, high)}"
    chosen, reason = _weighed(now, low, high)
    return chosen, reason + _held_back(now, chosen, high)


def _held_back(now: Situation, chosen: Split, high: Array) -> str:
    """Return a remark on workers that memory keeps from taking more while they wait for others; empty if none."""
    limited_W = high < now.limits.upper
    if not limited_W.any():
        return ""
    full_W = limited_W & (chosen.sizes + now.policy.quantum > high)
    early_W = chosen.seconds < (1 - max(now.policy.dead_band, SHOWS)) * chosen.makespan
    return why.held_back(now.workers, full_W & early_W)


def _weighed(now: Situation, low: Array, high: Array) -> tuple[Split, str]:
    """Compare the best split with the sizes in use."""
    kept = now.makespan(now.sizes)
    # A cheap upper bound comes first: in a steady job it usually makes the solver's run unnecessary.
    at_most = largest_gain(now.cautious_curves, now.limits.global_batch, kept)
    if at_most < now.least_gain:
        return now.kept, _too_little(now, f"at most {why.percent(max(at_most, 0.0))}", at_most)
    best = now.best(low, high)
    gain = gain_of(kept, now.makespan(best.sizes))
    if reason := _reason_to_keep(now, gain):
        return now.kept, reason
    chosen, cut = _shortened(now, best, low, high)
    made = now.makespan(chosen.sizes)
    if made >= kept:
        return now.kept, (
            f"Kept the sizes: the best split would gain {why.percent(gain)}, but a first step would gain nothing"
        )
    expected = why.expected(made, kept, now.horizon, now.risk)
    return chosen, f"{_moved(now, chosen.sizes)}: {expected}{cut or _rounding(now, made)}"


def _rounding(now: Situation, made: float) -> str:
    """Return what whole quanta cost, against a split of single samples, where that is worth a word."""
    lost = largest_gain(now.cautious_curves, now.limits.global_batch, made)
    return why.rounded(now.policy.quantum, lost) if now.policy.quantum > 1 and lost >= why.WORTH_A_WORD else ""


def _reason_to_keep(now: Situation, gain: float) -> str:
    cooldown = now.policy.cooldown
    if gain <= 0:
        return "Kept the sizes: no split is expected to be faster"
    if gain < now.least_gain:
        return _too_little(now, why.percent(gain), gain)
    ago = int(now.changed_ago.min())
    if ago <= cooldown and gain < now.policy.urgent:
        return (
            f"Kept the sizes: the best split would gain {why.percent(gain)}, but sizes changed "
            f"{why.count(ago, 'iteration')} ago and rest for {why.count(cooldown, 'iteration')} after a change"
        )
    return ""


def _too_little(now: Situation, gain: str, value: float) -> str:
    words = f"Kept the sizes: the best split would gain {gain}"
    if value < now.policy.dead_band:
        return f"{words}, less than the dead-band of {why.percent(now.policy.dead_band)}"
    return f"{words}, which may be chance: so far gains below {why.percent(now.chance)} are not trusted"


def _shortened(now: Situation, best: Split, low: Array, high: Array) -> tuple[Split, str]:
    """Return the best split within the largest change and, for workers that reverse direction, within half the step.

    The rules only narrow the bounds; the solver then keeps sum, bounds and quantum, so the shortened step is again the
    best one possible.
    """
    policy = now.policy
    turns = turning(now.sizes, best.sizes, now.direction, now.changed_ago, policy.reversal_memory)
    fewest, most = within_largest_change(now.sizes, policy.largest_change, policy.quantum)
    too_far = (best.sizes < fewest) | (best.sizes > most)
    if not (turns | too_far).any():
        return best, ""
    half_fewest, half_most = within_half_step(now.sizes, best.sizes, turns, policy.quantum)
    low = np.maximum.reduce([low, fewest, half_fewest])
    high = np.minimum.reduce([high, most, half_most])
    return now.best(low, high), why.cut(now.workers, too_far, turns)


def _moved(now: Situation, sizes: Sizes) -> str:
    return why.moved(now.workers, now.sizes, sizes, now.forecast.speed, now.speed_before)
