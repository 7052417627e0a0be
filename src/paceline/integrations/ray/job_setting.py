"""Setting of a training job on Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from paceline._arrays import Sizes
from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector
from paceline.coordinator.asynchronous.schemes import scheme
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.store import Store
from paceline.parameter_server.service import Rounds, Service
from paceline.predictors import named
from paceline.recording.records import Round
from paceline.recording.sink import round_sinks

Gradient = Callable[[Vector, Sizes], Vector]
"""The mean gradient, ``[P]``, at these parameters, ``[P]``, over the samples of these rows."""


@dataclass(frozen=True, kw_only=True)
class RayPlan:
    """Setting of a training job on Ray: model, data, scheme, processes and checkpoints.

    Parameters
    ----------
    parameters
        Initial parameters, ``[P]``.
    optimizer
        Optimizer with which the server applies updates.
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
    checkpoint, checkpoint_every
        File that the server's host can write, and after how many applied samples it is written. A server that dies
        goes on from there; without a file it begins again.
    servers
        Over how many processes the parameters are split, where one has too little memory or is too slow for them. Rules
        and samples stay with one server, the lead; see :mod:`paceline.coordinator.asynchronous.store`.
    metrics
        Sinks that the server's host calls with every round: a name as in :func:`paceline.recording.sink`,
        such as ``"run.jsonl"``, or several.
    comebacks
        How often a worker that dies is started again.
    min_batch
        The fewest samples of a step: 2 where the model normalizes over batches, which cannot be seen from here.
    patience
        Seconds for which nothing else happens, after which a worker that holds the last samples is given up, and
        :meth:`RayJob.run` ends without one that has not ended; more where steps take long.

    Raises
    ------
    ValueError
        If anything is out of range, or there is no scheme, predictor or sink of that name.
    ImportError
        If the library of a sink is missing.
    """

    parameters: Vector
    optimizer: Optimizer
    gradient: Callable[[], Gradient]
    samples: int
    batch: int
    epochs: int = 1
    seed: int = 0
    workers: int = 2
    scheme: str = "saps"
    predictor: str = "ewma"
    checkpoint: str | None = None
    checkpoint_every: int = 0
    servers: int = 1
    metrics: str | tuple[str, ...] = ()
    comebacks: int = 3
    min_batch: int = 1
    patience: float = 60.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 1 <= self.servers <= len(self.parameters):
            raise ValueError(
                f"servers must be from 1 to the number of parameters, {len(self.parameters)}, got {self.servers}"
            )
        # Here, not in the actor: what is wrong there ends a process of which the user sees only that it died. With few
        # samples instead of all, as a sampler shuffles those that it has.
        self._started(EpochSampler(min(self.samples, max(self.min_batch, 1)), epochs=self.epochs), copy=False)
        self._sinks()

    def service(self, store: Store | None = None) -> Service:
        """Return the server of this plan, resumed if there is a checkpoint.

        Parameters
        ----------
        store
            What holds the parameters, if they are split.
        """
        service = self._started(EpochSampler(self.samples, seed=self.seed, epochs=self.epochs), store=store)
        service.resume()
        if targets := self._sinks():
            Rounds(service, targets)
        return service

    def _started(self, sampler: EpochSampler, *, store: Store | None = None, copy: bool = True) -> Service:
        rules, forecast = scheme(self.scheme, self.workers), named(self.predictor)
        server = Server(
            self.parameters,
            self.optimizer,
            rules,
            sampler,
            batch=self.batch,
            predictor=forecast,
            copy=copy,
            store=store,
            min_batch=self.min_batch,
        )
        path = None if self.checkpoint is None else Path(self.checkpoint)
        return Service(server, self.patience, checkpoint=path, checkpoint_every=self.checkpoint_every)

    def _sinks(self) -> list[Callable[[Round], None]]:
        return round_sinks(*([self.metrics] if isinstance(self.metrics, str) else self.metrics))
