"""The decision: from a forecast and the sizes in use to the sizes to use, and the reason. Pure. Axis: W workers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator import why
from paceline.coordinator.limits import Limits
from paceline.coordinator.plan import seconds_of
from paceline.coordinator.policy import Policy, gain_of, largest_gain, turning, within_half_step, within_largest_change
from paceline.predictors import Curves, Forecast
from paceline.solver import caution


@dataclass(frozen=True, eq=False)
class Situation:
    """All that a decision rests upon.

    Parameters
    ----------
    policy, limits, workers, horizon
        What was agreed with the load balancer.
    forecast
        What is known of the iteration to plan.
    sizes
        The sizes in use, ``[W]``.
    direction
        Which way each size went when it last changed, ``[W]``: 1, -1, or 0 if it never did.
    changed_ago
        How many iterations ago that was, ``[W]``.
    chance
        The gain that noise alone may promise.
    """

    policy: Policy
    limits: Limits
    workers: tuple[str, ...]
    horizon: int
    forecast: Forecast
    sizes: Sizes
    direction: Sizes
    changed_ago: Sizes
    chance: float = 0.0

    @cached_property
    def plain_curves(self) -> Curves:
        """The curves of the forecast as they are."""
        return self.forecast.curves

    @cached_property
    def curves(self) -> Curves:
        """The curves to plan with: those of noisy workers are stretched if the policy spares them."""
        curves = self.plain_curves
        if not self.policy.risk:
            return curves
        factor = caution(self.forecast.spread, self.policy.risk)
        return Curves(curves.floor * factor, curves.slope * factor, curves.intercept * factor, curves.limit)

    @cached_property
    def bounds(self) -> tuple[Array, Array, bool]:
        """Fewest and most samples of each worker, ``[W]``, and whether the memory limits leave room for the batch."""
        return self.limits.bounds(self.curves.limit)

    @property
    def least_gain(self) -> float:
        """The gain from which on a change is worth it: beyond the dead-band, and beyond chance."""
        return max(self.policy.dead_band, self.chance) if self.policy.dead_band else 0.0

    def makespan(self, sizes: Sizes) -> float:
        """Return the seconds until the last worker is planned to be done."""
        return float(seconds_of(self.curves, sizes).max())


def decide(now: Situation) -> tuple[Sizes, str]:
    """Return the sizes to use, ``[W]``, and the reason, by the rules of the policy.

    Sizes that broke a bound are put right at once; all other changes have to be worth it.
    """
    low, high, _ = now.bounds
    if ((now.sizes < low) | (now.sizes > high) | (now.sizes % now.policy.quantum != 0)).any():
        best = now.limits.split(now.curves, low, high)
        return best, f"{_moved(now, best)}: {why.broken_bounds(now.workers, now.sizes, high)}"
    kept = now.makespan(now.sizes)
    at_most = largest_gain(now.curves, now.limits.global_batch, kept)
    if at_most < now.least_gain:
        return now.sizes, _too_little(now, f"at most {why.percent(max(at_most, 0.0))}", at_most)
    best = now.limits.split(now.curves, low, high)
    gain = gain_of(kept, now.makespan(best))
    if reason := _reason_to_keep(now, gain):
        return now.sizes, reason
    sizes, cut = _shortened(now, best, low, high)
    made = now.makespan(sizes)
    if made >= kept:
        return now.sizes, f"Kept the sizes: the best split would gain {why.percent(gain)}, but a first step nothing"
    return (
        sizes,
        f"{_moved(now, sizes)}: {why.expected(made, kept, now.horizon, now.policy.risk)}{cut or _rounding(now, made)}",
    )


def _rounding(now: Situation, made: float) -> str:
    """Return what whole quanta cost, against a split of single samples, where that is worth a word."""
    lost = largest_gain(now.curves, now.limits.global_batch, made)
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


def _shortened(now: Situation, best: Sizes, low: Array, high: Array) -> tuple[Sizes, str]:
    """Return the best split within the largest change and, for those that turn round, within half the step.

    The rules narrow the bounds and the solver does the rest: sum, bounds and quantum are kept, and the shortened
    step is again the best there is.
    """
    policy = now.policy
    turns = turning(now.sizes, best, now.direction, now.changed_ago, policy.reversal_memory)
    fewest, most = within_largest_change(now.sizes, policy.largest_change, policy.quantum)
    too_far = (best < fewest) | (best > most)
    if not (turns | too_far).any():
        return best, ""
    half_fewest, half_most = within_half_step(now.sizes, best, turns, policy.quantum)
    low = np.maximum.reduce([low, fewest, half_fewest])
    high = np.minimum.reduce([high, most, half_most])
    return now.limits.split(now.curves, low, high), why.cut(now.workers, too_far, turns)


def _moved(now: Situation, sizes: Sizes) -> str:
    return why.moved(now.workers, now.sizes, sizes, now.forecast.speed)
