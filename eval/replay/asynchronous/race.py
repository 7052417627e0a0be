"""The race: one scheme trains one task on one fleet, event by event. Axes: W workers, E evaluations."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from paceline._arrays import Array
from paceline.coordinator.asynchronous import SGD, EpochSampler, Outcome, Pulled, Scheme, Server, Vector
from paceline.eval.replay.asynchronous.events import Events
from paceline.eval.replay.asynchronous.replay_tasks import ReplayTask
from paceline.eval.replay.asynchronous.times import Times
from paceline.predictors import EWMA, Predictor

SMOOTHED = 3
"""An accuracy is reached when the mean of this many evaluations is."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """Length of a race, and its settings.

    Parameters
    ----------
    batch
        Samples of a worker's full batch.
    rate
        Learning rate.
    epochs
        How often every sample is applied; fractions are fine.
    seed
        Seed of the initial parameters and of the order of the samples.
    evaluations
        How often the server's parameters are tried on held-out samples, at equal distances in applied samples.
    enough
        End the race when this accuracy is reached; by default it goes on to its end.
    hopeless
        End it when a quarter of it is over and the accuracy is below this.
    """

    batch: int
    rate: float
    epochs: float = 10.0
    seed: int = 0
    evaluations: int = 60
    enough: float = math.inf
    hopeless: float = 0.0


@dataclass(frozen=True, eq=False)
class Race:
    """Result of a race: accuracy over simulated time, waiting, and the server at the end.

    Parameters
    ----------
    seconds, accuracy
        Simulated time, and accuracy on held-out samples, ``[E]``; it ends with 0 if training diverged.
    waiting
        Share of its time that each worker waited for others, ``[W]``.
    server
        The server at the end: its ledger, calibration, and parameters.
    """

    seconds: Array
    accuracy: Array
    waiting: Array
    server: Server = field(repr=False)

    def seconds_to(self, accuracy: float) -> float:
        """Return when an accuracy was reached for the first time, in simulated seconds; infinite if it never was.

        It is reached when the mean of the last three evaluations is: a single one is noisy.
        """
        reached = np.flatnonzero(_smoothed(self.accuracy) >= accuracy)
        return float(self.seconds[reached[0]]) if len(reached) else float("inf")

    @property
    def final(self) -> float:
        """Accuracy at the end: the mean of the last tenth of the evaluations, as a single one is noisy."""
        return float(self.accuracy[-max(len(self.accuracy) // 10, 1) :].mean())


def race(task: ReplayTask, times: Times, scheme: Scheme, course: Course, predictor: Predictor | None = None) -> Race:
    """Train for real, in the order and at the times that the fleet's speeds dictate.

    A step is a pull, half of its time on the wire, computing, the other half, and the push. A worker whose step was
    given up leaves it at once and pulls. The same arguments give the same race.

    Parameters
    ----------
    task
        The task to train.
    times
        How long computing takes.
    scheme
        The server's scheme.
    course
        Length, batch, learning rate and seed.
    predictor
        Forecasts the speeds; an EWMA by default.

    Examples
    --------
    >>> from paceline.coordinator.asynchronous import scheme
    >>> from paceline.eval.replay.asynchronous import graded_fleet, task
    >>> times = Times.of(graded_fleet(4), workers=4, batch=8)
    >>> ran = race(task("digits-logistic"), times, scheme("asp", 4), Course(batch=8, rate=0.05, epochs=2))
    >>> bool(ran.final > 0.85), ran.waiting.tolist()
    (True, [0.0, 0.0, 0.0, 0.0])
    """
    return _RunningRace(task, times, scheme, course, predictor or EWMA(0.3)).run()


@dataclass
class _Worker:
    """A worker in the race: its present step, the time that it began, and how long the worker has waited."""

    row: int
    turn: int = 0
    pulled: Pulled | None = None
    gradient: Vector | None = None
    began: float = 0.0
    waits_since: float | None = None
    waited: float = 0.0


class _DivergedError(Exception):
    """A gradient is no longer finite."""


class _RunningRace:
    def __init__(self, task: ReplayTask, times: Times, scheme: Scheme, course: Course, predictor: Predictor) -> None:
        self.task, self.times, self.course = task, times, course
        self.workers = {f"worker{row}": _Worker(row) for row in range(times.workers)}
        self.server = Server(
            task.start(course.seed),
            SGD(course.rate),
            scheme,
            EpochSampler(task.samples, seed=course.seed),
            batch=course.batch,
            workers=list(self.workers),
            predictor=predictor,
        )
        self.events = Events[tuple[str, int]]()
        self.budget = round(course.epochs * task.samples)
        self.curve = [(0.0, task.accuracy(self.server.parameters))]

    def run(self) -> Race:
        for name in self.workers:
            self._pull(name)
        # A training that diverges overflows sooner or later, and is over then.
        with np.errstate(over="ignore", invalid="ignore"), suppress(_DivergedError):
            self._go_on()
        if self.server.sampler.applied < self.budget and self._recent() < self.course.enough:
            self.curve.append((self.events.now, 0.0))
        end = self.events.now
        waiting = [w.waited + (end - w.waits_since if w.waits_since is not None else 0) for w in self.workers.values()]
        seconds, accuracy = np.array(self.curve).T
        return Race(seconds, accuracy, np.array(waiting) / end, self.server)

    def _go_on(self) -> None:
        for name, turn in self.events:
            if turn == self.workers[name].turn:  # otherwise that step was given up
                self._push(name)
            if self.server.sampler.applied >= self.budget or self._is_decided():
                return
        raise RuntimeError(f"everybody waits for somebody under {self.server.scheme.name}: its rules cannot go on")

    def _pull(self, name: str) -> None:
        worker, now = self.workers[name], self.events.now
        worker.pulled = self.server.pull(name)
        if worker.pulled is None:
            worker.waits_since = now if worker.waits_since is None else worker.waits_since
            return
        if worker.waits_since is not None:
            worker.waited, worker.waits_since = worker.waited + now - worker.waits_since, None
        worker.gradient = self.task.gradient(worker.pulled.parameters, worker.pulled.assigned.rows)
        worker.began, worker.turn = now, worker.turn + 1
        start = now + self.times.comm_seconds / 2
        took = self.times.seconds(worker.row, len(worker.pulled.assigned), start)
        self.events.plan(took + self.times.comm_seconds, (name, worker.turn))

    def _push(self, name: str) -> None:
        worker, now = self.workers[name], self.events.now
        assert worker.pulled is not None
        assert worker.gradient is not None
        verdict = self.server.push(
            name,
            worker.pulled.stamp,
            worker.gradient,
            seconds=now - worker.began - self.times.comm_seconds,
            comm_seconds=self.times.comm_seconds,
            now=now,
        )
        worker.turn += 1
        if verdict.outcome is Outcome.REFUSED:
            raise _DivergedError
        self._evaluate()
        for other in verdict.given_up:
            self._leave_step(other)
        self._pull(name)
        for other, waiting in self.workers.items():
            if waiting.waits_since is not None and other != name:
                self._pull(other)

    def _leave_step(self, name: str) -> None:
        """Let a worker whose step was given up report how far it was, and begin anew."""
        worker, now = self.workers[name], self.events.now
        start = worker.began + self.times.comm_seconds / 2
        if now > start:
            done = self.times.samples(worker.row, start, now)
            self.server.report(name, int(done), now - start, self.times.comm_seconds)
        worker.turn += 1
        self._pull(name)

    def _recent(self) -> float:
        last = [accuracy for _, accuracy in self.curve[-SMOOTHED:]]
        return sum(last) / SMOOTHED if len(last) == SMOOTHED else 0.0

    def _is_decided(self) -> bool:
        begun = len(self.curve) <= max(self.course.evaluations / 4, SMOOTHED)
        return self._recent() >= self.course.enough or (not begun and self._recent() < self.course.hopeless)

    def _evaluate(self) -> None:
        due = self.budget * len(self.curve) / self.course.evaluations
        if self.server.sampler.applied >= due:
            self.curve.append((self.events.now, self.task.accuracy(self.server.parameters)))


def _smoothed(accuracy_E: Array) -> Array:
    """Return the mean of each evaluation and the two before it; 0 where there are not as many, ``[E]``."""
    if len(accuracy_E) < SMOOTHED:
        return np.zeros(len(accuracy_E))
    means = np.convolve(accuracy_E, np.full(SMOOTHED, 1 / SMOOTHED), mode="valid")
    return np.concatenate([np.zeros(SMOOTHED - 1), means])
