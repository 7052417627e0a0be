"""A sink that a Prometheus server collects from."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from paceline._printable import encodable
from paceline._require import require
from paceline.recording.iteration import Iteration
from paceline.recording.round import Round
from paceline.recording.sink import (
    Sink,
    of_workers,
    of_workers_in_round,
    summary,
    summary_of_round,
)

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
        the machine; what it serves holds the workers' names, and there is no password.
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
        metrics = self._set(SYNCHRONOUS, iteration.workers, summary(iteration), of_workers(iteration))
        metrics.counters["iterations"].inc()
        metrics.counters["samples"].inc(iteration.global_batch)
        metrics.counters["changes"].inc(iteration.plan.acted)
        metrics.counters["disagreements"].inc(not iteration.agreed)
        metrics.counters["drifts"].inc(iteration.plan.drift_began)

    def write_round(self, record: Round) -> None:
        """Set the gauges and count the round."""
        metrics = self._set(ASYNCHRONOUS, record.workers, summary_of_round(record), of_workers_in_round(record))
        metrics.counters["rounds"].inc()
        metrics.counters["changes"].inc(record.acted)

    def close(self) -> None:
        """Stop answering; the metrics stay registered, as counters must not start again within a process."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
        self._server = None

    def _set(
        self, family: Family, workers: tuple[str, ...], numbers: dict[str, float], rows: dict[str, list[float]]
    ) -> _Metrics:
        metrics = self._metrics = self._metrics or self._registered(family)
        if workers != self._workers:
            metrics.forget_workers()
            self._workers = workers
        for name, value in numbers.items():
            metrics.gauges[name].set(value)
        for name, values_W in rows.items():
            for worker, value in zip(workers, values_W, strict=True):
                metrics.of_workers[name].labels(encodable(worker)).set(value)
        return metrics

    def _registered(self, family: Family) -> _Metrics:
        from prometheus_client import REGISTRY, start_http_server

        registry = REGISTRY if self.registry is None else self.registry
        if self.port is not None:  # first, because a port that is taken must leave no metrics behind
            self._server = start_http_server(self.port, addr=self.address, registry=registry)
        registered = _OF_REGISTRY.setdefault(registry, {})
        if family.prefix not in registered:
            registered[family.prefix] = _Metrics.registered_with(registry, family)
        return registered[family.prefix]


@dataclass(frozen=True)
class Family:
    """The names of metrics that belong together, and what they mean."""

    prefix: str
    fleet: dict[str, str]
    worker: dict[str, str]
    counted: dict[str, str]


@dataclass
class _Metrics:
    """The metrics of one registry, which refuses to register a name twice."""

    gauges: dict[str, Any] = field(default_factory=dict)
    of_workers: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def registered_with(cls, registry: Any, family: Family) -> _Metrics:
        from prometheus_client import Counter, Gauge

        made, prefix = cls(), family.prefix
        for name, about in family.fleet.items():
            made.gauges[name] = Gauge(f"{prefix}_{name}", about, registry=registry)
        for name, about in family.worker.items():
            made.of_workers[name] = Gauge(f"{prefix}_worker_{name}", about, ["worker"], registry=registry)
        for name, about in family.counted.items():
            made.counters[name] = Counter(f"{prefix}_{name}", about, registry=registry)
        return made

    def forget_workers(self) -> None:
        """Remove the gauges of workers that left."""
        for gauge in self.of_workers.values():
            gauge.clear()


_OF_REGISTRY: WeakKeyDictionary[Any, dict[str, _Metrics]] = WeakKeyDictionary()

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
    "drift": "Share of the latest speeds or covariates unlike what the model was fitted on; NaN if it does not know "
    "that.",
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
    "drifts": "Times that speeds or covariates left what the model was fitted on.",
}
SYNCHRONOUS = Family("paceline", FLEET, WORKER, COUNTED)

ASYNCHRONOUS = Family(
    "paceline_async",
    fleet={
        "version": "Updates applied.",
        "applied_samples": "Samples applied.",
        "dropped_samples": "Samples of pushes beyond the bound, drawn again.",
        "abandoned_samples": "Samples of steps that were given up, drawn again.",
        "refused_samples": "Samples of pushes with something wrong, drawn again.",
        "wasted_share": "Share of the samples computed that was for nothing.",
        "stragglers": "Workers that are stragglers.",
        "largest_staleness": "Largest staleness applied, in versions.",
        "forecast_staleness": "Staleness forecast, in versions, the mean over all pushes.",
        "actual_staleness": "Staleness seen, in versions, the mean over all pushes.",
        "forecast_covered": "Share of the pushes within the forecast's limit.",
    },
    worker={
        "next_samples": "Samples of the next step.",
        "staleness": "Mean staleness of the last round's pushes, in versions.",
        "expected_staleness": "Staleness forecast for the next push, in versions.",
        "applied_samples": "Samples applied.",
        "samples_wasted": "Samples computed for nothing.",
        "waited_seconds": "Time it waited for others.",
    },
    counted={"rounds": "Rounds recorded.", "changes": "Rounds in which something happened."},
)
