"""The processes of a job on Ray: the server, its shards, and the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from paceline._arrays import Sizes
from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector
from paceline.coordinator.asynchronous.schemes import scheme
from paceline.coordinator.asynchronous.server import Outcome, Server
from paceline.coordinator.asynchronous.store import Everywhere, Shard, ShardedStore, Store, pieces
from paceline.parameter_server.service import Rounds, Service, Work, nothing_to_do
from paceline.predictors import named
from paceline.recording.records import Round
from paceline.recording.sink import sinks

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
        return sinks(*([self.metrics] if isinstance(self.metrics, str) else self.metrics))


def remote_shards(plan: RayPlan) -> list[Any]:
    """Start the shards of a plan; they die with the process that calls this."""
    import ray

    compensation = scheme(plan.scheme, plan.workers).compensation
    started = ray.remote(Shard).options(num_cpus=0)
    return [started.remote(part, plan.optimizer, compensation) for part in pieces(plan.parameters, plan.servers)]


def over_ray(shards: Sequence[Any]) -> Everywhere:
    """Return a way to reach shards that are actors."""
    import ray

    def call(name: str, *arguments: Any, each: Sequence[Any] | None = None) -> list[Any]:
        calls = [(one,) for one in each] if each is not None else [arguments] * len(shards)
        answers: list[Any] = ray.get(
            [getattr(shard, name).remote(*one) for shard, one in zip(shards, calls, strict=True)]
        )
        return answers

    return call


class RayServer:
    """The server's actor. Ray makes it again when its process dies; it then resumes, and workers join by pulling."""

    def __init__(self, plan: RayPlan) -> None:
        self._shards = remote_shards(plan) if plan.servers > 1 else []
        sizes = [len(part) for part in pieces(plan.parameters, plan.servers)]
        store = ShardedStore(over_ray(self._shards), sizes) if self._shards else None
        self.service = plan.service(store)
        self._gone: dict[str, int] = {}
        self._coming_and_going = Lock()

    def pull(self, worker: str, life: int) -> Work:
        """Return a worker's next step; one that is not known joins.

        Parameters
        ----------
        worker
            Its name.
        life
            How often it had been started before. A call of a worker that is dead by now may come after its death: it
            must not join, as everybody would wait for it behind a barrier.
        """
        with self._consistent():
            with self._coming_and_going:  # a worker that is found dead in between would join forever
                gone = life <= self._gone.get(worker, -1)
                if not gone and worker not in self.service.server.workers:
                    self.service.join(worker)
            return nothing_to_do(self.service.parameters) if gone else self.service.pull(worker)

    def push(self, worker: str, work: Work, gradient: Vector, seconds: float, comm_seconds: float) -> Outcome:
        """Take a gradient."""
        count = len(work.assigned)
        times = {"seconds": seconds, "comm_seconds": comm_seconds}
        with self._consistent():
            return self.service.push(worker, work.stamp, gradient, count, **times).outcome

    def leave(self, worker: str, life: int) -> None:
        """Remove a worker, and let no later call of the same process add it again."""
        with self._consistent(), self._coming_and_going:
            self._gone[worker] = life
            self.service.leave(worker)

    def parameters(self) -> Vector:
        """Return the newest parameters, ``[P]``, to evaluate them while training goes on."""
        with self._consistent():
            return self.service.parameters

    def shards(self) -> list[Any]:
        """Return the shards, after a check that all are alive; none where this process holds the parameters."""
        with self._consistent():
            over_ray(self._shards)("forget", -1)
        return self._shards

    def watch(self) -> list[str]:
        """Return a sentence about every worker: whether it is a straggler, and why."""
        return [one.why for one in self.service.staleness_reports()]

    def patience(self) -> float | None:
        """Return for how long to wait for workers that are silent, in seconds; ``None`` while there is work to do."""
        return self.service.patience_now if self.service.server.finished else None

    def progress(self) -> tuple[int, int, float]:
        """Return the version, the samples applied, and the share of samples that were wasted."""
        server = self.service.server
        return server.version, server.sampler.applied, server.ledger.wasted_share

    @contextmanager
    def _consistent(self) -> Iterator[None]:
        """Run a block, and end this process if a shard has died: all parts must come from one checkpoint."""
        from ray.exceptions import RayActorError

        try:
            yield
        except RayActorError:
            # Ray starts the server again, with new shards
            os._exit(7)


class RayWorker:
    """A worker's actor."""

    def __init__(self, server: Any, name: str, life: int, gradient: Callable[[], Gradient]) -> None:
        self.server, self.name, self.life, self.gradient = server, name, life, gradient()

    def run(self) -> str:
        """Pull, compute and push until the training has ended; return the worker's name."""
        import ray
        from ray.exceptions import RayActorError

        refused, push_seconds = 0, 0.0
        shards = ray.get(self.server.shards.remote())
        while True:
            requested = time.monotonic()
            work: Any = ray.get(self.server.pull.remote(self.name, self.life))
            if work.ended:
                return self.name
            note = Work(work.stamp, work.parameters[:0], work.assigned, 0.0)  # its parameters need not travel back
            try:
                parameters = self._read(work, shards)
                began = time.monotonic()
                gradient = self.gradient(parameters, work.assigned.rows)
                ended = time.monotonic()
                comm_seconds = max(began - requested - work.waited, 0.0) + push_seconds
                sent = self._held(work, shards, gradient)
            except RayActorError:
                shards = ray.get(self.server.shards.remote())  # those of a server that was started again
                continue
            outcome = ray.get(self.server.push.remote(self.name, note, sent, ended - began, comm_seconds))
            push_seconds = time.monotonic() - ended
            refused = refused + 1 if outcome is Outcome.REFUSED else 0
            if refused >= 5:
                raise RuntimeError(f"the last 5 gradients of {self.name} were refused: look for NaN in them")

    def _read(self, work: Work, shards: Sequence[Any]) -> Vector:
        """Return the parameters of a step, ``[P]``."""
        import ray

        if not shards:
            return work.parameters
        return np.concatenate(ray.get([shard.read.remote(self.name, work.stamp.ticket) for shard in shards]))

    def _held(self, work: Work, shards: Sequence[Any], gradient: Vector) -> Vector:
        """Send each shard its part of the gradient; return the part for the lead."""
        import ray

        if not shards:
            return gradient
        parts = zip(shards, pieces(gradient, len(shards)), strict=True)
        ray.get([shard.hold.remote(self.name, work.stamp.ticket, part) for shard, part in parts])
        return gradient[:0]
