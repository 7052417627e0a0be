"""The processes of a job on Ray: the server, its shards, and the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np

from paceline.coordinator.asynchronous.optimizer import Vector
from paceline.coordinator.asynchronous.schemes import scheme
from paceline.coordinator.asynchronous.server import Outcome
from paceline.coordinator.asynchronous.store import Everywhere, Shard, ShardedStore, pieces
from paceline.integrations.ray.job_setting import Gradient, RayPlan
from paceline.parameter_server.service import Work, nothing_to_do


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
