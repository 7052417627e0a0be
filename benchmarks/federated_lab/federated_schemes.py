"""Schemes that tell a round's clients what to do: balanced batches, and the alternatives to them. Axis: W clients.

Every scheme is given the same forecasts, those of a `FederatedBalancer`, and is asked by the same replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.federated import FederatedBalancer, RoundPlan, RoundReport
from paceline.predictors import Curves
from paceline.solver import split

MOST_STEPS = 8
"""Adaptive local steps go up to this many times the mean, as balanced batches do."""


@dataclass(frozen=True, eq=False)
class ClientAssignment:
    """Instructions to the chosen clients of a round.

    Parameters
    ----------
    sizes, steps
        Samples a local step, and local steps, ``[W]``; a client with none of either is not asked.
    rates
        What each multiplies the learning rate by, ``[W]``.
    deadline
        Seconds after which replies are dropped; infinite where all are waited for.
    """

    sizes: Sizes
    steps: Sizes
    rates: Array
    deadline: float = np.inf

    @property
    def participating(self) -> Mask:
        """Mask of the clients that are asked, ``[W]``."""
        participating: Mask = (self.sizes > 0) & (self.steps > 0)
        return participating


class ClientScheme(Protocol):
    """Chooses the work of a round's clients from the balancer's forecasts."""

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return the instructions to these clients."""
        ...


class Standard:
    """Federated averaging: the same batch and as many steps for all (B. McMahan et al., AISTATS 2017)."""

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return equal batches."""
        return _equal(balancer, balancer.plan(chosen))


class BalancedClients:
    """Batches by speed, equal steps and learning rate: LB-BSP's federated setting."""

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return the balancer's plan."""
        plan = balancer.plan(chosen)
        return ClientAssignment(plan.sizes, np.full(len(chosen), plan.local_steps), np.ones(len(chosen)))


class AdaptiveRate:
    """Batches by speed, and each client's learning rate in proportion to its batch."""

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return the balancer's plan with rates that follow the batches."""
        plan = balancer.plan(chosen)
        return ClientAssignment(plan.sizes, np.full(len(chosen), plan.local_steps), plan.sizes / balancer.batch)


class AdaptiveSteps:
    """Equal batches, and as many local steps as end together."""

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return steps that sum to what equal steps would."""
        plan = balancer.plan(chosen)
        equal = _equal(balancer, plan)
        zero, count = np.zeros(len(chosen)), len(chosen)
        curves = Curves(zero, np.maximum(equal.sizes, 1) / plan.speed, zero, np.full(count, np.inf))
        most = MOST_STEPS * balancer.local_steps
        steps = split(curves, balancer.local_steps * count, lower=1, upper=most, comm=plan.comm_seconds).sizes
        return ClientAssignment(equal.sizes, steps, equal.rates)


class DeadlineDrop:
    """Equal work, but only for clients expected by a deadline; replies that are late after all are dropped.

    After FedCS (T. Nishio and R. Yonetani, ICC 2019), which selects as many clients as fit into a given deadline. Here
    the deadline is that by which a given share of the clients is expected.

    Parameters
    ----------
    share
        Share of the chosen clients that the deadline is to let in, in (0, 1].
    """

    def __init__(self, share: float = 0.7) -> None:
        if not 0.0 < share <= 1.0:
            raise ValueError(f"share must lie in (0, 1], got {share}")
        self.share = share

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return equal work for those that are expected in time."""
        plan = balancer.plan(chosen)
        equal = _equal(balancer, plan)
        seconds = equal.sizes * plan.local_steps / plan.speed + plan.comm_seconds
        deadline = float(np.quantile(seconds, self.share, method="higher"))
        if np.isinf(plan.spread).all():
            return equal  # nobody is known, so nobody is late
        return ClientAssignment(np.where(seconds <= deadline, equal.sizes, 0), equal.steps, equal.rates, 1.1 * deadline)


def _equal(balancer: FederatedBalancer, plan: RoundPlan) -> ClientAssignment:
    """Return the mean batch for all, or all their data where that is less."""
    sizes = np.minimum(balancer.batch, np.maximum(plan.upper, 0)).astype(np.int64)
    return ClientAssignment(sizes, np.full(len(sizes), plan.local_steps), np.ones(len(sizes)))


def report_round(
    balancer: FederatedBalancer,
    chosen: Sequence[str],
    given: ClientAssignment,
    seconds: Array,
    comm: Array,
    in_time: Mask,
) -> None:
    """Report a round's results to the balancer, whatever its clients were asked to do.

    Parameters
    ----------
    chosen, given
        The clients of the round, and what they were asked.
    seconds, comm
        Time each computed and communicated, ``[W]``, in seconds.
    in_time
        Mask of the clients whose reply was used, ``[W]``; the time of one that was dropped is known too, once it
        replies.
    """
    plan = balancer.plan(chosen)
    rows = np.flatnonzero(given.participating & plan.participating)
    samples = (given.sizes * given.steps)[rows]
    report = RoundReport(
        clients=[chosen[int(i)] for i in rows],
        samples=samples,
        seconds=seconds[rows],
        comm_seconds=comm[rows],
        failed=~in_time[rows],
    )
    balancer.observe(plan, report)
