"""Asynchronous training on Ray: workers join, leave, die and come back; the server restarts from its checkpoint.

Ray serializes what goes between its processes by pickling: use it among machines that trust each other.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from paceline._arrays import Sizes
from paceline._require import require
from paceline.coordinator.asynchronous.epoch_sampler import EpochSampler
from paceline.coordinator.asynchronous.optimizer import Optimizer, Vector
from paceline.coordinator.asynchronous.schemes import scheme
from paceline.coordinator.asynchronous.server import Outcome, Server
from paceline.parameter_server.service import RoundRecorder, Service, WorkItem, finished_work
from paceline.predictors import named
from paceline.recording.records import Round
from paceline.recording.sink import sinks

logger = logging.getLogger("paceline.asynchronous")

__all__ = ["Gradient", "RayJob", "RayPlan", "RayServer", "RayWorker"]

Gradient = Callable[[Vector, Sizes], Vector]
"""The mean gradient, ``[P]``, at these parameters, ``[P]``, over the samples of these rows."""


@dataclass(frozen=True, kw_only=True)
class RayPlan:
    """Settings of a training job on Ray: model, data, scheme, processes and checkpoints.

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
        File of the server's host, and after how many applied samples it is written. A server that dies goes on from
        there; without a file it begins again.
    metrics
        Sinks of the server's host, by name as in :func:`paceline.recording.sink`: ``"run.jsonl"``, or several.
    max_restarts
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
    metrics: str | tuple[str, ...] = ()
    max_restarts: int = 3
    min_batch: int = 1
    patience: float = 60.0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        # Here, not in the actor: what is wrong there ends a process of which the user sees only that it died. With few
        # samples instead of all, as a sampler shuffles those that it has.
        self._make_service(EpochSampler(min(self.samples, max(self.min_batch, 1)), epochs=self.epochs), copy=False)
        self._make_sinks()

    def service(self) -> Service:
        """Return the server of this plan, resumed if there is a checkpoint."""
        service = self._make_service(EpochSampler(self.samples, seed=self.seed, epochs=self.epochs))
        service.resume()
        if targets := self._make_sinks():
            RoundRecorder(service, targets)
        return service

    def _make_service(self, sampler: EpochSampler, *, copy: bool = True) -> Service:
        server = Server(
            self.parameters,
            self.optimizer,
            scheme(self.scheme, self.workers),
            sampler,
            batch=self.batch,
            predictor=named(self.predictor),
            copy=copy,
            min_batch=self.min_batch,
        )
        path = None if self.checkpoint is None else Path(self.checkpoint)
        return Service(server, self.patience, checkpoint=path, checkpoint_every=self.checkpoint_every)

    def _make_sinks(self) -> list[Callable[[Round], None]]:
        return sinks(*([self.metrics] if isinstance(self.metrics, str) else self.metrics))


class RayServer:
    """The server's actor. Ray makes it again when its process dies; it then resumes, and workers join by pulling."""

    def __init__(self, plan: RayPlan) -> None:
        self.service = plan.service()
        self._dead_generations: dict[str, int] = {}
        self._membership_lock = Lock()

    def pull(self, worker: str, generation: int) -> WorkItem:
        """Return a worker's next step; one that is not known joins.

        A call of a worker that is dead by now may come after its death: by its ``generation``, how often it had been
        started before, it must not join, as everybody would wait for it behind a barrier.
        """
        with self._membership_lock:  # a worker that is found dead in between would join forever
            gone = generation <= self._dead_generations.get(worker, -1)
            if not gone and worker not in self.service.server.workers:
                self.service.join(worker)
        return finished_work(self.service.parameters) if gone else self.service.pull(worker)

    def push(self, worker: str, work: WorkItem, gradient: Vector, seconds: float, comm_seconds: float) -> Outcome:
        """Take a gradient."""
        times = {"seconds": seconds, "comm_seconds": comm_seconds}
        return self.service.push(worker, work.stamp, gradient, len(work.assigned), **times).outcome

    def leave(self, worker: str, generation: int) -> None:
        """Remove a worker, and let no later call of the same process add it again."""
        with self._membership_lock:
            self._dead_generations[worker] = generation
            self.service.leave(worker)

    def parameters(self) -> Vector:
        """Return the newest parameters, ``[P]``, to evaluate them while training goes on."""
        return self.service.parameters

    def patience(self) -> float | None:
        """Return for how long to wait for workers that are silent, in seconds; ``None`` while there is work to do."""
        return self.service.patience_now if self.service.server.is_finished else None

    def progress(self) -> tuple[int, int, float]:
        """Return the version, the samples applied, and the share of samples that were wasted."""
        server = self.service.server
        return server.version, server.sampler.applied, server.ledger.wasted_share


class RayWorker:
    """A worker's actor."""

    def __init__(self, server: Any, name: str, generation: int, gradient: Callable[[], Gradient]) -> None:
        self.server, self.name, self.generation, self.gradient = server, name, generation, gradient()

    def run(self) -> str:
        """Pull, compute and push until the training has ended; return the worker's name."""
        import ray

        refused, push_seconds = 0, 0.0
        while True:
            requested = time.monotonic()
            work: Any = ray.get(self.server.pull.remote(self.name, self.generation))
            if work.ended:
                return self.name
            note = WorkItem(work.stamp, work.parameters[:0], work.assigned, 0.0)  # its parameters need not travel back
            began = time.monotonic()
            gradient = self.gradient(work.parameters, work.assigned.indices)
            ended = time.monotonic()
            comm_seconds = max(began - requested - work.waited_seconds, 0.0) + push_seconds
            outcome = ray.get(self.server.push.remote(self.name, note, gradient, ended - began, comm_seconds))
            push_seconds = time.monotonic() - ended
            refused = refused + 1 if outcome is Outcome.REFUSED else 0
            if refused >= 5:
                raise RuntimeError(f"the last 5 gradients of {self.name} were refused: look for NaN in the loss")


class RayJob:
    """A server and its workers on a Ray cluster that is running, with the settings of a :class:`RayPlan`.

    Raises
    ------
    ImportError
        If Ray is missing.

    Examples
    --------
    ::

        ray.init()
        plan = RayPlan(parameters=start, optimizer=SGD(0.1), gradient=make, samples=60_000, batch=64, workers=8)
        parameters = RayJob(plan).run()
    """

    def __init__(self, plan: RayPlan) -> None:
        require("ray", needed_by="RayJob", extra="ray")
        self._ray: Any = import_module("ray")
        self.plan = plan
        # all workers may wait behind a barrier, and 8 further calls must get through
        room = plan.workers * (1 + plan.max_restarts) + 8
        # Retried forever: calls that a dying server has not answered reach the one that comes after it. A push that it
        # had taken is then refused as one of a step that is over, and counts once.
        options = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": room, "num_cpus": 0}
        self.server: Any = self._ray.remote(RayServer).options(**options).remote(plan)
        self._worker_by_run: dict[Any, str] = {}
        self.actors: dict[str, Any] = {}
        self.deaths: dict[str, int] = {}
        self._starts_by_worker: dict[str, int] = {}
        for number in range(plan.workers):
            self.add(f"worker{number}")

    def add(self, worker: str) -> None:
        """Start a worker, now or while training goes on.

        Raises
        ------
        ValueError
            If a worker of this name is running.
        """
        if worker in self.actors:
            raise ValueError(
                f"worker {worker!r} is already running; choose another name (running: {', '.join(sorted(self.actors))})"
            )
        generation = self._starts_by_worker[worker] = self._starts_by_worker.get(worker, -1) + 1
        start: Any = self._ray.remote(RayWorker).options(num_cpus=1)
        self.actors[worker] = actor = start.remote(self.server, worker, generation, self.plan.gradient)
        self._worker_by_run[actor.run.remote()] = worker

    def remove(self, worker: str) -> None:
        """End a worker; the samples that it held go to the others."""
        self._worker_by_run = {run: name for run, name in self._worker_by_run.items() if name != worker}
        self._ray.kill(self.actors.pop(worker))
        self._ray.get(self.server.leave.remote(worker, self._starts_by_worker[worker]))

    def poll(self, seconds: float) -> bool:
        """Wait this long for an event, restart workers that died, and return whether the training has ended.

        Raises
        ------
        RuntimeError
            If no worker is left.
        """
        done, _ = self._ray.wait(list(self._worker_by_run), num_returns=1, timeout=seconds)
        for run in done:
            worker = self._worker_by_run.pop(run)
            try:
                self._ray.get(run)
            except self._ray.exceptions.RayError as error:
                self._handle_death(worker, error)
        return not self._worker_by_run

    def run(self) -> Vector:
        """Return the final parameters, ``[P]``, when the training has ended."""
        last = math.inf
        while not self.poll(seconds=1.0):
            patience: Any = self._ray.get(self.server.patience.remote())
            if patience is None:
                last = math.inf  # also where a server that died goes on from an older state
            elif time.monotonic() > last:
                late = ", ".join(sorted(self._worker_by_run.values()))
                logger.warning("%s did not finish in time: the job ends without them", late)
                break
            else:
                last = min(last, time.monotonic() + patience)
        parameters: Vector = self._ray.get(self.server.parameters.remote())
        self.close()
        return parameters

    def close(self) -> None:
        """End the server and all workers."""
        for actor in (*self.actors.values(), self.server):
            self._ray.kill(actor)
        self.actors, self._worker_by_run = {}, {}

    def _handle_death(self, worker: str, error: Exception) -> None:
        logger.warning("%s died: %s", worker, str(error).strip().splitlines()[-1])
        self._ray.get(self.server.leave.remote(worker, self._starts_by_worker[worker]))
        self.actors.pop(worker)
        self.deaths[worker] = self.deaths.get(worker, 0) + 1
        if self.deaths[worker] <= self.plan.max_restarts:
            self.add(worker)
        elif not self._worker_by_run:
            self.close()
            raise RuntimeError(
                f"no worker is left: {worker} died {self.deaths[worker]} times, the last time with {error}"
            )
