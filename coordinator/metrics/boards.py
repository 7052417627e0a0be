"""Sinks for existing tools: Python's log, TensorBoard, Prometheus. Axis: W workers."""

from __future__ import annotations

import atexit
import logging
from pathlib import Path
from typing import Any

import numpy as np

from paceline._require import require
from paceline.coordinator import why
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.metrics.sink import Sink, summary


class Logging(Sink):
    """Writes a line to the log ``paceline.metrics`` for each change of sizes, and one every ``every`` iterations.

    Parameters
    ----------
    every
        Iterations between two lines while nothing changes.
    """

    def __init__(self, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        self.every = every
        self._next = 0

    def write(self, iteration: Iteration) -> None:
        """Log the iteration: a warning if the workers had used different plans."""
        if not iteration.agreed:
            logger.warning("iteration %d: the workers had different plans; the first's is used", iteration.index)
        if iteration.plan.acted or iteration.index >= self._next:  # >= because numbers of short iterations may skip
            self._next = (iteration.index // self.every + 1) * self.every
            numbers = summary(iteration)
            logger.info(
                "iteration %d: %s, waiting %s, %s less than with equal batches; sizes %s. %s",
                iteration.index,
                why.duration(numbers["seconds"]),
                why.percent(numbers["waiting_share"]),
                why.percent(numbers["gain"]),
                iteration.sizes.tolist(),
                iteration.plan.why,
            )


class TensorBoard(Sink):
    """Writes scalars of each iteration for TensorBoard: the fleet's under ``paceline/``, each worker's beside them.

    Parameters
    ----------
    folder
        The folder in which TensorBoard looks for runs.

    Raises
    ------
    ImportError
        If tensorboard is missing, when the sink is made.
    """

    def __init__(self, folder: str | Path) -> None:
        require("torch", needed_by="TensorBoard", extra="torch")
        require("tensorboard", needed_by="TensorBoard", extra="metrics")
        self.folder = Path(folder)
        self._writer: Any = None

    def write(self, iteration: Iteration) -> None:
        """Write the scalars, and the reason as text where sizes changed."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
            atexit.register(self.close)  # TensorBoard's writer flushes only every two minutes
        step, when = iteration.index, iteration.time
        for name, value in summary(iteration).items():
            self._writer.add_scalar(f"paceline/{name}", value, step, walltime=when)
        for name, values_W in _of_workers(iteration).items():
            for worker, value in zip(iteration.workers, values_W, strict=True):
                self._writer.add_scalar(f"paceline_{name}/{worker}", value, step, walltime=when)
        if iteration.plan.acted:
            self._writer.add_text("paceline/why", iteration.plan.why, step, walltime=when)

    def close(self) -> None:
        """Write scalars that are still in memory."""
        if self._writer is not None:
            self._writer.close()


class Prometheus(Sink):
    """Gauges and counters that a Prometheus server collects from this process.

    Parameters
    ----------
    port
        The port to answer on; only the fleet's first worker does. ``None`` only registers the metrics, for a process
        that has its own endpoint.
    registry
        The ``prometheus_client.CollectorRegistry`` to register with; by default the library's own.

    Raises
    ------
    ImportError
        If prometheus_client is missing, when the sink is made.
    """

    def __init__(self, port: int | None = None, *, registry: Any = None) -> None:
        require("prometheus_client", needed_by="Prometheus", extra="metrics")
        self.port = port
        self.registry = registry
        self._server: Any = None
        self._workers: tuple[str, ...] = ()
        self._gauges: dict[str, Any] = {}
        self._counters: dict[str, Any] = {}

    def write(self, iteration: Iteration) -> None:
        """Set the gauges and count the iteration."""
        if not self._gauges:
            self._register()
        if iteration.workers != self._workers:
            self._forget_workers()
            self._workers = iteration.workers
        for name, value in summary(iteration).items():
            self._gauges[name].set(value)
        for name, values_W in _of_workers(iteration).items():
            for worker, value in zip(iteration.workers, values_W, strict=True):
                self._gauges[f"worker_{name}"].labels(worker).set(value)
        self._counters["iterations"].inc()
        self._counters["samples"].inc(iteration.global_batch)
        self._counters["changes"].inc(iteration.plan.acted)
        self._counters["disagreements"].inc(not iteration.agreed)

    def close(self) -> None:
        """Stop answering; the metrics stay registered."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
        self._server = None

    def _forget_workers(self) -> None:
        """Remove the gauges of workers that left."""
        for name in WORKER:
            self._gauges[f"worker_{name}"].clear()

    def _register(self) -> None:
        from prometheus_client import REGISTRY, Counter, Gauge, start_http_server

        registry = REGISTRY if self.registry is None else self.registry
        for name, about in FLEET.items():
            self._gauges[name] = Gauge(f"paceline_{name}", about, registry=registry)
        for name, about in WORKER.items():
            gauge = Gauge(f"paceline_worker_{name}", about, ["worker"], registry=registry)
            self._gauges[f"worker_{name}"] = gauge
        for name, about in COUNTED.items():
            self._counters[name] = Counter(f"paceline_{name}", about, registry=registry)
        if self.port is not None:
            self._server = start_http_server(self.port, registry=registry)


logger = logging.getLogger("paceline.metrics")

FLEET = {
    "seconds": "Own compute time of the slowest worker.",
    "forecast_seconds": "Time that the slowest worker was expected to take.",
    "equal_seconds": "Time that the slowest worker would have taken with equal batches, an estimate.",
    "gain": "Share of the time saved over equal batches.",
    "waiting_share": "Share of the workers' time spent waiting for the slowest.",
    "forecast_error": "Relative error of the forecast, the mean over the workers.",
    "wall_seconds": "Time from one iteration's start to the next one's.",
    "overhead_seconds": "Time that balancing took on the critical path.",
}
WORKER = {
    "samples": "Samples processed in the last iteration.",
    "seconds": "Own compute time of the last iteration.",
    "forecast_seconds": "Compute time that was expected.",
    "wait_seconds": "Time it waited for the slowest.",
}
COUNTED = {
    "iterations": "Iterations done.",
    "samples": "Samples processed.",
    "changes": "Times the sizes were changed.",
    "disagreements": "Times the workers had different plans.",
}


def _of_workers(iteration: Iteration) -> dict[str, list[float]]:
    """Return the numbers of each worker, under the names in ``WORKER``."""
    with np.errstate(invalid="ignore"):  # a worker may have reported an infinite time
        waited_W = iteration.wait_seconds
    rows = (iteration.sizes, iteration.seconds, iteration.forecast_seconds, waited_W)
    return {name: np.asarray(row, dtype=float).tolist() for name, row in zip(WORKER, rows, strict=True)}
