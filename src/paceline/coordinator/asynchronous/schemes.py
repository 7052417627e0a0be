"""Schemes: SaPS and its neighbors, as the same server with other rules.

A scheme is named in :data:`SCHEMES` with what it is in a fleet of W workers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from paceline.coordinator.asynchronous.rules import (
    Aggregation,
    Damping,
    DelayCompensation,
    FreshVersionGate,
    Gate,
    MeanAggregation,
    PacedAggregation,
    Sizing,
    SlackGate,
    balanced_sizes,
    forecast_sizes,
    full_sizes,
    staleness_sizes,
)


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Rules by which a server handles pulls and pushes.

    Parameters
    ----------
    name
        Name in tables.
    damping
        How much a push counts, by its staleness.
    compensation
        Correction of stale gradients, if any.
    aggregation
        How many pushes make an update; by default every push is one.
    gate
        Rule for whether a worker waits before its next step; by default nobody does.
    sizing
        How many samples each worker takes; by default all take full batches.
    bound
        Versions; a push that is staler is dropped and its samples go back. ``None`` is no bound.
    abandons_stale_steps
        Whether a step that has passed the bound is given up at once, so that its samples are drawn again and the worker
        may pull as soon as it asks, instead of when it pushes.
    weights_by_samples
        Whether a push counts in proportion to its samples where pushes are summed. Means always weight by samples.

    Raises
    ------
    ValueError
        If the bound is below 0, or a step is to be given up at no bound.
    """

    name: str
    damping: Damping = lambda staleness, workers: 1.0
    compensation: DelayCompensation | None = None
    aggregation: Aggregation = field(default_factory=Aggregation)
    gate: Gate = field(default_factory=Gate)
    sizing: Sizing = full_sizes
    bound: int | None = None
    abandons_stale_steps: bool = False
    weights_by_samples: bool = False

    def __post_init__(self) -> None:
        if self.bound is not None and self.bound < 0:
            raise ValueError(f"bound must be 0 versions or more, or None for no bound, got {self.bound}")
        if self.bound is None and (self.abandons_stale_steps or isinstance(self.aggregation, PacedAggregation)):
            raise ValueError(f"bound must be set for {self.name}, which gives up or paces steps at a bound, got None")


def saps(workers: int, *, bound: int | None = None, forecast: bool = True) -> Scheme:
    """Return SaPS: staleness is limited, and no worker waits.

    Yu et al. (HPCC 2019) detect stragglers by the version of the parameters, and limit staleness without waiting for
    them. Their exact rules are not public to us; these are ours. Stragglers get smaller batches, so that their pushes
    are not stale. Versions are paced, so that nobody at work passes the bound. Only if the whole fleet pushes once more
    while a straggler stands at the bound, its step is given up, and its samples are assigned to others.

    Parameters
    ----------
    workers
        Size of the fleet.
    bound
        No push that is staler is ever applied. By default ten times the fleet: equally fast workers are
        W - 1 versions stale, and a step may take ten times as long before anything needs to be done.
    forecast
        Whether sizes follow the forecast speeds, or else the staleness already seen.

    Examples
    --------
    >>> saps(workers=8).bound
    80
    """
    return Scheme(
        name="SaPS" if forecast else "SaPS, no forecast",
        aggregation=PacedAggregation(),
        sizing=forecast_sizes if forecast else staleness_sizes,
        bound=10 * workers if bound is None else bound,
        abandons_stale_steps=True,
        weights_by_samples=True,
    )


SCHEMES: dict[str, Callable[[int], Scheme]] = {
    "saps": saps,
    # Stragglers shrink by the staleness that they have shown.
    "saps-measured": lambda workers: saps(workers, forecast=False),
    # With the delay compensation of DC-ASGD-a; the server keeps two more rows of parameters a worker.
    "saps-dc": lambda workers: replace(
        saps(workers), name="SaPS, compensated", compensation=DelayCompensation(2.0, 0.95)
    ),
    # Asynchronous parallel: every push is applied as it is, no worker waits (Recht et al., NIPS 2011).
    "asp": lambda workers: Scheme(name="ASP"),
    # Bulk-synchronous parallel: equal batches, one update of everybody's mean, a barrier.
    "bsp": lambda workers: Scheme(name="BSP", aggregation=MeanAggregation(), gate=FreshVersionGate(), bound=0),
    # Load-balanced BSP: batches that end together, under a barrier (Chen et al., SoCC 2020).
    "lb-bsp": lambda workers: Scheme(
        name="LB-BSP", aggregation=MeanAggregation(), gate=FreshVersionGate(), bound=0, sizing=balanced_sizes
    ),
    # Stale-synchronous parallel: no worker is more than three steps ahead (Ho et al., NIPS 2013).
    "ssp": lambda workers: Scheme(name="SSP", gate=SlackGate(3, 3)),
    # Dynamic SSP: the slack is chosen between two bounds, by the last push times (Zhao et al., ICDCS 2019).
    "dssp": lambda workers: Scheme(name="DSSP", gate=SlackGate(3, 15)),
    # Every update scaled by 1 / W (Jiang et al., SIGMOD 2017), under the slack of SSP.
    "con-sgd": lambda workers: Scheme(
        name="ConSGD", damping=lambda staleness, workers: 1 / max(workers, 1), gate=SlackGate(3, 3)
    ),
    # Updates scaled by 1 / (tau + 1) (Jiang et al., SIGMOD 2017), under the slack of SSP.
    "dyn-sgd": lambda workers: Scheme(
        name="DynSGD", damping=lambda staleness, workers: 1 / (staleness + 1), gate=SlackGate(3, 3)
    ),
    # Staleness-aware ASGD: the learning rate over tau (Zhang et al., IJCAI 2016).
    "sa-asgd": lambda workers: Scheme(name="SA-ASGD", damping=lambda staleness, workers: 1 / max(staleness, 1)),
    # Delay-compensated ASGD: a constant strength, 0.04 as in the paper; an adaptive one, 2 and memory 0.95 (Zheng et
    # al., ICML 2017).
    "dc-asgd-c": lambda workers: Scheme(name="DC-ASGD-c", compensation=DelayCompensation(0.04)),
    "dc-asgd-a": lambda workers: Scheme(name="DC-ASGD-a", compensation=DelayCompensation(2.0, 0.95)),
    # K-sync SGD: the mean of the first K of a version, the rest is canceled (Dutta et al., AISTATS 2018).
    "k-sync": lambda workers: Scheme(
        name="K-sync",
        aggregation=MeanAggregation(max(3 * workers // 4, 1)),
        gate=FreshVersionGate(),
        bound=0,
        abandons_stale_steps=True,
    ),
    # BSP with backup workers: the first K of a version count, late ones are dropped (Chen et al., 2016).
    "backup": lambda workers: Scheme(
        name="backup workers", aggregation=MeanAggregation(max(3 * workers // 4, 1)), gate=FreshVersionGate(), bound=0
    ),
    # K-async SGD: a mean of K different workers, nothing is canceled (Dutta et al., AISTATS 2018).
    "k-async": lambda workers: Scheme(
        name="K-async", aggregation=MeanAggregation(max(workers // 2, 1)), gate=FreshVersionGate()
    ),
    # K-batch-async SGD: a mean of K pushes of any workers, no worker waits (Dutta et al., AISTATS 2018).
    "k-batch-async": lambda workers: Scheme(name="K-batch-async", aggregation=MeanAggregation(max(workers // 2, 1))),
    # FedBuff: a mean of K pushes, each scaled by (1 + tau) ** -0.5 (Nguyen et al., AISTATS 2022).
    "fed-buff": lambda workers: Scheme(
        name="FedBuff",
        aggregation=MeanAggregation(max(workers // 2, 1)),
        damping=lambda staleness, workers: float((1 + staleness) ** -0.5),
    ),
}
"""Every scheme by its name, with the number of workers for its argument."""


def scheme(name: str, workers: int) -> Scheme:
    """Return a scheme by its name; raise a ValueError that lists those there are.

    >>> scheme("ssp", workers=4).gate
    SlackGate(low=3, high=3)
    """
    if name not in SCHEMES:
        raise ValueError(f"scheme must be one of {list(SCHEMES)}, got {name!r}")
    return SCHEMES[name](workers)
