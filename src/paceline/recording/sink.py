"""Where records of a run go: logs, TensorBoard, Prometheus, files of JSON lines. Axis: W workers."""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from paceline._files import Lines
from paceline._require import require
from paceline._text import count, duration, escape_surrogates, percent, printable
from paceline._version import __version__
from paceline.datasets.waiting_time import waiting
from paceline.recording.records import Iteration, Round
from paceline.recording.run_log import LONGEST, ROUND_OF_FLEET, ROUND_OF_WORKERS, ROUND_SCHEMA, SCHEMA, parsed

logger = logging.getLogger("paceline.metrics")


class Sink:
    """Writes the record of each iteration somewhere; add it to ``on_iteration``.

    Every rank may have one; only that of the fleet's first worker writes. If writing fails, for whatever reason, the
    sink logs an error and stops, and the training continues.
    """

    _ended = False

    def __call__(self, record: Iteration | Round) -> None:
        """Write the record of an iteration, if this is the fleet's first worker, or of an asynchronous round."""
        if self._ended or (isinstance(record, Iteration) and record.worker != record.workers[0]):
            return
        try:
            if isinstance(record, Round):
                self.write_round(record)
            else:
                self.write(record)
        except Exception as error:  # of any kind: a dashboard is never worth a training
            self._ended = True
            name = type(self).__name__
            logger.error("no more metrics are written by %s: %s", name, printable(f"{type(error).__name__}: {error}"))

    def write(self, iteration: Iteration) -> None:
        """Write the record of an iteration."""
        raise TypeError(f"{type(self).__name__} must define write")

    def write_round(self, record: Round) -> None:
        """Write the record of a round of asynchronous training."""
        raise TypeError(f"{type(self).__name__} must define write_round to watch asynchronous training")

    def close(self) -> None:
        """Finish writing. A process that ends normally need not call it."""


def summary(iteration: Iteration) -> dict[str, float]:
    """Return the numbers of the whole fleet that every dashboard shows; NaN where they are not known.

    Returns
    -------
    dict
        ``seconds``, those of the slowest worker; ``forecast_seconds``, their forecast; ``equal_seconds``, an estimate
        of them with equal batches; ``gain``, the share of the time saved over that; ``waiting_share``;
        ``waiting_from_workers`` and ``waiting_from_work``, its parts as ``paceline.datasets.waiting_time`` does;
        ``forecast_error``, the mean relative error over the workers; ``wall_seconds``; ``overhead_seconds``.

    Examples
    --------
    One worker is half as fast, and got half as many samples; a part of the times is taken to be fixed:

    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.predictors import EWMA, Report
    >>> balancer = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=60)
    >>> used, report = balancer.plan, Report(samples=[40, 20], seconds=[0.4, 0.4])
    >>> numbers = summary(Iteration.of(used, report, balancer.step(report)))
    >>> round(numbers["equal_seconds"], 3), round(numbers["gain"], 3)
    (0.543, 0.264)
    """
    reported = np.where(np.isfinite(iteration.seconds), iteration.seconds, np.nan)
    iteration = replace(iteration, seconds=reported)  # an infinite time counts as no report
    equal = _equal_seconds(iteration)
    with np.errstate(divide="ignore", invalid="ignore"):
        error_W = np.abs(iteration.forecast_seconds / reported - 1.0)
    known_W = np.isfinite(error_W)
    waited = waiting(reported[None], None if iteration.work is None else iteration.work[None])
    return {
        "seconds": iteration.makespan,
        "forecast_seconds": float(np.max(iteration.forecast_seconds)),
        "equal_seconds": equal,
        "gain": 1.0 - iteration.makespan / equal if equal > 0 else float("nan"),
        "waiting_share": iteration.waiting_share,
        "waiting_from_workers": waited.from_workers,
        "waiting_from_work": waited.from_work,
        "forecast_error": float(error_W[known_W].mean()) if known_W.any() else float("nan"),
        "wall_seconds": float(iteration.wall_seconds),
        "overhead_seconds": float(iteration.overhead_seconds),
    }


def of_workers(iteration: Iteration) -> dict[str, list[float]]:
    """Return the numbers of each worker, in the order of the fleet, by their names; work only where it is known."""
    with np.errstate(invalid="ignore"):  # a worker may have reported an infinite time
        waited_W = iteration.wait_seconds
    names = ("samples", "work", "seconds", "forecast_seconds", "wait_seconds")
    rows = (iteration.sizes, iteration.work, iteration.seconds, iteration.forecast_seconds, waited_W)
    known = {name: row for name, row in zip(names, rows, strict=True) if row is not None}
    return {name: np.asarray(row, dtype=float).tolist() for name, row in known.items()}


def summary_of_round(record: Round) -> dict[str, float]:
    """Return the numbers of the whole fleet that every dashboard shows of asynchronous training.

    Returns
    -------
    dict
        ``version`` and ``applied_samples``; ``dropped_samples``, ``abandoned_samples``, ``refused_samples`` and the
        ``wasted_share`` that they make; ``stragglers``; ``largest_staleness``; ``forecast_staleness`` and
        ``actual_staleness``, their means, and ``forecast_covered``, NaN without a forecast.
    """
    return {
        "version": float(record.version),
        "applied_samples": float(record.applied),
        "dropped_samples": float(record.dropped),
        "abandoned_samples": float(record.abandoned),
        "refused_samples": float(record.refused),
        "wasted_share": record.wasted_share,
        "stragglers": float(len(record.stragglers)),
        "largest_staleness": float(record.largest),
        "forecast_staleness": record.forecast,
        "actual_staleness": record.actual,
        "forecast_covered": record.covered,
    }


def of_workers_in_round(record: Round) -> dict[str, list[float]]:
    """Return the numbers of each worker, in the order of the fleet, by their names."""
    rows = {
        "next_samples": record.sizes,
        "staleness": record.staleness,
        "expected_staleness": record.expected,
        "applied_samples": record.done,
        "samples_wasted": record.wasted,
        "waited_seconds": record.waited,
    }
    return {name: np.asarray(row, dtype=float).tolist() for name, row in rows.items()}


def _equal_seconds(iteration: Iteration) -> float:
    """Return the slowest worker's time with equal batches: measured times, moved along the forecast curves."""
    curves = iteration.plan.forecast.curves
    # Where samples have costs, curves are about work; fractions of it suit an estimate.
    known = iteration.work is not None and bool(np.isfinite(iteration.work).all())
    amount_W = iteration.work if known and iteration.work is not None else iteration.sizes
    used_W = curves.busy_seconds(amount_W)
    equal_W = curves.busy_seconds(np.full(len(amount_W), amount_W.mean()))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.fmax.reduce(np.where(used_W > 0, iteration.seconds * equal_W / used_W, np.nan)))


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
        self._next = self._disagreed = 0

    def write(self, iteration: Iteration) -> None:
        """Log the iteration: a warning if the workers had used different plans."""
        self._disagreed += not iteration.agreed
        # A disagreement that lasts is logged ever more rarely: the first time, the second, the fourth, ...
        if not iteration.agreed and self._disagreed.bit_count() == 1:
            logger.warning(
                "iteration %d: the workers had different plans; the first's is used (so far %s)",
                iteration.index,
                count(self._disagreed, "time"),
            )
        if iteration.plan.acted or iteration.index >= self._next:  # >= because numbers of short iterations may skip
            self._next = (iteration.index // self.every + 1) * self.every
            numbers = summary(iteration)
            logger.info(
                "iteration %d: %s, waiting %s, %s less than with equal batches; sizes %s. %s",
                iteration.index,
                duration(numbers["seconds"]),
                percent(numbers["waiting_share"]),
                percent(numbers["gain"]),
                iteration.sizes.tolist(),
                printable(iteration.plan.why),  # a log is often read on a terminal
            )

    def write_round(self, record: Round) -> None:
        """Log the round, if something happened in it, or every ``every`` rounds."""
        if record.acted or record.index >= self._next:
            self._next = (record.index // self.every + 1) * self.every
            logger.info(
                "round %d: version %d, %s applied, %s wasted, stragglers %s; sizes %s. %s",
                record.index,
                record.version,
                count(record.applied, "sample"),
                percent(record.wasted_share),
                list(map(printable, record.stragglers)),
                record.sizes.tolist(),
                printable(record.why),
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
        self._write(iteration.index, iteration.time, summary(iteration), iteration.workers, of_workers(iteration))
        if iteration.plan.acted:
            self._writer.add_text(
                "paceline/why", escape_surrogates(iteration.plan.why), iteration.index, walltime=iteration.time
            )

    def write_round(self, record: Round) -> None:
        """Write the scalars, and the reason as text where something happened."""
        numbers, rows = summary_of_round(record), of_workers_in_round(record)
        self._write(record.index, record.time, numbers, record.workers, rows)
        if record.acted:
            self._writer.add_text("paceline/why", escape_surrogates(record.why), record.index, walltime=record.time)

    def close(self) -> None:
        """Write scalars that are still in memory."""
        if self._writer is not None:
            self._writer.close()

    def _write(
        self, step: int, when: float, numbers: dict[str, float], workers: tuple[str, ...], rows: dict[str, list[float]]
    ) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
            atexit.register(self.close)  # TensorBoard's writer flushes only every two minutes
        for name, value in numbers.items():
            if not math.isnan(value):  # a board would draw it as a point of its own
                self._writer.add_scalar(f"paceline/{name}", value, step, walltime=when)
        for name, values_W in rows.items():
            for worker, value in zip(workers, values_W, strict=True):
                self._writer.add_scalar(f"paceline_{name}/{escape_surrogates(worker)}", value, step, walltime=when)


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

    def __init__(self, port: int | None = None, *, address: str = "127.0.0.1", registry: Any = None) -> None:
        require("prometheus_client", needed_by="Prometheus", extra="metrics")
        if port is not None and not 0 <= port <= 65535:
            raise ValueError(f"port must be from 0 (any that is free) to 65535, got {port}")
        self.port = port
        self.address = address
        self.registry = registry
        self.server: Any = None
        self._metrics: _Metrics | None = None
        self._workers: tuple[str, ...] = ()

    def write(self, iteration: Iteration) -> None:
        """Set the gauges and count the iteration."""
        metrics = self._set(SYNCHRONOUS, iteration.workers, summary(iteration), of_workers(iteration))
        metrics.counters["iterations"].inc()
        metrics.counters["samples"].inc(iteration.global_batch)
        metrics.counters["changes"].inc(iteration.plan.acted)
        metrics.counters["disagreements"].inc(not iteration.agreed)

    def write_round(self, record: Round) -> None:
        """Set the gauges and count the round."""
        metrics = self._set(ASYNCHRONOUS, record.workers, summary_of_round(record), of_workers_in_round(record))
        metrics.counters["rounds"].inc()
        metrics.counters["changes"].inc(record.acted)

    def close(self) -> None:
        """Stop answering; the metrics stay registered, as counters must not start again within a process."""
        if self.server is not None:
            server, thread = self.server
            server.shutdown()
            server.server_close()
            thread.join()
        self.server = None

    def _set(
        self, family: Family, workers: tuple[str, ...], numbers: dict[str, float], rows: dict[str, list[float]]
    ) -> _Metrics:
        metrics = self._metrics = self._metrics or self._registered(family)
        if workers != self._workers:
            for gauge in metrics.of_workers.values():  # of workers that left
                gauge.clear()
            self._workers = workers
        for name, value in numbers.items():
            metrics.gauges[name].set(value)
        for name, values_W in rows.items():
            for worker, value in zip(workers, values_W, strict=True):
                metrics.of_workers[name].labels(escape_surrogates(worker)).set(value)
        return metrics

    def _registered(self, family: Family) -> _Metrics:
        from prometheus_client import REGISTRY, Counter, Gauge, start_http_server

        registry = REGISTRY if self.registry is None else self.registry
        if self.port is not None:  # first, because a port that is taken must leave no metrics behind
            self.server = start_http_server(self.port, addr=self.address, registry=registry)
        registered = _OF_REGISTRY.setdefault(registry, {})
        if family.prefix not in registered:
            registered[family.prefix] = made = _Metrics()
            for name, about in family.fleet.items():
                made.gauges[name] = Gauge(f"{family.prefix}_{name}", about, registry=registry)
            for name, about in family.worker.items():
                made.of_workers[name] = Gauge(f"{family.prefix}_worker_{name}", about, ["worker"], registry=registry)
            for name, about in family.counted.items():
                made.counters[name] = Counter(f"{family.prefix}_{name}", about, registry=registry)
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


_OF_REGISTRY: WeakKeyDictionary[Any, dict[str, _Metrics]] = WeakKeyDictionary()

SYNCHRONOUS = Family(
    "paceline",
    {
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
    },
    {
        "samples": "Samples processed in the last iteration.",
        "work": "What they cost, in average samples; NaN where samples have no costs.",
        "seconds": "Own compute time of the last iteration.",
        "forecast_seconds": "Compute time that was expected.",
        "wait_seconds": "Time it waited for the slowest.",
    },
    {
        "iterations": "Iterations done.",
        "samples": "Samples processed.",
        "changes": "Times the sizes were changed.",
        "disagreements": "Times the workers had different plans.",
    },
)

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

Target = str | Callable[[Any], None]
"""The name of a sink, or a sink: any function of an iteration, or of a round of asynchronous training."""


def sinks(*targets: Target) -> list[Callable[[Any], None]]:
    """Return the sinks for these names; a sink, or any function of an iteration or a round, is returned unchanged.

    Parameters
    ----------
    targets
        ``"log"``, ``"tensorboard:FOLDER"``, ``"prometheus:PORT"``, ``"prometheus:HOST:PORT"``, or the path of a
        JSON-lines file, ``"run.jsonl"``. Prometheus answers this machine only, unless the host says otherwise.

    Raises
    ------
    ValueError
        If a text names no sink.
    ImportError
        If a sink's library is missing.

    Examples
    --------
    >>> [type(sink).__name__ for sink in sinks("log", "run.jsonl")]
    ['Logging', 'JsonLines']
    >>> sinks("run.csv")
    Traceback (most recent call last):
    ValueError: metrics must be "log", "tensorboard:FOLDER", "prometheus:PORT", "prometheus:HOST:PORT" or a file that
    ends in .jsonl, got 'run.csv'
    """
    return [_named(target) if isinstance(target, str) else target for target in targets]


def _named(target: str) -> Sink:
    kind, _, argument = target.partition(":")
    if target == "log":
        return Logging()
    if kind == "tensorboard" and argument:
        return TensorBoard(argument)
    if kind == "prometheus" and (port := argument.rpartition(":")[2]).isdecimal():
        host = argument.removesuffix(port).removesuffix(":").strip("[]")  # an IPv6 address may stand in brackets
        return Prometheus(int(port), address=host or "127.0.0.1")
    if target.endswith(".jsonl"):
        return JsonLines(target)
    raise ValueError(
        'metrics must be "log", "tensorboard:FOLDER", "prometheus:PORT", "prometheus:HOST:PORT" or a file that ends in '
        f".jsonl, got {target!r}"
    )


def known(value: float) -> float | None:
    """Return a number for JSON: null if it is not finite.

    >>> known(0.25), known(float("nan"))
    (0.25, None)
    """
    return round(float(value), 7) if math.isfinite(value) else None


def all_known(values: ArrayLike) -> list[float | None]:
    """Return numbers for JSON, ``[W]``."""
    return [known(value) for value in np.asarray(values, dtype=np.float64).tolist()]


def header_of_rounds(record: Round) -> dict[str, Any]:
    """Return the line that comes before the rounds of a fleet."""
    return {
        "paceline_async_run": ROUND_SCHEMA,
        "version": __version__,
        "workers": list(record.workers),
        "scheme": record.scheme,
        "bound": record.bound,
        "batch": record.batch,
        "units": {
            "time": "seconds since the epoch",
            "waited": "seconds",
            "staleness, expected, forecast, actual, largest, bound": "versions",
            "sizes, done, wasted, applied, dropped, abandoned, refused, batch": "samples",
            "wasted_share, covered": "share",
        },
    }


def about_round(record: Round) -> dict[str, Any]:
    """Return the line of a round."""
    return {
        **{name: known(getattr(record, name)) for name in ROUND_OF_FLEET},
        "time": round(record.time, 3),
        **{name: all_known(getattr(record, name)) for name in ROUND_OF_WORKERS},
        "stragglers": list(record.stragglers),
        "acted": record.acted,
        "why": record.why,
    }


class JsonLines(Sink):
    """Appends a line to a file at each iteration, and hands it to the operating system at once.

    However the process ends, even by ``kill -9``, the file stays readable up to the last line, which may be cut short.
    The first line names the schema, the workers and the global batch. Another such line follows whenever the fleet
    changes or a run is resumed into the same file. Iterations that do not fit on a full disk are lost, and counted in
    the next line that fits (``lost_before``). A process that ends without an error, and :meth:`close`, write a last
    line that says so (``ended``): without it a watcher takes silence for a fault. One job at a time writes to a file:
    the sink of another one logs which process does, and writes nothing. Read it with :func:`read_run`,
    ``paceline watch`` or ``paceline report``.

    Parameters
    ----------
    path
        The file, preferably with the suffix ``.jsonl``; made, with its parent folders, when the first iteration is
        written.

    Attributes
    ----------
    lost
        Number of iterations that could not be written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from paceline.coordinator import LoadBalancer
    >>> from paceline.recording import read_run
    >>> from paceline.predictors import EWMA, Report
    >>> balancer = LoadBalancer(EWMA(), workers=["gpu0", "gpu1"], global_batch=512)
    >>> used, report = balancer.plan, Report(samples=[256, 256], seconds=[0.25, 0.5])
    >>> iteration = Iteration.of(used, report, balancer.step(report))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sink = JsonLines(f"{folder}/run.jsonl")
    ...     sink(iteration)
    ...     sink.close()
    ...     print(read_run(f"{folder}/run.jsonl").seconds)
    [[0.25 0.5 ]]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lost = 0
        self._lines: Lines | None = None
        self._lost_since = 0
        self._fleet: tuple[tuple[str, ...], int] | None = None
        self._run = secrets.token_hex(4)  # by it a reader knows which header explains a line
        self._started = datetime.now().astimezone().isoformat(" ", "seconds")

    def write(self, iteration: Iteration) -> None:
        """Append the iteration, after a header line if the fleet is a new one."""
        self._append((iteration.workers, int(iteration.plan.sizes.sum())), _header(iteration), _about(iteration))

    def write_round(self, record: Round) -> None:
        """Append the round, after a header line if the fleet is a new one."""
        self._append((record.workers, record.batch), header_of_rounds(record), about_round(record))

    def _append(self, fleet: tuple[tuple[str, ...], int], header: dict[str, Any], about: dict[str, Any]) -> None:
        if self._lines is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lines, self._process = self._opened(), os.getpid()
            atexit.register(self._end)
        process = {"pid": os.getpid(), "host": socket.gethostname(), "started": self._started}
        if fleet != self._fleet and self._line({**header, "run": self._run, "process": process}):
            self._fleet = fleet
        # Without its header a record would be read as one of the fleet before: it is lost with it.
        lost = {"lost_before": self._lost_since} if self._lost_since else {}
        if fleet == self._fleet and self._line(about | lost | {"run": self._run}):
            self._lost_since = 0
        else:
            self.lost += 1
            self._lost_since += 1

    def _opened(self) -> Lines:
        try:
            return Lines(self.path, logger, alone=True)
        except BlockingIOError:
            writer = _writer_of(self.path)
            if (writer.get("pid"), writer.get("host")) == (os.getpid(), socket.gethostname()):
                return Lines(self.path, logger)  # another sink of this process: its job goes on
            raise ValueError(
                f"{self.path} is written by process {writer.get('pid', 'of another job')} on "
                f"{writer.get('host', 'a machine of yours')}, which started {writer.get('started', 'before')}; give "
                "each job a file of its own"
            ) from None

    def close(self) -> None:
        """Write that the run has ended, and close the file; a further iteration opens it again."""
        if self._lines is not None:
            self._line({"ended": round(time.time(), 3)})
            self._lines.close()
            atexit.unregister(self._end)
        self._lines = self._fleet = None

    def _end(self) -> None:
        # A run that an error ended did not end well, and a forked process did not end the run.
        if getattr(sys, "last_type", None) is None and os.getpid() == self._process:
            self.close()

    def _line(self, content: dict[str, Any]) -> bool:
        return self._lines is not None and self._lines.append(json.dumps(content, allow_nan=False))


def _writer_of(path: Path) -> dict[str, Any]:
    """Return what the newest header of a file says of the process that writes it; nothing where none says so."""
    found: dict[str, Any] = {}
    with path.open("rb") as file:
        for text in iter(partial(file.readline, LONGEST), b""):
            if b'"process"' in text and isinstance(process := parsed(text).get("process"), dict):
                found = process
    return found


def _header(iteration: Iteration) -> dict[str, Any]:
    return {
        "paceline_run": SCHEMA,
        "version": __version__,
        "workers": list(iteration.workers),
        "global_batch": int(iteration.plan.sizes.sum()),
        "units": {
            "time": "seconds since the epoch",
            "sizes": "samples",
            "work": "average samples",
            "all others": "seconds, or shares",
        },
    }


def _about(iteration: Iteration) -> dict[str, Any]:
    numbers, plan = summary(iteration), iteration.plan
    return {
        "index": iteration.index,
        "time": round(iteration.time, 3),
        "sizes": iteration.sizes.tolist(),
        "seconds": all_known(iteration.seconds),
        "forecast_seconds": all_known(iteration.forecast_seconds),
        "comm_seconds": all_known(iteration.comm_seconds),
        "wall_seconds": known(numbers["wall_seconds"]),
        "equal_seconds": known(numbers["equal_seconds"]),
        "overhead_seconds": known(numbers["overhead_seconds"]),
        "agreed": bool(iteration.agreed),
        **({} if iteration.work is None else {"work": all_known(iteration.work)}),
        "planned": plan.sizes.tolist(),
        "gain": known(plan.gain),
        "acted": bool(plan.acted),
        "why": plan.why,
    }
