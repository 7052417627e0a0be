"""Schemes: SaPS and its neighbors, as the same server with other rules.

The rules choose batch sizes, gates, damping, delay compensation and aggregation. A scheme is named in :data:`SCHEMES`
with what it is in a fleet of W workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

import numpy as np

from paceline._arrays import Array, Mask, Sizes
from paceline.coordinator.asynchronous.optimizer import Vector, is_finite
from paceline.coordinator.asynchronous.workers import Workers, WorkerState
from paceline.solver import split


@dataclass(frozen=True, eq=False)
class SizingInputs:
    """Inputs from which a rule chooses the batch sizes; arrays are ``[W]``."""

    batch: int
    """Samples of a full batch."""
    sizes: Sizes
    """Those in use."""
    staleness: Array
    """Smoothed, in versions; NaN where a worker has not pushed yet."""
    speed: Array
    """Forecast speeds, in samples/s; all alike without a forecast."""
    has_reports: Mask
    """Whether the forecast rests on a report."""
    overhead_seconds: Array
    """Time of a step besides computing, in seconds."""
    spread: Array
    """Relative standard deviation of the forecast speeds; infinite where it is not known."""


Sizing: TypeAlias = Callable[[SizingInputs], Sizes]
"""Samples of each worker's next step, ``[W]``, at least 1; asked after every round: as many pushes as workers."""


def full_sizes(inputs: SizingInputs) -> Sizes:
    """Return full batches for everybody."""
    return np.full(len(inputs.sizes), inputs.batch, dtype=np.int64)


def forecast_sizes(inputs: SizingInputs) -> Sizes:
    """Return less for slow workers, so that all compute equally long, as far as forecasts allow. Paceline's own rule.

    The fastest takes a full batch. Nobody else is to compute longer, but for what the forecast's spread leaves open: a
    worker shrinks by as much as it is certainly slower. A smaller batch costs the same communication time for fewer
    samples. Where all of them together would cost more than 5% of the samples a second, all times are stretched until
    they do not.

    Examples
    --------
    >>> nothing, full, speed = np.zeros(3), np.array([32, 32, 32]), np.array([80.0, 40.0, 10.0])
    >>> known = {"staleness": nothing, "speed": speed, "has_reports": speed > 0, "spread": nothing}
    >>> forecast_sizes(SizingInputs(32, full, overhead_seconds=nothing, **known))
    array([32, 16,  4])

    Communication takes as long as the fastest computes:

    >>> forecast_sizes(SizingInputs(32, full, overhead_seconds=np.full(3, 0.4), **known))
    array([32, 28,  7])
    """
    # An eighth of a full batch until a worker's speed is known: a straggler that starts with a full one is stale
    # before anything is known of it, and early gradients are the largest.
    sizes_W = np.full(len(inputs.sizes), 0.125 * inputs.batch)
    if (known := inputs.has_reports).any():
        speed_W, spread_W = inputs.speed[known], np.nan_to_num(inputs.spread[known], posinf=0.0)
        fastest = int(speed_W.argmax())
        # Speeds within one standard deviation of their ratio count as equal.
        unsure_W = np.hypot(spread_W, spread_W[fastest])
        slower_W = np.maximum(speed_W[fastest] / speed_W * np.exp(-unsure_W), 1.0)
        sizes_W[known] = inputs.batch / _affordable_divisors(
            slower_W, inputs.batch / speed_W, inputs.overhead_seconds[known]
        )
    # Rounded up, as a part of a sample is not worth its communication; but not for the sake of a last digit.
    return np.clip(np.ceil(sizes_W * (1 - 1e-9)), 1, inputs.batch).astype(np.int64)


def staleness_sizes(inputs: SizingInputs) -> Sizes:
    """Return less for stragglers by the staleness that they have shown: the same aim, without a forecast.

    >>> staleness, speed = np.array([0.5, 2.0]), np.ones(2)
    >>> staleness_sizes(
    ...     SizingInputs(32, np.array([32, 32]), staleness, speed, speed > 0, np.zeros(2), np.zeros(2))
    ... )
    array([32, 16])
    """
    allowed = len(inputs.sizes) - 1
    if not allowed:  # nobody else pushes: nothing is stale
        return full_sizes(inputs)
    # Versions. The smoothed staleness of a worker that pushes alone fades towards 0; below this it counts as this.
    ratio_W = np.where(inputs.staleness > 0, allowed / np.maximum(inputs.staleness, 1e-6), 1.0)
    # Half the way in the logarithm: a smoothed staleness answers late, and the full way would swing.
    sizes_W = np.asarray(inputs.sizes * np.sqrt(ratio_W), dtype=np.float64)
    # The largest is a full batch: staleness shows ratios only, and all sizes together would drift.
    sizes_W = sizes_W * (inputs.batch / sizes_W.max())
    integer_W: Sizes = np.clip(np.floor(sizes_W * (1 + 1e-9)), 1, inputs.batch).astype(np.int64)
    return integer_W


def balanced_sizes(inputs: SizingInputs) -> Sizes:
    """Return batches that end together and add up to W full ones: LB-BSP (Chen et al., SoCC 2020), under a barrier.

    >>> speed = np.array([20.0, 10.0])
    >>> balanced_sizes(
    ...     SizingInputs(30, np.array([30, 30]), np.zeros(2), speed, speed > 0, np.zeros(2), np.zeros(2))
    ... )
    array([40, 20])
    """
    return split(inputs.speed, inputs.batch * len(inputs.sizes), lower=1, comm=inputs.overhead_seconds).sizes


def _affordable_divisors(max_divisor_W: Array, full_batch_seconds_W: Array, comm_seconds_W: Array) -> Array:
    """Return the factor by which each full batch may shrink, ``[W]``, at most ``max_divisor_W``, at the allowed cost.

    Times are those of computing a full batch and of communication, in seconds.
    """
    # Smaller batches may cost 5% of the samples a second of full ones, as each pays for its wire.
    needed = 0.95 * (1 / (comm_seconds_W + full_batch_seconds_W)).sum()

    def divisors(stretch: float) -> Array:
        return np.maximum(max_divisor_W / stretch, 1.0)

    def is_affordable(stretch: float) -> bool:
        parts_W = 1 / divisors(stretch)
        return bool((parts_W / (comm_seconds_W + full_batch_seconds_W * parts_W)).sum() >= needed)

    if is_affordable(1.0):
        return max_divisor_W
    low, high = 0.0, float(np.log(max_divisor_W.max()))
    # Steps of the search for the shortest times at that price.
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if is_affordable(float(np.exp(middle))) else (middle, high)
    return divisors(float(np.exp(high)))


@dataclass(eq=False)
class DelayCompensation:
    """Corrects a gradient for the change of the parameters since it was pulled (DC-ASGD; Zheng et al., ICML 2017).

    DC-ASGD-c: ``g + strength * g * g * (w - w_pulled)`` (equation 10); g * g stands for the diagonal of the Hessian.
    DC-ASGD-a, with a ``decay``: ``strength / sqrt(ms + 1e-10)`` takes the place of the strength (equation 14).

    Parameters
    ----------
    strength
        Lambda of the paper.
    decay
        Weight of the past in ms, in [0, 1): ms <- decay ms + (1 - decay) g * g, kept for each worker.
    """

    strength: float
    decay: float | None = None
    _mean_squares: dict[str, Vector] = field(default_factory=dict, init=False, repr=False)
    """The mean square of each worker's gradients, ``[P]``."""

    def compensate(self, worker: str, gradient: Vector, parameters: Vector, pulled_parameters: Vector) -> Vector:
        """Return the gradient to apply at ``parameters``, ``[P]``, for one computed at ``pulled_parameters``.

        One that overflows is not applied, and must not change the state.
        """
        square_P: Vector = gradient * gradient
        moved_P: Vector = parameters - pulled_parameters
        if self.decay is None:
            return gradient + self.strength * square_P * moved_P
        mean_P: Vector = (1 - self.decay) * square_P
        if worker in self._mean_squares:
            mean_P += self.decay * self._mean_squares[worker]
        compensated_P: Vector = gradient + self.strength / np.sqrt(mean_P + 1e-10) * square_P * moved_P
        if is_finite(compensated_P):
            self._mean_squares[worker] = mean_P
        return compensated_P

    def state_dict(self) -> dict[str, Vector]:
        """Return the state, arrays of ``[P]``."""
        return {worker: square_P.copy() for worker, square_P in self._mean_squares.items()}

    def load_state_dict(self, state: Mapping[str, Vector]) -> None:
        """Resume from what ``state_dict`` returned."""
        self._mean_squares = {worker: square_P.copy() for worker, square_P in state.items()}


Damping: TypeAlias = Callable[[int, int], float]
"""Factor of the learning rate, in (0, 1], for a push of some staleness in a fleet of some size."""


@dataclass(frozen=True)
class Gate:
    """Decides whether a worker may start a step, and again after every push until it may. By this one nobody waits."""

    def on_push(self, worker_state: WorkerState, fleet: Workers) -> None:
        """Update the worker's state after a push."""

    def may_start(self, worker_state: WorkerState, fleet: Workers) -> bool:
        """Return whether a worker may start its next step now."""
        return True


@dataclass(frozen=True)
class FreshVersionGate(Gate):
    """Nobody starts twice from the same version: the barrier of BSP, and of K-sync."""

    def may_start(self, worker_state: WorkerState, fleet: Workers) -> bool:
        return worker_state.last_version < fleet.version


@dataclass(frozen=True)
class SlackGate(Gate):
    """At clock c a worker may start while c <= min c + low (SSP; Ho et al., NIPS 2013, section 2).

    Above that the slack is chosen up to ``high`` steps, so that the fastest waits least (DSSP; Zhao et al., ICDCS 2019,
    algorithm 2): a worker that passes the lower bound as the fastest gets the number of extra steps after which, by the
    last two push times of it and of the slowest, it would wait least for the slowest's next push.
    """

    low: int
    high: int

    def on_push(self, worker_state: WorkerState, fleet: Workers) -> None:
        slowest = fleet.slowest
        if worker_state.extra_steps:
            worker_state.extra_steps -= 1
        elif worker_state.clock == slowest.clock + self.low + 1 and worker_state.clock == max(
            other.clock for other in fleet
        ):
            # Granted once, when the bound is passed: whoever has used its steps up waits for the slowest.
            worker_state.extra_steps = self._choose_extra_steps(worker_state, slowest)

    def may_start(self, worker_state: WorkerState, fleet: Workers) -> bool:
        return worker_state.extra_steps > 0 or worker_state.clock <= fleet.slowest.clock + self.low

    def _choose_extra_steps(self, fast: WorkerState, slowest: WorkerState) -> int:
        """Return the number of extra steps after which the wait for the slowest's next push is shortest."""
        if len(fast.push_times) < 2 or len(slowest.push_times) < 2:
            return 0
        pace, slow_pace = fast.push_times[1] - fast.push_times[0], slowest.push_times[1] - slowest.push_times[0]
        if not (pace > 0 and slow_pace > 0):  # no times were given
            return 0

        def wait(extra: int) -> float:
            ready = fast.push_times[1] + extra * pace
            pushes = max(math.ceil((ready - slowest.push_times[1]) / slow_pace - 1e-9), 1)
            return slowest.push_times[1] + pushes * slow_pace - ready

        return min(range(self.high - self.low + 1), key=wait)


@dataclass(frozen=True)
class Aggregation:
    """Decides when the pushes gathered so far become an update. By this rule every push is one."""

    averages_pushes: ClassVar[bool] = False
    """Whether the update is the mean of the pushes, weighted by samples; otherwise it is their sum."""

    def is_ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        """Return whether to apply the gathered pushes now; there is at least one."""
        return True


@dataclass(frozen=True)
class MeanAggregation(Aggregation):
    """The mean of a number of pushes is an update; by default of one from everybody (BSP)."""

    pushes: int | None = None
    averages_pushes: ClassVar[bool] = True

    def is_ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        # never more than there are workers: those that are left when others have gone would wait forever
        wanted = len(fleet) if self.pushes is None else min(self.pushes, len(fleet))
        return pushes >= max(wanted, 1)


@dataclass(frozen=True)
class PacedAggregation(Aggregation):
    """Every push is an update, unless that would carry a step under way past the bound: then it is gathered. Ours.

    Until the straggler has pushed, the others go on without waiting, and what they push makes one update together (a
    sum: each push moves the parameters as far as it would have alone, up to one push of each worker). Once the whole
    fleet could have pushed, the straggler's step is given up, unless too much has been lost like that: then it is the
    samples that take long, and whoever drew them next would be given up as well.
    """

    def is_ready(self, pushes: int, fleet: Workers, bound: int | None) -> bool:
        # Nothing more is given up while this share of all steps has been lost like that.
        if bound is None or (pushes >= len(fleet) and fleet.lost_steps <= 0.025 * fleet.pushes):
            return True
        oldest = fleet.version - bound
        return all(member.step is None or member.step.stamp.version > oldest for member in fleet)


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
        Whether a worker waits before its next step; by default nobody does.
    sizing
        How many samples each worker takes; by default a full batch.
    bound
        Versions, 0 or more; a push that is staler is dropped and its samples go back. ``None`` is no bound, at which no
        step can be given up.
    abandons_stale_steps
        Whether a step that has passed the bound is given up at once, and its samples are drawn again.
    weights_by_samples
        Whether a push counts in proportion to its samples where pushes are summed. Means always weight by samples.
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
