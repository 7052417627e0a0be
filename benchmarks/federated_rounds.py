"""Rounds of clients that really train, in simulated time, under balanced batches and the alternatives to them.

Every scheme gets the forecasts of a `FederatedBalancer`, and the same clients, links and draws of samples. Axes: C
clients, W clients of one round.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from federated_clients import Population, Shards, SmallNetwork

from paceline._arrays import Array, Sizes
from paceline.coordinator.federated import FederatedBalancer, RoundPlan, RoundReport
from paceline.predictors import Curves
from paceline.solver import split

MOST_STEPS = 8
"""Adaptive local steps go up to this many times the mean, as balanced batches do."""

LET_IN = 0.7
"""Share of the chosen clients that a deadline is to let in."""

BUFFER = 10
"""Updates that make a step of FedBuff's server: the paper's choice; fewer where fewer clients train at once."""

MET_BEFORE = 3
"""A client counts for a round's spread once it replied this often; early its speed is hardly known."""


@dataclass(frozen=True, kw_only=True)
class RoundSetting:
    """Setting of a comparison, the same for all its schemes.

    ``participation`` is the share of the clients that is chosen in each round, at random; at a ``rate`` of 0 nobody
    trains and rounds are only timed; ``min_batch`` is the balancer's own choice by default.
    """

    participation: float = 1.0
    rounds: int = 100
    batch: int = 16
    local_steps: int = 10
    rate: float = 0.1
    seed: int = 0
    min_batch: int | None = None

    def chosen(self, clients: int) -> int:
        """Return how many clients are chosen in a round."""
        return max(1, round(self.participation * clients))


@dataclass(frozen=True)
class RoundMoment:
    """State of a run after a round.

    Simulated seconds since the start, accuracy on the test samples (NaN where nobody trains), and the round's slowest
    reply over its median, among clients that had replied before (NaN without two).
    """

    seconds: float
    accuracy: float
    spread: float


@dataclass(frozen=True, eq=False)
class Assignment:
    """Instructions to the chosen clients of a round: samples a local step, local steps, factors of the rate, ``[W]``.

    A client with no samples is not asked, and replies after the deadline are dropped.
    """

    sizes: Sizes
    steps: Sizes
    rates: Array
    deadline: float = np.inf


Scheme = Callable[[FederatedBalancer, Sequence[str]], Assignment]


def standard(balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
    """Federated averaging: the same batch and as many steps for all (B. McMahan et al., AISTATS 2017)."""
    return _equal(balancer, balancer.plan(chosen))


def _equal(balancer: FederatedBalancer, plan: RoundPlan) -> Assignment:
    """Return the mean batch for all, or all their data where that is less."""
    sizes = np.minimum(balancer.batch, np.maximum(plan.max_sizes, 0)).astype(np.int64)
    return Assignment(sizes, np.full(len(sizes), plan.local_steps), np.ones(len(sizes)))


def balanced(balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
    """Batches by speed, equal steps and learning rate: LB-BSP's federated setting."""
    plan = balancer.plan(chosen)
    return Assignment(plan.sizes, np.full(len(chosen), plan.local_steps), np.ones(len(chosen)))


def adaptive_rate(balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
    """Batches by speed, and each client's learning rate in proportion to its batch."""
    plan = balancer.plan(chosen)
    return Assignment(plan.sizes, np.full(len(chosen), plan.local_steps), plan.sizes / balancer.batch)


def adaptive_steps(balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
    """Equal batches, and as many local steps as end together."""
    plan = balancer.plan(chosen)
    equal = _equal(balancer, plan)
    zero, count = np.zeros(len(chosen)), len(chosen)
    curves = Curves(zero, np.maximum(equal.sizes, 1) / plan.speed, zero, np.full(count, np.inf))
    most = MOST_STEPS * balancer.local_steps
    steps = split(curves, balancer.local_steps * count, lower=1, upper=most, comm=plan.comm_seconds).sizes
    return Assignment(equal.sizes, steps, equal.rates)


def deadline_drop(balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
    """Equal work, but only for clients expected by a deadline; replies that are late after all are dropped.

    After FedCS (T. Nishio and R. Yonetani, ICC 2019), which selects as many clients as fit into a given deadline.
    """
    plan = balancer.plan(chosen)
    equal = _equal(balancer, plan)
    seconds = equal.sizes * plan.local_steps / plan.speed + plan.comm_seconds
    deadline = float(np.quantile(seconds, LET_IN, method="higher"))
    if np.isinf(plan.spread).all():
        return equal  # nobody is known, so nobody is late
    return Assignment(np.where(seconds <= deadline, equal.sizes, 0), equal.steps, equal.rates, 1.1 * deadline)


def balanced_drop(balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
    """The clients that the deadline lets in, with batches that end together: FedCS and sizing combined."""
    let_in = deadline_drop(balancer, chosen).sizes > 0
    plan = balancer.plan([name for name, participating in zip(chosen, let_in, strict=True) if participating])
    sizes = np.zeros(len(chosen), dtype=np.int64)
    sizes[let_in] = plan.sizes
    return Assignment(sizes, np.full(len(chosen), plan.local_steps), np.ones(len(chosen)))


class Oracle:
    """Balanced by one who knows every speed and link of the round to come: only the bounds hold it back."""

    def __init__(self, population: Population, setting: RoundSetting) -> None:
        self.population, self.setting, self.round = population, setting, 0

    def __call__(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> Assignment:
        """Return the exact split of what will be."""
        population, count = self.population, len(chosen)
        generator = np.random.default_rng([self.setting.seed, self.round])
        rows = generator.choice(len(population), count, replace=False)  # as the rounds draw them
        comm = population.comm_seconds(rows, generator)
        steps = np.full(count, balancer.local_steps)
        position = self.round * balancer.local_steps
        fixed = population.compute_seconds(rows, np.zeros(count, dtype=np.int64), steps, position)
        one = population.compute_seconds(rows, np.ones(count, dtype=np.int64), steps, position)
        curves = Curves(np.zeros(count), one - fixed, fixed, np.full(count, np.inf))
        upper = np.minimum(balancer.largest_multiple * balancer.batch, balancer.plan(chosen).max_sizes)
        total = int(min(balancer.batch * count, upper.sum()))
        sizes = split(curves, total, lower=np.minimum(balancer.min_batch, upper), upper=upper, comm=comm).sizes
        self.round += 1
        return Assignment(sizes, steps, np.ones(count))


def iter_rounds(population: Population, shards: Shards, scheme: Scheme, setting: RoundSetting) -> Iterator[RoundMoment]:
    """Yield the state after each round: clients train on their own data, and take simulated time.

    The balancer knows each client's device type and amount of data, and nothing of its speed. Updates are averaged by
    amounts of data.
    """
    balancer = FederatedBalancer(batch=setting.batch, local_steps=setting.local_steps, min_batch=setting.min_batch)
    names, amounts = population.names, shards.amounts
    balancer.join(names, devices=population.devices, data=amounts)
    network = SmallNetwork.drawn(shards.inputs.shape[1], shards.classes, setting.seed)
    replied, clock, accuracy = np.zeros(len(population), dtype=np.int64), 0.0, float("nan")
    for k in range(setting.rounds):
        generator = np.random.default_rng([setting.seed, k])
        rows = generator.choice(len(population), setting.chosen(len(population)), replace=False)
        chosen = [names[row] for row in rows]
        given = scheme(balancer, chosen)
        compute = population.compute_seconds(rows, given.sizes, given.steps, k * setting.local_steps)
        comm = population.comm_seconds(rows, generator)
        end, asked = compute + comm, given.sizes > 0
        in_time = asked & (end <= given.deadline)
        if setting.rate:
            if in_time.any():
                changes = [
                    _change(
                        network, shards, rows[i], (setting.seed, k), setting.rate * given.rates[i],
                        batch=int(given.sizes[i]), steps=int(given.steps[i]),
                    )
                    for i in np.flatnonzero(in_time)
                ]  # fmt: skip
                held = amounts[rows[in_time]]
                network = network.moved(changes, (held / held.sum()).tolist())
            accuracy = network.accuracy(shards.test_inputs, shards.test_labels)
        _report(balancer, chosen, given, compute, comm, in_time)
        clock += min(float(end[asked].max()), given.deadline)
        known = end[asked & (replied[rows] >= MET_BEFORE)]
        replied[rows[asked]] += 1
        yield RoundMoment(clock, accuracy, float(known.max() / np.median(known)) if len(known) > 1 else float("nan"))


def _change(
    network: SmallNetwork, shards: Shards, row: int, seed: tuple[int, int], rate: float, *, batch: int, steps: int
) -> SmallNetwork:
    """Return what one client's local steps change; its draws follow from the run's seed, the round and the client."""
    own, generator = shards.shard[row], np.random.default_rng([*seed, row])
    inputs, labels = shards.inputs[own], shards.labels[own]
    return network.change(inputs, labels, batch=batch, steps=steps, rate=rate, generator=generator)


def _report(
    balancer: FederatedBalancer, chosen: Sequence[str], given: Assignment, seconds: Array, comm: Array, in_time: Array
) -> None:
    """Report a round; the time of a client that was dropped is known too, once it replies."""
    plan = balancer.plan(chosen)
    rows = np.flatnonzero((given.sizes > 0) & plan.participating)
    report = RoundReport(
        clients=[chosen[int(i)] for i in rows],
        samples=(given.sizes * given.steps)[rows],
        seconds=seconds[rows],
        comm_seconds=comm[rows],
        failed=~in_time[rows],
    )
    balancer.observe(plan, report)


@dataclass(order=True)
class _Job:
    """A client that trains from one version of the model on; they are ordered by when they end."""

    end: float
    serial: int
    row: int = field(compare=False)
    version: int = field(compare=False)
    start: SmallNetwork = field(compare=False)


def iter_buffered(population: Population, shards: Shards, setting: RoundSetting) -> Iterator[RoundMoment]:
    """Yield the state of FedBuff whenever it has had as many updates as a round of the other schemes.

    J. Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022. As many clients train
    at any time as the others choose for a round; one that ends is replaced by another drawn at random among the idle.
    Each update is weighted by the client's amount of data and by ``(1 + staleness) ** -0.5``.
    """
    count, amounts = setting.chosen(len(population)), shards.amounts
    size, mean_amount = min(BUFFER, count), float(amounts.mean())
    generator = np.random.default_rng([setting.seed, 0])
    network = SmallNetwork.drawn(shards.inputs.shape[1], shards.classes, setting.seed)
    idle, jobs = set(range(len(population))), list[_Job]()
    buffer: list[tuple[SmallNetwork, float]] = []
    serial, version, done, clock = 0, 0, 0, 0.0

    def start() -> None:
        nonlocal serial
        row = int(generator.choice(sorted(idle)))
        idle.discard(row)
        rows, steps = np.array([row]), np.array([setting.local_steps])
        sizes, position = np.minimum(setting.batch, amounts[rows]), serial // count * setting.local_steps
        compute = population.compute_seconds(rows, sizes, steps, position)
        end = clock + float(compute[0] + population.comm_seconds(rows, generator)[0])
        heapq.heappush(jobs, _Job(end, serial, row, version, network))
        serial += 1

    for _ in range(count):
        start()
    while done < setting.rounds * count:
        job = heapq.heappop(jobs)
        clock, done = job.end, done + 1
        batch, seed = min(setting.batch, int(amounts[job.row])), (setting.seed, job.serial)
        change = _change(job.start, shards, job.row, seed, setting.rate, batch=batch, steps=setting.local_steps)
        buffer.append((change, float(amounts[job.row]) / mean_amount * (1 + version - job.version) ** -0.5))
        if len(buffer) == size:
            network = network.moved([each for each, _ in buffer], [share / size for _, share in buffer])
            version += 1
            buffer = []
        idle.add(job.row)
        start()
        if done % count == 0:
            yield RoundMoment(clock, network.accuracy(shards.test_inputs, shards.test_labels), float("nan"))
