"""Rounds of clients that really train, in simulated time. Axes: C clients, W clients of one round, R rounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from federated_lab.client_data import Shards
from federated_lab.federated_schemes import ClientScheme, report_round
from federated_lab.learning import SmallNetwork
from federated_lab.population import Population
from paceline._arrays import Array
from paceline.coordinator.federated import FederatedBalancer
from paceline.predictors import Predictor


@dataclass(frozen=True, kw_only=True)
class RoundSetting:
    """Setting of a comparison, the same for all its schemes.

    Parameters
    ----------
    participation
        Share of the clients that is chosen in each round, at random.
    rounds
        How many rounds.
    batch, local_steps, rate
        Mean samples of a local step, local steps of a round, and the learning rate; at a rate of 0 nobody trains and
        rounds are only timed.
    seed
        Draws the clients of each round, their batches and their links: the same for every scheme.
    predictor
        Predictor of the balancer; unless given, the balancer's own choice.
    risk
        The balancer's ``risk``.
    min_batch
        The smallest balanced batch; unless given, the balancer's own choice.
    met_before
        A client counts for a round's spread once it replied this often; early its speed is hardly known.
    """

    participation: float = 1.0
    rounds: int = 100
    batch: int = 16
    local_steps: int = 10
    rate: float = 0.1
    seed: int = 0
    predictor: Predictor | None = None
    risk: float = 0.7
    min_batch: int | None = None
    met_before: int = 3

    def chosen(self, clients: int) -> int:
        """Return how many clients are chosen in a round."""
        return max(1, round(self.participation * clients))


@dataclass(frozen=True)
class RoundMoment:
    """State of a run after a round.

    Parameters
    ----------
    seconds
        Simulated time since the start.
    accuracy
        Accuracy of the global model on the test samples; NaN where nobody trains.
    spread
        The round's slowest reply over its median, among clients that had replied ``met_before`` times; NaN without two.
    waiting
        Share of the clients' time, up to the slowest's reply, that was spent waiting.
    """

    seconds: float
    accuracy: float
    spread: float
    waiting: float


def balancer_of(population: Population, shards: Shards, setting: RoundSetting) -> FederatedBalancer:
    """Return a balancer that knows each client's device type and amount of data, and nothing of its speed."""
    balancer = FederatedBalancer(
        batch=setting.batch,
        local_steps=setting.local_steps,
        predictor=setting.predictor,
        risk=setting.risk,
        min_batch=setting.min_batch,
    )
    balancer.join(population.names, devices=population.devices, data=shards.amounts)
    return balancer


def iter_rounds(
    population: Population, shards: Shards, scheme: ClientScheme, setting: RoundSetting
) -> Iterator[RoundMoment]:
    """Yield the state after each round: clients train on their own data, and take simulated time.

    Updates are averaged by amounts of data. The clients of a round, their links and the batches they draw are the same
    for every scheme, as far as it asks for the same.
    """
    balancer = balancer_of(population, shards, setting)
    network = SmallNetwork.drawn(shards.inputs.shape[1], shards.classes, setting.seed)
    replied = np.zeros(len(population), dtype=np.int64)
    clock = 0.0
    for k in range(setting.rounds):
        generator = np.random.default_rng([setting.seed, k])
        rows = generator.choice(len(population), setting.chosen(len(population)), replace=False)
        chosen = [population.names[row] for row in rows]
        given = scheme.assign(balancer, chosen)
        compute = population.compute_seconds(rows, given.sizes, given.steps, k * setting.local_steps)
        comm = population.comm_seconds(rows, generator)
        end = compute + comm
        in_time = given.participating & (end <= given.deadline)
        network = _averaged(
            network, shards, setting, rows[in_time], given.sizes[in_time], given.steps[in_time], given.rates[in_time], k
        )
        report_round(balancer, chosen, given, compute, comm, in_time)
        clock += min(float(end[given.participating].max()), given.deadline)
        known = given.participating & (replied[rows] >= setting.met_before)
        replied[rows[given.participating]] += 1
        yield RoundMoment(clock, _accuracy(network, shards, setting), *_waits(end[known]))


def _averaged(
    network: SmallNetwork,
    shards: Shards,
    setting: RoundSetting,
    rows: NDArray[np.intp],
    sizes: NDArray[np.int64],
    steps: NDArray[np.int64],
    rates: Array,
    k: int,
) -> SmallNetwork:
    """Return the mean of what these clients trained, by their amounts of data."""
    if not len(rows) or not setting.rate:
        return network
    changes = [
        local_change(
            network,
            shards,
            int(row),
            batch=int(size),
            steps=int(count),
            rate=setting.rate * float(factor),
            seed=(setting.seed, k),
        )
        for row, size, count, factor in zip(rows, sizes, steps, rates, strict=True)
    ]
    amounts = shards.amounts[rows]
    return network.moved(changes, (amounts / amounts.sum()).tolist())


def local_change(
    network: SmallNetwork, shards: Shards, row: int, *, batch: int, steps: int, rate: float, seed: tuple[int, int]
) -> SmallNetwork:
    """Return what one client's local steps change; its draws follow from the run's seed, the round and the client."""
    own = shards.shard[row]
    generator = np.random.default_rng([*seed, row])
    trained = network.trained(
        shards.inputs[own], shards.labels[own], batch=batch, steps=steps, rate=rate, generator=generator
    )
    return trained.minus(network)


def _accuracy(network: SmallNetwork, shards: Shards, setting: RoundSetting) -> float:
    return network.accuracy(shards.test_inputs, shards.test_labels) if setting.rate else float("nan")


def _waits(end: Array) -> tuple[float, float]:
    """Return slowest over median, and the share of time spent waiting."""
    if len(end) < 2:
        return float("nan"), float("nan")
    slowest = float(end.max())
    return slowest / float(np.median(end)), 1.0 - float(end.mean()) / slowest
