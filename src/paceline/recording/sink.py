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
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from paceline._arrays import finite_mean
from paceline._files import LineWriter
from paceline._require import require
from paceline._text import count, duration, escape_surrogates, percent, to_printable
from paceline._version import __version__
from paceline.datasets.waiting_time import waiting
from paceline.recording.records import Iteration, Round
from paceline.recording.run_reader import ROUNDS, SCHEMA_VERSION, parse_json_object

logger = logging.getLogger("paceline.metrics")


class Sink:
    """Writes the record of each iteration somewhere; add it to ``on_iteration``.

    Every rank may have one; only that of the fleet's first worker writes. If writing fails, for whatever reason, the
    sink logs an error and stops, and the training continues.
    """

    _has_failed = False

    def __call__(self, record: Iteration | Round) -> None:
        """Write the record of an iteration, if this is the fleet's first worker, or of an asynchronous round."""
        if self._has_failed or (isinstance(record, Iteration) and record.worker != record.workers[0]):
            return
        try:
            self.write(record)
        except Exception as error:  # of any kind: a dashboard is never worth a training
            self._has_failed = True
            text = to_printable(f"{type(error).__name__}: {error}")
            logger.error("no more metrics are written by %s: %s", type(self).__name__, text)

    def write(self, record: Any) -> None:
        """Write the record of an iteration, or of a round."""
        raise TypeError(f"{type(self).__name__} must define write(record), which writes an Iteration or a Round")

    def close(self) -> None:
        """Finish writing. A process that ends normally need not call it."""


def summary(iteration: Iteration) -> dict[str, float]:
    """Return the numbers of the whole fleet that every dashboard shows; NaN where they are not known.

    ``METRIC_DESCRIPTIONS["paceline"]`` says what each means.

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
    waited = waiting(reported[None], None if iteration.work is None else iteration.work[None])
    return {
        "seconds": iteration.makespan,
        "forecast_seconds": float(np.max(iteration.forecast_seconds)),
        "equal_seconds": equal,
        "gain": 1.0 - iteration.makespan / equal if equal > 0 else float("nan"),
        "waiting_share": iteration.waiting_share,
        "waiting_from_workers": waited.from_workers,
        "waiting_from_work": waited.from_work,
        "forecast_error": finite_mean(error_W),
        "wall_seconds": float(iteration.wall_seconds),
        "overhead_seconds": float(iteration.overhead_seconds),
    }


def dashboard_scalars(record: Iteration | Round) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the numbers of the whole fleet, and of each worker, by their names on dashboards."""
    if isinstance(record, Round):
        of_fleet, of_workers, _ = METRIC_DESCRIPTIONS["paceline_async"]
        fleet = {name: float(getattr(record, name)) for name in of_fleet if name != "stragglers"}
        fleet["stragglers"] = float(len(record.stragglers))
        rows = {name: getattr(record, name) for name in of_workers}
    else:
        fleet = summary(record)
        with np.errstate(invalid="ignore"):  # a worker may have reported an infinite time
            rows = {"samples": record.sizes, "work": record.work, "wait_seconds": record.wait_seconds}
        rows |= {"seconds": record.seconds, "forecast_seconds": record.forecast_seconds}
    return fleet, {name: np.asarray(row, dtype=float).tolist() for name, row in rows.items() if row is not None}


def _equal_seconds(iteration: Iteration) -> float:
    """Return the slowest worker's time with equal batches: measured times, moved along the forecast curves."""
    curves = iteration.plan.forecast.curves
    # Where samples have costs, curves are about work; fractions of it suit an estimate.
    work_W = iteration.work
    amount_W = iteration.sizes if work_W is None or not np.isfinite(work_W).all() else work_W
    used_W = curves.busy_seconds(amount_W)
    equal_W = curves.busy_seconds(np.full(len(amount_W), amount_W.mean()))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.fmax.reduce(np.where(used_W > 0, iteration.seconds * equal_W / used_W, np.nan)))


class Logging(Sink):
    """Writes a line to the log ``paceline.metrics`` for each change of sizes, and one every ``every`` iterations."""

    def __init__(self, every: int = 100) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1 iteration, got {every}")
        self.every = every
        self._next_logged = self._disagreements = 0

    def write(self, record: Iteration | Round) -> None:
        """Log the iteration or the round: a warning if the workers had used different plans."""
        decision = record if isinstance(record, Round) else record.plan
        if isinstance(record, Iteration) and not record.agreed:
            self._disagreements += 1
            # A disagreement that lasts is logged ever more rarely: the first time, the second, the fourth, ...
            if self._disagreements.bit_count() == 1:
                logger.warning(
                    "iteration %d: the workers had different plans, and the first worker's is used: run all on the "
                    "same hardware and library versions (so far %s)",
                    record.index,
                    count(self._disagreements, "time"),
                )
        # >= because short iterations may skip numbers
        if decision.acted or record.index >= self._next_logged:
            self._next_logged = (record.index // self.every + 1) * self.every
            sizes, why = record.sizes.tolist(), to_printable(decision.why)  # a log is often read on a terminal
            logger.info("%s; sizes %s. %s", _describe(record), sizes, why)


def _describe(record: Iteration | Round) -> str:
    if isinstance(record, Round):
        return (
            f"round {record.index}: version {record.version}, {count(record.applied, 'sample')} applied, "
            f"{percent(record.wasted_share)} wasted, stragglers {list(map(to_printable, record.stragglers))}"
        )
    numbers = summary(record)
    return (
        f"iteration {record.index}: {duration(numbers['seconds'])}, waiting {percent(numbers['waiting_share'])}, "
        f"{percent(numbers['gain'])} less than with equal batches"
    )


class TensorBoard(Sink):
    """Writes scalars of each iteration for TensorBoard: the fleet's under ``paceline/``, each worker's beside them.

    ``folder`` is the one in which TensorBoard looks for runs. ``ImportError`` if tensorboard is missing.
    """

    def __init__(self, folder: str | Path) -> None:
        require("torch", needed_by="TensorBoard", extra="torch")
        require("tensorboard", needed_by="TensorBoard", extra="metrics")
        self.folder = Path(folder)
        self._writer: Any = None

    def write(self, record: Iteration | Round) -> None:
        """Write the scalars, and the reason as text where sizes changed."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(self.folder)
            atexit.register(self.close)  # TensorBoard's writer flushes only every two minutes
        fleet, rows = dashboard_scalars(record)
        for name, value in fleet.items():
            if not math.isnan(value):  # a board would draw it as a point of its own
                self._writer.add_scalar(f"paceline/{name}", value, record.index, walltime=record.time)
        for name, values_W in rows.items():
            for worker, value in zip(record.workers, values_W, strict=True):
                place = f"paceline_{name}/{escape_surrogates(worker)}"
                self._writer.add_scalar(place, value, record.index, walltime=record.time)
        decision = record if isinstance(record, Round) else record.plan
        if decision.acted:
            self._writer.add_text("paceline/why", escape_surrogates(decision.why), record.index, walltime=record.time)

    def close(self) -> None:
        """Write scalars that are still in memory."""
        if self._writer is not None:
            self._writer.close()


class Prometheus(Sink):
    """Gauges and counters that a Prometheus server collects from this process; ``ImportError`` without its client.

    Parameters
    ----------
    port
        The port to answer on; only the fleet's first worker does. ``None`` only registers the metrics, for a process
        that has its own endpoint.
    address
        The address to answer on: by default only this machine can ask. ``"0.0.0.0"`` answers everyone who can reach
        the machine, without a password.

    Sinks share their metrics: the counters add up, and the gauges show what was written last.
    """

    def __init__(self, port: int | None = None, *, address: str = "127.0.0.1") -> None:
        require("prometheus_client", needed_by="Prometheus", extra="metrics")
        if port is not None and not 0 <= port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {port}")
        self.port = port
        self.address = address
        self.server: Any = None
        self._metrics: RegisteredMetrics | None = None
        self._workers: tuple[str, ...] = ()

    def write(self, record: Iteration | Round) -> None:
        """Set the gauges, and count the iteration or the round."""
        prefix = "paceline_async" if isinstance(record, Round) else "paceline"
        gauges, worker_gauges, counters = self._metrics = self._metrics or self._register_metrics(prefix)
        if record.workers != self._workers:
            for gauge in worker_gauges.values():  # of workers that left
                gauge.clear()
            self._workers = record.workers
        numbers, rows = dashboard_scalars(record)
        for name, value in numbers.items():
            gauges[name].set(value)
        for name, values_W in rows.items():
            for worker, value in zip(record.workers, values_W, strict=True):
                worker_gauges[name].labels(escape_surrogates(worker)).set(value)
        if isinstance(record, Round):
            counters["rounds"].inc()
            counters["changes"].inc(record.acted)
        else:
            counters["iterations"].inc()
            counters["samples"].inc(record.global_batch)
            counters["changes"].inc(record.plan.acted)
            counters["disagreements"].inc(not record.agreed)

    def close(self) -> None:
        """Stop answering; the metrics stay registered, as counters must not start again within a process."""
        if self.server is not None:
            server, thread = self.server
            server.shutdown()
            server.server_close()
            thread.join()
        self.server = None

    def _register_metrics(self, prefix: str) -> RegisteredMetrics:
        from prometheus_client import REGISTRY, Counter, Gauge, start_http_server

        if self.port is not None:  # first, because a port that is taken must leave no metrics behind
            self.server = start_http_server(self.port, addr=self.address, registry=REGISTRY)
        registered = _METRICS_BY_REGISTRY.setdefault(REGISTRY, {})
        if prefix not in registered:
            fleet, worker, counted = METRIC_DESCRIPTIONS[prefix]
            registered[prefix] = (
                {name: Gauge(f"{prefix}_{name}", about, registry=REGISTRY) for name, about in fleet.items()},
                {
                    name: Gauge(f"{prefix}_worker_{name}", about, ["worker"], registry=REGISTRY)
                    for name, about in worker.items()
                },
                {name: Counter(f"{prefix}_{name}", about, registry=REGISTRY) for name, about in counted.items()},
            )
        return registered[prefix]


RegisteredMetrics = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
"""Gauges of the fleet and of each worker, and counters, by their names."""

_METRICS_BY_REGISTRY: WeakKeyDictionary[Any, dict[str, RegisteredMetrics]] = WeakKeyDictionary()
"""The metrics of each registry, which refuses to register a name twice."""

METRIC_DESCRIPTIONS = {
    "paceline": (
        {
            "seconds": "Own compute time of the slowest worker.",
            "forecast_seconds": "Time that the slowest worker was expected to take.",
            "equal_seconds": "Time that the slowest worker would have taken with equal batches, an estimate.",
            "gain": "Share of the time saved over equal batches.",
            "waiting_share": "Share of the workers' time spent waiting for the slowest.",
            "waiting_from_workers": "The same with equal work, every worker at its own speed; NaN without costs.",
            "waiting_from_work": "The same with the actual work, all workers at one speed; NaN without costs.",
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
    ),
    "paceline_async": (
        {
            "version": "Updates applied.",
            "applied": "Samples applied.",
            "dropped": "Samples of pushes beyond the bound, drawn again.",
            "abandoned": "Samples of steps that were given up, drawn again.",
            "refused": "Samples of pushes with something wrong, drawn again.",
            "wasted_share": "Share of the samples computed that was for nothing.",
            "stragglers": "Workers that are stragglers.",
            "largest": "Largest staleness applied, in versions.",
        },
        {
            "sizes": "Samples of the next step.",
            "staleness": "Mean staleness of the last round's pushes, in versions.",
            "expected": "Staleness forecast for the next push, in versions.",
            "done": "Samples applied.",
            "wasted": "Samples computed for nothing.",
            "waited": "Time it waited for others, in seconds.",
        },
        {"rounds": "Rounds recorded.", "changes": "Rounds in which something happened."},
    ),
}
"""What the metrics mean: those of the fleet, of each worker, and the counters."""

Target = str | Callable[[Any], None]
"""The name of a sink, or a sink: any function of an iteration, or of a round of asynchronous training."""


def sinks(*targets: Target) -> list[Callable[[Any], None]]:
    """Return the sinks for these names; a sink, or any function of an iteration or a round, is returned unchanged.

    Names are ``"log"``, ``"tensorboard:FOLDER"``, ``"prometheus:PORT"``, ``"prometheus:HOST:PORT"``, or the path of a
    JSON-lines file, ``"run.jsonl"``. Prometheus answers this machine only, unless the host says otherwise.
    ``ValueError`` for any other text, ``ImportError`` if a sink's library is missing.

    Examples
    --------
    >>> [type(sink).__name__ for sink in sinks("log", "run.jsonl")]
    ['Logging', 'JsonLines']
    """
    return [_make_sink(target) if isinstance(target, str) else target for target in targets]


def _make_sink(target: str) -> Sink:
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


def json_number(value: float) -> float | None:
    """Return a number as JSON can hold it: None (null) if it is not finite."""
    return round(float(value), 7) if math.isfinite(value) else None


def json_numbers(values: ArrayLike) -> list[float | None]:
    """Return numbers, ``[W]``, as JSON can hold them."""
    return [json_number(value) for value in np.asarray(values, dtype=np.float64).tolist()]


class JsonLines(Sink):
    """Appends a line to a file at each iteration, without a buffer.

    However the process ends, even by ``kill -9``, the file stays readable up to the last line, which may be cut short.
    The first line names the schema, the workers and the global batch; another follows whenever these change or a run is
    resumed. Iterations that do not fit on a full disk are counted in the next line that does (``lost_before``). A
    process that ends without an error, and :meth:`close`, write a last line (``ended``): without it a watcher takes
    silence for a fault. One job at a time writes to a file: the sink of another one logs which process does, and writes
    nothing. Read it with :func:`read_run`, ``paceline watch`` or ``paceline report``.

    Parameters
    ----------
    path
        The file, preferably with the suffix ``.jsonl``; made, with its parent folders, when the first iteration is
        written. ``lost_records`` counts the iterations that could not be.

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
        self.lost_records = 0
        self._lines: LineWriter | None = None
        self._lost_since = 0
        self._header: dict[str, Any] | None = None  # the newest in the file
        self._run = secrets.token_hex(4)  # by it a reader knows which header explains a line
        self._start_text = datetime.now().astimezone().isoformat(" ", "seconds")

    def write(self, record: Iteration | Round) -> None:
        """Append the record, after a header line if the newest one does not fit."""
        header, line = _round_lines(record) if isinstance(record, Round) else _iteration_lines(record)
        if self._lines is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lines, self._process = self._open_file(), os.getpid()
            atexit.register(self._close_at_exit)
        process = {"pid": os.getpid(), "host": socket.gethostname(), "started": self._start_text}
        if header != self._header and self._write_line({**header, "run": self._run, "process": process}):
            self._header = header
        # Without its header a record would be read as one of the fleet before: it is lost with it.
        lost = {"lost_before": self._lost_since} if self._lost_since else {}
        if header == self._header and self._write_line(line | lost | {"run": self._run}):
            self._lost_since = 0
        else:
            self.lost_records += 1
            self._lost_since += 1

    def _open_file(self) -> LineWriter:
        try:
            return LineWriter(self.path, logger, locks_file=True)
        except BlockingIOError:
            writer = _find_writer(self.path)
            if (writer.get("pid"), writer.get("host")) == (os.getpid(), socket.gethostname()):
                return LineWriter(self.path, logger)  # another sink of this process: its job goes on
            raise ValueError(
                f"{self.path} is being written by process {writer.get('pid', '(unknown)')} on host "
                f"{writer.get('host', '(unknown)')}, which started at {writer.get('started', '(unknown)')}: use a "
                "separate file for each job"
            ) from None

    def close(self) -> None:
        """Write that the run has ended, and close the file; a further iteration opens it again."""
        if self._lines is not None:
            self._write_line({"ended": round(time.time(), 3)})
            self._lines.close()
            atexit.unregister(self._close_at_exit)
        self._lines = self._header = None

    def _close_at_exit(self) -> None:
        # A run that an error ended did not end well, and a forked process did not end the run.
        if getattr(sys, "last_type", None) is None and os.getpid() == self._process:
            self.close()

    def _write_line(self, content: dict[str, Any]) -> bool:
        return self._lines is not None and self._lines.append(json.dumps(content, allow_nan=False))


def _iteration_lines(iteration: Iteration) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of the file, and the line of an iteration."""
    numbers, plan = summary(iteration), iteration.plan
    units = {"time": "seconds since the epoch", "sizes": "samples", "work": "average samples"}
    header = {
        "paceline_run": SCHEMA_VERSION,
        "version": __version__,
        "workers": list(iteration.workers),
        "global_batch": int(plan.sizes.sum()),
        "units": units | {"all others": "seconds, or shares"},
    }
    line = {
        "index": iteration.index,
        "time": round(iteration.time, 3),
        "sizes": iteration.sizes.tolist(),
        "seconds": json_numbers(iteration.seconds),
        "forecast_seconds": json_numbers(iteration.forecast_seconds),
        "comm_seconds": json_numbers(iteration.comm_seconds),
        **{name: json_number(numbers[name]) for name in ("wall_seconds", "equal_seconds", "overhead_seconds")},
        "agreed": bool(iteration.agreed),
        **({} if iteration.work is None else {"work": json_numbers(iteration.work)}),
        "planned": plan.sizes.tolist(),
        "gain": json_number(plan.gain),
        "acted": bool(plan.acted),
        "why": plan.why,
    }
    return header, line


def _round_lines(record: Round) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of the file, and the line of a round."""
    header = {
        "paceline_async_run": SCHEMA_VERSION,
        "version": __version__,
        "workers": list(record.workers),
        **{name: getattr(record, name) for name in ("scheme", "bound", "batch")},
        "units": {
            "time": "seconds since the epoch",
            "waited": "seconds",
            "staleness, expected, largest, bound": "versions",
            "sizes, done, wasted, applied, dropped, abandoned, refused, batch": "samples",
            "wasted_share": "share",
        },
    }
    line = {
        **{name: json_number(getattr(record, name)) for name in ROUNDS.fleet_keys},
        "time": round(record.time, 3),
        **{name: json_numbers(getattr(record, name)) for name in ROUNDS.worker_keys},
        "stragglers": list(record.stragglers),
        "acted": record.acted,
        "why": record.why,
    }
    return header, line


def _find_writer(path: Path) -> dict[str, Any]:
    """Return the process that writes a file, by its newest header that names one; an empty dict without one."""
    with path.open("rb") as file:
        named = [parse_json_object(text).get("process") for text in file if b'"process"' in text]
    return next((process for process in reversed(named) if isinstance(process, dict)), {})
