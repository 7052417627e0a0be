"""A sink that a Prometheus server collects from."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from paceline._require import require
from paceline.coordinator.iteration import Iteration
from paceline.coordinator.metrics.sink import Sink, of_workers, summary

LOOPBACK = "127.0.0.1"
MOST_PORTS = 65535

logger = logging.getLogger("paceline.metrics")


class Prometheus(Sink):
    """Gauges and counters that a Prometheus server collects from this process.

    Parameters
    ----------
    port
        The port to answer on; only the fleet's first worker does. ``None`` only registers the metrics, for a process
        that has its own endpoint.
    address
        The address to answer on: by default only this machine can ask. ``"0.0.0.0"`` answers everyone who can reach
        the machine; what is told holds the workers' names, and there is no password.
    registry
        The ``prometheus_client.CollectorRegistry`` to register with; by default the library's own. Sinks with one
        registry share its metrics: the counters add up, and the gauges show what was written last.

    Raises
    ------
    ImportError
        If prometheus_client is missing, when the sink is made.
    ValueError
        If the port is not one.
    """

    def __init__(self, port: int | None = None, *, address: str = LOOPBACK, registry: Any = None) -> None:
        require("prometheus_client", needed_by="Prometheus", extra="metrics")
        if port is not None and not 0 <= port <= MOST_PORTS:
            raise ValueError(f"port must be from 0 (any that is free) to {MOST_PORTS}, got {port}")
        self.port = port
        self.address = address
        self.registry = registry
        self._server: Any = None
        self._metrics: _Metrics | None = None
        self._workers: tuple[str, ...] = ()

    def write(self, iteration: Iteration) -> None:
        """Set the gauges and count the iteration."""
        metrics = self._metrics = self._metrics or self._registered()
        if iteration.workers != self._workers:
            metrics.forget_workers()
            self._workers = iteration.workers
        for name, value in summary(iteration).items():
            metrics.gauges[name].set(value)
        for name, values_W in of_workers(iteration).items():
            for worker, value in zip(iteration.workers, values_W, strict=True):
                metrics.gauges[f"worker_{name}"].labels(worker).set(value)
        metrics.counters["iterations"].inc()
        metrics.counters["samples"].inc(iteration.global_batch)
        metrics.counters["changes"].inc(iteration.plan.acted)
        metrics.counters["disagreements"].inc(not iteration.agreed)

    def close(self) -> None:
        """Stop answering; the metrics stay registered, as counters must not start again within a process."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
        self._server = None

    def _registered(self) -> _Metrics:
        from prometheus_client import REGISTRY, start_http_server

        registry = REGISTRY if self.registry is None else self.registry
        if self.port is not None:  # first, because a port that is taken must leave no metrics behind
            self._server = start_http_server(self.port, addr=self.address, registry=registry)
        if registry not in _OF_REGISTRY:
            _OF_REGISTRY[registry] = _Metrics.registered_with(registry)
        return _OF_REGISTRY[registry]


@dataclass
class _Metrics:
    """The metrics of one registry, which refuses to register a name twice."""

    gauges: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def registered_with(cls, registry: Any) -> _Metrics:
        from prometheus_client import Counter, Gauge

        made = cls()
        for name, about in FLEET.items():
            made.gauges[name] = Gauge(f"paceline_{name}", about, registry=registry)
        for name, about in WORKER.items():
            gauge = Gauge(f"paceline_worker_{name}", about, ["worker"], registry=registry)
            made.gauges[f"worker_{name}"] = gauge
        for name, about in COUNTED.items():
            made.counters[name] = Counter(f"paceline_{name}", about, registry=registry)
        return made

    def forget_workers(self) -> None:
        """Remove the gauges of workers that left."""
        for name in WORKER:
            self.gauges[f"worker_{name}"].clear()


_OF_REGISTRY: WeakKeyDictionary[Any, _Metrics] = WeakKeyDictionary()

FLEET = {
    "seconds": "Own compute time of the slowest worker.",
    "forecast_seconds": "Time that the slowest worker was expected to take.",
    "equal_seconds": "Time that the slowest worker would have taken with equal batches, an estimate.",
    "gain": "Share of the time saved over equal batches.",
    "waiting_share": "Share of the workers' time spent waiting for the slowest.",
    "waiting_from_workers": "What it would be with equal work, every worker at its own speed; NaN without costs.",
    "waiting_from_work": "What it would be with the actual work, all workers at one speed; NaN without costs.",
    "forecast_error": "Relative error of the forecast, the mean over the workers.",
    "wall_seconds": "Time from one iteration's start to the next one's.",
    "overhead_seconds": "Time that balancing took on the critical path.",
}
WORKER = {
    "samples": "Samples processed in the last iteration.",
    "work": "What they cost, in average samples; NaN where samples have no costs.",
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
