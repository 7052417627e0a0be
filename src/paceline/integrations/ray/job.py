"""A server and its workers on Ray."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

from paceline._require import require
from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.integrations.ray.actors import RayPlan, RayServer, RayWorker

logger = logging.getLogger("paceline.asynchronous")


class RayJob:
    """A server and its workers on a Ray cluster that is running.

    Parameters
    ----------
    plan
        Setting of the job.

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
        import ray

        self.plan = plan
        # all workers may wait behind a barrier, and 8 further calls must get through
        room = plan.workers * (1 + plan.comebacks) + 8
        # Retried forever: calls that a dying server has not answered reach the one that comes after it. A push that it
        # had taken is then refused as one of a step that is over, and counts once.
        options = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": room, "num_cpus": 0}
        self.server: Any = ray.remote(RayServer).options(**options).remote(plan)
        self._running: dict[Any, str] = {}
        self.actors: dict[str, Any] = {}
        self.deaths: dict[str, int] = {}
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

        if worker in self.actors:
            raise ValueError(f"worker must be a new name, got {worker!r}, which is at work: {sorted(self.actors)}")

        life = self._lives[worker] = self._lives.get(worker, -1) + 1
        actor: Any = ray.remote(RayWorker).options(num_cpus=1).remote(self.server, worker, life, self.plan.gradient)
        self.actors[worker] = actor
        self._running[actor.run.remote()] = worker

    def remove(self, worker: str) -> None:
        """End a worker; the samples that it held go to the others."""
        import ray

        self._running = {run: name for run, name in self._running.items() if name != worker}
        ray.kill(self.actors.pop(worker))
        ray.get(self.server.leave.remote(worker, self._lives[worker]))

    def poll(self, seconds: float) -> bool:
        """Wait this long for an event, restart workers that died, and return whether the training has ended.

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

        last = math.inf
        while not self.poll(seconds=1.0):
            patience: Any = ray.get(self.server.patience.remote())
            if patience is None:
                last = math.inf  # also where a server that died goes on from an older state
            elif time.monotonic() > last:
                logger.warning(
                    "%s did not finish: the job ends without them", ", ".join(sorted(self._running.values()))
                )
                break
            else:
                last = min(last, time.monotonic() + patience)
        final: Any = ray.get(self.server.parameters.remote())
        self.close()
        parameters: Vector = final
        return parameters

    def close(self) -> None:
        """End the server and all workers."""
        import ray

        for actor in (*self.actors.values(), self.server):
            ray.kill(actor)
        self.actors, self._running = {}, {}

    def _lost(self, worker: str, error: Exception) -> None:
        import ray

        logger.warning("%s died: %s", worker, str(error).strip().splitlines()[-1])
        ray.get(self.server.leave.remote(worker, self._lives[worker]))
        self.actors.pop(worker)
        self.deaths[worker] = self.deaths.get(worker, 0) + 1
        if self.deaths[worker] <= self.plan.comebacks:
            self.add(worker)
        elif not self._running:
            self.close()
            raise RuntimeError(f"no worker is left: {worker} died {self.deaths[worker]} times, the last of {error}")
