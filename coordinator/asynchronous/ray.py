"""Asynchronous training on Ray: workers join, leave, die and come back; the server restarts from its checkpoint.

Ray serialises what goes between its processes by pickling: use it among machines that trust each other. Arrays are put
into its shared memory and read there without a copy by workers on the same host.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline._arrays import Sizes
from paceline._require import require
from paceline.coordinator.asynchronous.deck import Deck
from paceline.coordinator.asynchronous.ledger import Outcome
from paceline.coordinator.asynchronous.optimiser import Optimiser, Vector
from paceline.coordinator.asynchronous.rounds import Rounds
from paceline.coordinator.asynchronous.schemes import scheme
from paceline.coordinator.asynchronous.server import Server
from paceline.coordinator.asynchronous.service import Service, Work, nothing_to_do
from paceline.coordinator.metrics.targets import round_sinks
from paceline.predictors import named

logger = logging.getLogger("paceline.asynchronous")

Gradient = Callable[[Vector, Sizes], Vector]
"""The mean gradient, ``[P]``, at these parameters, ``[P]``, over the samples of these rows."""

REFUSALS = 5
"""A worker whose push is refused this often in a row stops, as under torch."""

ROOM = 8
"""Calls that the server takes at once beyond one for each worker, which may all be waiting behind a barrier."""


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
    metrics: tuple[str, ...] = ()
    comebacks: int = 3

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        scheme(self.scheme, self.workers)  # here, not in the actor: says which schemes there are

    def service(self) -> Service:
        """Return the server that the plan tells of, resumed if there is a checkpoint."""
        server = Server(
            self.parameters,
            self.optimiser,
            scheme(self.scheme, self.workers),
            Deck(self.samples, seed=self.seed, epochs=self.epochs),
            batch=self.batch,
            predictor=named(self.predictor),
        )
        path = None if self.checkpoint is None else Path(self.checkpoint)
        service = Service(server, checkpoint=path, every=self.every)
        service.resume()
        if self.metrics:
            Rounds(service, round_sinks(*self.metrics))
        return service


class RayServer:
    """The server's actor. Ray makes it anew when its process dies; it then resumes, and workers join by pulling."""

    def __init__(self, plan: RayPlan) -> None:
        self.service = plan.service()
        self._gone: dict[str, int] = {}

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
        if life <= self._gone.get(worker, -1):
            return nothing_to_do(self.service.parameters)
        if worker not in self.service.server.workers:
            self.service.join(worker)
        return self.service.pull(worker)

    def push(self, worker: str, work: Work, gradient: Vector, seconds: float, comm_seconds: float) -> Outcome:
        """Take a gradient."""
        count = len(work.hand)
        times = {"seconds": seconds, "comm_seconds": comm_seconds}
        return self.service.push(worker, work.stamp, gradient, count, **times).outcome

    def leave(self, worker: str, life: int) -> None:
        """Let a worker go, and never join again in this life."""
        self._gone[worker] = life
        self.service.leave(worker)

    def parameters(self) -> Vector:
        """Return the newest parameters, ``[P]``, to evaluate them while training goes on."""
        return self.service.parameters

    def watch(self) -> list[str]:
        """Return a sentence about every worker: whether it is a straggler, and why."""
        return [one.why for one in self.service.watch()]

    def progress(self) -> tuple[int, int, float]:
        """Return the version, the samples applied, and the share of samples that were computed in vain."""
        server = self.service.server
        return server.version, server.deck.applied, server.ledger.wasted_share


class RayWorker:
    """A worker's actor."""

    def __init__(self, server: Any, name: str, life: int, gradient: Callable[[], Gradient]) -> None:
        self.server, self.name, self.life, self.gradient = server, name, life, gradient()

    def run(self) -> str:
        """Pull, compute and push until the training has ended; return the worker's name."""
        import ray

        refused, push_seconds = 0, 0.0
        while True:
            asked = time.monotonic()
            work: Any = ray.get(self.server.pull.remote(self.name, self.life))
            if work.ended:
                return self.name
            began = time.monotonic()
            gradient = self.gradient(work.parameters, work.hand.rows)
            ended = time.monotonic()
            comm_seconds = max(began - asked - work.waited, 0.0) + push_seconds
            note = Work(work.stamp, work.parameters[:0], work.hand, 0.0)  # its parameters need not travel back
            outcome = ray.get(self.server.push.remote(self.name, note, gradient, ended - began, comm_seconds))
            push_seconds = time.monotonic() - ended
            refused = refused + 1 if outcome is Outcome.REFUSED else 0
            if refused >= REFUSALS:
                raise RuntimeError(f"the last {REFUSALS} gradients of {self.name} were refused: look for NaN in them")


class RayJob:
    """A server and its workers on a Ray cluster that is running.

    Parameters
    ----------
    plan
        What is trained, and how.

    Raises
    ------
    ImportError
        If Ray is missing.

    Examples
    --------
    ::

        ray.init()
        plan = RayPlan(parameters=start, optimiser=SGD(0.1), gradient=make, samples=60_000, batch=64, workers=8)
        parameters = RayJob(plan).run()
    """

    def __init__(self, plan: RayPlan) -> None:
        require("ray", needed_by="RayJob", extra="ray")
        import ray

        self.plan = plan
        room = plan.workers * (1 + plan.comebacks) + ROOM
        # Retried for ever: calls that a dying server has not answered reach the one that comes after it. A push that it
        # had taken is then refused as one of a step that is over, and counts once.
        options = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": room, "num_cpus": 0}
        self.server: Any = ray.remote(RayServer).options(**options).remote(plan)
        self._running: dict[Any, str] = {}
        self._actors: dict[str, Any] = {}
        self._deaths: dict[str, int] = {}
        self._lives: dict[str, int] = {}
        for number in range(plan.workers):
            self.add(f"worker{number}")

    def add(self, worker: str) -> None:
        """Start a worker, now or while training goes on.

        Raises
        ------
        ValueError
            If one of this name is at work.
        """
        import ray

        if worker in self._actors:
            raise ValueError(f"worker must be a new name, got {worker!r}, which is at work: {sorted(self._actors)}")

        life = self._lives[worker] = self._lives.get(worker, -1) + 1
        actor: Any = ray.remote(RayWorker).options(num_cpus=1).remote(self.server, worker, life, self.plan.gradient)
        self._actors[worker] = actor
        self._running[actor.run.remote()] = worker

    def remove(self, worker: str) -> None:
        """End a worker; what it held goes to the others."""
        import ray

        self._running = {run: name for run, name in self._running.items() if name != worker}
        ray.kill(self._actors.pop(worker))
        ray.get(self.server.leave.remote(worker, self._lives[worker]))

    def poll(self, seconds: float) -> bool:
        """Wait so long for something to happen, start again who died, and return whether the training has ended.

        Raises
        ------
        RuntimeError
            If no worker is left.
        """
        import ray
        from ray.exceptions import RayError

        done, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        for run in done:
            worker = self._running.pop(run)
            try:
                ray.get(run)
            except RayError as error:
                self._lost(worker, error)
        return not self._running

    def run(self) -> Vector:
        """Return the final parameters, ``[P]``, when the training has ended."""
        import ray

        while not self.poll(seconds=1.0):
            pass
        final: Any = ray.get(self.server.parameters.remote())
        self.close()
        parameters: Vector = final
        return parameters

    def close(self) -> None:
        """End the server and all workers."""
        import ray

        for actor in (*self._actors.values(), self.server):
            ray.kill(actor)
        self._actors, self._running = {}, {}

    def _lost(self, worker: str, error: Exception) -> None:
        import ray

        logger.warning("%s died: %s", worker, str(error).strip().splitlines()[-1])
        ray.get(self.server.leave.remote(worker, self._lives[worker]))
        self._actors.pop(worker)
        self._deaths[worker] = self._deaths.get(worker, 0) + 1
        if self._deaths[worker] <= self.plan.comebacks:
            self.add(worker)
        elif not self._running:
            self.close()
            raise RuntimeError(f"no worker is left: {worker} died {self._deaths[worker]} times, the last of {error}")
