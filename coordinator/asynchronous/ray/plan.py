"""What a job on Ray trains, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline._arrays import Sizes
from paceline.coordinator.asynchronous.deck import Deck
from paceline.coordinator.asynchronous.optimiser import Optimiser, Vector
from paceline.coordinator.asynchronous.rounds import Rounds
from paceline.coordinator.asynchronous.schemes import scheme
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.service import Service
from paceline.coordinator.asynchronous.store import Store
from paceline.coordinator.metrics.targets import round_sinks
from paceline.predictors import named

Gradient = Callable[[Vector, Sizes], Vector]
"""The mean gradient, ``[P]``, at these parameters, ``[P]``, over the samples of these rows."""


@dataclass(frozen=True, kw_only=True)
class RayPlan:
    """What a job trains, and how.

    Parameters
    ----------
    parameters
        Where training starts, ``[P]``.
    optimiser
        What the server applies updates with.
    gradient
        Called once in each worker's process; returns the function that computes gradients there.
    samples, epochs, seed
        Size of the data set, how often to go through it, and the seed of its order.
    batch
        Samples of a full batch of one worker.
    workers
        How many to start with, at least 1.
    scheme
        A name of ``paceline.coordinator.asynchronous.SCHEMES``.
    predictor
        Forecasts the workers' speeds: a name as in :func:`paceline.predictors.named`.
    checkpoint, every
        File that the server's host can write, and after how many applied samples it is written. A server that dies
        goes on from there; without a file it begins anew.
    servers
        Over how many processes the parameters are split, where one has too little memory or is too slow for them. Rules
        and samples stay with one server, the lead; see :mod:`paceline.coordinator.asynchronous.shards`.
    metrics
        Names of sinks that the server's host calls with every round, as in :func:`paceline.coordinator.metrics.sinks`.
    comebacks
        How often a worker that dies is started again.
    """

    parameters: Vector
    optimiser: Optimiser
    gradient: Callable[[], Gradient]
    samples: int
    batch: int
    epochs: int = 1
    seed: int = 0
    workers: int = 2
    scheme: str = "saps"
    predictor: str = "ewma"
    checkpoint: str | None = None
    every: int = 0
    servers: int = 1
    metrics: tuple[str, ...] = ()
    comebacks: int = 3

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 1 <= self.servers <= len(self.parameters):
            raise ValueError(
                f"servers must be from 1 to the number of parameters, {len(self.parameters)}, got {self.servers}"
            )
        scheme(self.scheme, self.workers)  # here, not in the actor: says which schemes there are

    def service(self, store: Store | None = None) -> Service:
        """Return the server that the plan tells of, resumed if there is a checkpoint.

        Parameters
        ----------
        store
            What holds the parameters, if they are split.
        """
        server = Server(
            self.parameters,
            self.optimiser,
            scheme(self.scheme, self.workers),
            Deck(self.samples, seed=self.seed, epochs=self.epochs),
            batch=self.batch,
            predictor=named(self.predictor),
            store=store,
        )
        path = None if self.checkpoint is None else Path(self.checkpoint)
        service = Service(server, checkpoint=path, every=self.every)
        service.resume()
        if self.metrics:
            Rounds(service, round_sinks(*self.metrics))
        return service
