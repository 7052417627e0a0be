"""The race: a scheme of asynchronous training trains a task, in the order and at the times that speeds dictate.

It is deterministic, and one machine stands for any fleet. Axes: T rows, W workers, E evaluations, P parameters.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from paceline._arrays import Array, Sizes
from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Pulled, Scheme, Server, Vector
from paceline.datasets import Trace
from paceline.predictors import EWMA

SMOOTHING_WINDOW = 3
"""Evaluations whose mean must reach an accuracy, because a single one is noisy."""

EventT = TypeVar("EventT")


class EventQueue(Generic[EventT]):
    """Events in the order of their times, and at equal times in the order in which they were scheduled.

    It is iterated until no event is left; more may be scheduled meanwhile.
    """

    def __init__(self) -> None:
        self.now = 0.0
        """The time of the last event taken, in seconds."""
        self._heap: list[tuple[float, int, EventT]] = []
        self._num_scheduled = 0

    def schedule(self, delay: float, event: EventT) -> None:
        """Schedule an event ``delay`` seconds from now."""
        # The number decides between equal times, so that what happens is never compared, and runs repeat exactly.
        heapq.heappush(self._heap, (self.now + delay, self._num_scheduled, event))
        self._num_scheduled += 1

    def __iter__(self) -> Iterator[EventT]:
        while self._heap:
            self.now, _, what = heapq.heappop(self._heap)
            yield what


@dataclass(frozen=True, eq=False)
class FleetTimes:
    """Speeds of a fleet over time, not over steps: every scheme runs on the same fleet.

    Ten samples at 10 samples/s, and the next ten when the speed has halved:

    >>> times = FleetTimes(np.array([[10.0], [5.0]]), span_seconds=1.0, comm_seconds=0.0)
    >>> times.seconds(0, samples=10, start=0.0), times.seconds(0, samples=10, start=0.5)
    (1.0, 1.5)
    """

    speed: Array  # in each span of time, [T, W], in samples/s; after the last span it begins again
    span_seconds: float
    comm_seconds: float  # of each step, pull and push together

    def __post_init__(self) -> None:
        if self.speed.ndim != 2 or not (np.isfinite(self.speed) & (self.speed > 0)).all():
            raise ValueError(f"speed must be [T, W], finite and above 0, got shape {self.speed.shape}: fill gaps first")
        if not 0 < self.span_seconds < np.inf or not 0 <= self.comm_seconds < np.inf:
            raise ValueError(
                f"span_seconds must be > 0 and comm_seconds >= 0, got {self.span_seconds} and {self.comm_seconds}"
            )

    @classmethod
    def from_trace(cls, trace: Trace, *, workers: int, batch: int, comm_share: float = 0.1) -> FleetTimes:
        """Return the times of a fleet like a trace's, scaled so that the median full ``batch`` takes a second.

        Speeds keep their ratios; gaps are filled with what was before. A row of the trace lasts a second. If more
        workers are wanted than it has, its workers come again from a later row. ``comm_share`` is the time on the wire
        in median full batches.
        """
        import pandas as pd

        speeds = pd.DataFrame(trace.speed)
        speed_TW = speeds.ffill().fillna(speeds.median()).to_numpy()
        rows, have = speed_TW.shape
        # Copies of one worker start at different rows: they would slow down in step otherwise.
        turns = [np.roll(speed_TW[:, w % have], -(w // have) * rows // (workers // have + 1)) for w in range(workers)]
        speed_TW = np.stack(turns, axis=1)
        return cls(batch * speed_TW / np.median(speed_TW), span_seconds=1.0, comm_seconds=comm_share)

    @property
    def workers(self) -> int:
        """Size of the fleet."""
        return int(self.speed.shape[1])

    def seconds(self, worker: int, samples: float, start: float) -> float:
        """Return how long a worker that starts then computes on this many samples."""
        row, left, now = int(start // self.span_seconds), float(samples), start
        while True:
            speed = self.speed[row % len(self.speed), worker]
            end = max((row + 1) * self.span_seconds, now)
            if left <= speed * (end - now):
                return float(now + left / speed - start)
            left -= speed * (end - now)
            row, now = row + 1, end

    def samples(self, worker: int, start: float, end: float) -> float:
        """Return how many samples a worker computes between two times."""
        row, done, now = int(start // self.span_seconds), 0.0, start
        while now < end:
            # The row is counted: where it begins, rounding may take a time for one of the row before.
            until = max(min((row + 1) * self.span_seconds, end), now)
            done += float(self.speed[row % len(self.speed), worker]) * (until - now)
            row, now = row + 1, until
        return done


class TrainingTask(Protocol):
    """A model, its training samples, and samples that are held out."""

    @property
    def samples(self) -> int:
        """Number of training samples."""

    def start(self, seed: int) -> Vector:
        """Return parameters to start from, ``[P]``."""

    def gradient(self, parameters: Vector, rows: Sizes) -> Vector:
        """Return the mean gradient of the loss over training samples, ``[P]``."""

    def accuracy(self, parameters: Vector) -> float:
        """Return the share of held-out samples that are predicted correctly."""


@dataclass(frozen=True, kw_only=True)
class AsyncRunSettings:
    """Length of a race, and its settings."""

    batch: int  # samples of a worker's full batch
    rate: float  # learning rate
    epochs: float = 10.0  # how often every sample is applied; fractions are fine
    seed: int = 0  # of the initial parameters and of the order of the samples
    num_evaluations: int = 60  # on held-out samples, at equal distances in applied samples
    target_accuracy: float = math.inf  # the race ends when this is reached


@dataclass(frozen=True, eq=False)
class AsyncRunResult:
    """Result of a race: accuracy over simulated time, waiting, and the server at the end."""

    seconds: Array  # simulated time of each evaluation, [E]
    accuracy: Array  # on held-out samples, [E]; it ends with 0 if training diverged
    waiting: Array  # share of its time that each worker waited for others, [W]
    server: Server = field(repr=False)  # its ledger, calibration, and parameters

    def seconds_to_accuracy(self, accuracy: float) -> float:
        """Return when an accuracy was reached for the first time, in simulated seconds; infinite if it never was.

        It is reached when the mean of the last three evaluations is: a single one is noisy.
        """
        if len(self.accuracy) < SMOOTHING_WINDOW:
            return float("inf")
        means = np.convolve(self.accuracy, np.full(SMOOTHING_WINDOW, 1 / SMOOTHING_WINDOW), mode="valid")
        reached = np.flatnonzero(means >= accuracy)
        return float(self.seconds[reached[0] + SMOOTHING_WINDOW - 1]) if len(reached) else float("inf")


def simulate_training(
    task: TrainingTask, times: FleetTimes, scheme: Scheme, settings: AsyncRunSettings
) -> AsyncRunResult:
    """Train a task for real, in the order and at the times that the fleet's speeds dictate.

    A step is a pull, half of its time on the wire, computing, the other half, and the push. A worker whose step was
    given up leaves it at once and pulls. The same arguments give the same race.

    Examples
    --------
    >>> from paceline.coordinator.asynchronous import scheme
    >>> class Nothing:
    ...     # There is nothing to learn: only the times count.
    ...     samples = 512
    ...     start = gradient = lambda self, *_: np.zeros(1)
    ...     accuracy = lambda self, parameters: 0.0
    >>> times = FleetTimes(np.array([[8.0, 2.0]]), span_seconds=1.0, comm_seconds=0.0)
    >>> settings = AsyncRunSettings(batch=8, rate=0.1, epochs=0.25)
    >>> [float(simulate_training(Nothing(), times, scheme(name, 2), settings).seconds[-1]) for name in ("bsp", "asp")]
    [32.0, 13.0]
    """
    return _AsyncSimulation(task, times, scheme, settings).run()


@dataclass
class _Worker:
    """A worker in the race: its present step, the time that it began, and how long the worker has waited."""

    worker_index: int
    step_number: int = 0
    pulled: Pulled | None = None
    gradient: Vector | None = None
    start_time: float = 0.0
    wait_start: float | None = None
    waited_seconds: float = 0.0


class _DivergedError(Exception):
    """A gradient is no longer finite."""


class _AsyncSimulation:
    def __init__(self, task: TrainingTask, times: FleetTimes, scheme: Scheme, settings: AsyncRunSettings) -> None:
        self.task, self.times, self.settings = task, times, settings
        self.workers = {f"worker{row}": _Worker(row) for row in range(times.workers)}
        self.server = Server(
            task.start(settings.seed),
            SGD(settings.rate),
            scheme,
            EpochSampler(task.samples, seed=settings.seed),
            batch=settings.batch,
            workers=list(self.workers),
            predictor=EWMA(0.3),
        )
        self.events = EventQueue[tuple[str, int]]()
        self.budget = round(settings.epochs * task.samples)
        self.curve = [(0.0, task.accuracy(self.server.parameters))]

    def run(self) -> AsyncRunResult:
        for name in self.workers:
            self._pull(name)
        # A training that diverges overflows sooner or later, and is over then.
        with np.errstate(over="ignore", invalid="ignore"), suppress(_DivergedError):
            for name, turn in self.events:
                if turn == self.workers[name].step_number:  # otherwise that step was given up
                    self._push(name)
                if self.server.sampler.applied >= self.budget or self._has_reached_target():
                    break
            else:
                raise RuntimeError(
                    f"deadlock under {self.server.scheme.name}: all workers wait; its gate must let one continue"
                )
        if self.server.sampler.applied < self.budget and not self._has_reached_target():
            self.curve.append((self.events.now, 0.0))
        end = self.events.now
        still_W = [0.0 if w.wait_start is None else end - w.wait_start for w in self.workers.values()]
        waiting_W = np.array([w.waited_seconds for w in self.workers.values()]) + still_W
        seconds, accuracy = np.array(self.curve).T
        return AsyncRunResult(seconds, accuracy, waiting_W / end, self.server)

    def _pull(self, worker_name: str) -> None:
        worker, now = self.workers[worker_name], self.events.now
        worker.pulled = self.server.pull(worker_name)
        if worker.pulled is None:
            worker.wait_start = now if worker.wait_start is None else worker.wait_start
            return
        if worker.wait_start is not None:
            worker.waited_seconds, worker.wait_start = worker.waited_seconds + now - worker.wait_start, None
        worker.gradient = self.task.gradient(worker.pulled.parameters, worker.pulled.assigned.indices)
        worker.start_time, worker.step_number = now, worker.step_number + 1
        start = now + self.times.comm_seconds / 2
        took = self.times.seconds(worker.worker_index, len(worker.pulled.assigned), start)
        self.events.schedule(took + self.times.comm_seconds, (worker_name, worker.step_number))

    def _push(self, worker_name: str) -> None:
        worker, now = self.workers[worker_name], self.events.now
        assert worker.pulled is not None
        assert worker.gradient is not None
        verdict = self.server.push(
            worker_name,
            worker.pulled.stamp,
            worker.gradient,
            seconds=now - worker.start_time - self.times.comm_seconds,
            comm_seconds=self.times.comm_seconds,
            now=now,
        )
        worker.step_number += 1
        if verdict.outcome is Outcome.REFUSED:
            raise _DivergedError
        if self.server.sampler.applied >= self.budget * len(self.curve) / self.settings.num_evaluations:
            self.curve.append((self.events.now, self.task.accuracy(self.server.parameters)))
        for other in verdict.abandoned_workers:  # it leaves the step, and says how far it was
            gone = self.workers[other]
            start = gone.start_time + self.times.comm_seconds / 2
            if now > start:
                done = self.times.samples(gone.worker_index, start, now)
                self.server.report(other, int(done), now - start, self.times.comm_seconds)
            gone.step_number += 1
            self._pull(other)
        self._pull(worker_name)
        for other, waiting in self.workers.items():
            if waiting.wait_start is not None and other != worker_name:
                self._pull(other)

    def _has_reached_target(self) -> bool:
        last = [accuracy for _, accuracy in self.curve[-SMOOTHING_WINDOW:]]
        return len(last) == SMOOTHING_WINDOW and sum(last) / SMOOTHING_WINDOW >= self.settings.target_accuracy
