"""FedBuff in the same simulation: clients never wait, and the server updates after every few replies.

J. Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS 2022.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from federated_lab.client_data import Shards
from federated_lab.federated_replay import RoundMoment, RoundSetting, local_change
from federated_lab.learning import SmallNetwork
from federated_lab.population import Population

BUFFER = 10
"""Updates that make a step of the server: the paper's choice; fewer where fewer clients train at once."""


@dataclass(order=True)
class ClientJob:
    """A client that trains from one version of the model on; they are ordered by when they end."""

    end: float
    serial: int
    row: int = field(compare=False)
    version: int = field(compare=False)
    start: SmallNetwork = field(compare=False)


def iter_buffered(population: Population, shards: Shards, setting: RoundSetting) -> Iterator[RoundMoment]:
    """Yield the state of the run whenever it has had as many updates as a round of the other schemes.

    As many clients train at any time as the others choose for a round; one that ends is replaced by another drawn at
    random among the idle. Each update is weighted by the client's amount of data and by ``(1 + staleness) ** -0.5``.
    """
    count = setting.chosen(len(population))
    size = min(BUFFER, count)
    generator = np.random.default_rng([setting.seed, 0])
    network = SmallNetwork.drawn(shards.inputs.shape[1], shards.classes, setting.seed)
    idle = set(range(len(population)))
    serial, version, done = 0, 0, 0
    jobs: list[ClientJob] = []
    buffer: list[tuple[SmallNetwork, float]] = []
    mean_amount = float(shards.amounts.mean())
    clock = 0.0

    def start() -> None:
        nonlocal serial
        row = int(generator.choice(sorted(idle)))
        idle.discard(row)
        end = clock + _seconds(population, shards, setting, row, serial // count, generator)
        heapq.heappush(jobs, ClientJob(end, serial, row, version, network))
        serial += 1

    for _ in range(count):
        start()
    while done < setting.rounds * count:
        job = heapq.heappop(jobs)
        clock, done = job.end, done + 1
        batch = min(setting.batch, int(shards.amounts[job.row]))
        change = local_change(
            job.start,
            shards,
            job.row,
            batch=batch,
            steps=setting.local_steps,
            rate=setting.rate,
            seed=(setting.seed, job.serial),
        )
        buffer.append((change, float(shards.amounts[job.row]) / mean_amount * (1 + version - job.version) ** -0.5))
        if len(buffer) == size:
            network = network.moved([each for each, _ in buffer], [share / size for _, share in buffer])
            version += 1
            buffer = []
        idle.add(job.row)
        start()
        if done % count == 0:
            yield RoundMoment(clock, network.accuracy(shards.test_inputs, shards.test_labels), float("nan"), 0.0)


def _seconds(
    population: Population, shards: Shards, setting: RoundSetting, row: int, k: int, generator: np.random.Generator
) -> float:
    """Return how long one client takes to fetch, train and send."""
    rows, steps = np.array([row]), np.array([setting.local_steps])
    sizes = np.minimum(setting.batch, shards.amounts[rows])
    compute = population.compute_seconds(rows, sizes, steps, k * setting.local_steps)
    return float(compute[0] + population.comm_seconds(rows, generator)[0])
