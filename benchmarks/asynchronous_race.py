"""Many trainings of one schedule at once: the times of steps do not depend on seeds and learning rates.

Axes: S copies (a seed and a rate each), P parameters of one copy, B samples of a step, W workers, E evaluations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline.coordinator.asynchronous import EpochSampler, Optimizer, SampleBatch, Scheme, Server, StepToken, Vector
from paceline.eval.asynchronous import EventQueue, FleetTimes
from paceline.predictors import EWMA

SMOOTHING_WINDOW = 3
"""A target is reached when the mean of this many evaluations is."""

BEYOND = 1e4
"""A copy that holds a parameter beyond this has diverged: it stands still from then on."""

LATER = 1.3
"""A rate that has not reached the target by this many times the slowest copy of another is not the best."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Classes to tell apart, by a softmax over one hidden layer; the last input is the bias."""

    target: float
    inputs: NDArray[np.float32] = field(repr=False)
    labels: Sizes = field(repr=False)
    held_inputs: NDArray[np.float32] = field(repr=False)
    held_labels: Sizes = field(repr=False)
    hidden: int

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Shapes of the layers."""
        width, classes = self.inputs.shape[1], int(self.labels.max()) + 1
        return [(width, self.hidden), (self.hidden + 1, classes)]

    def start(self, seeds: Sizes) -> Vector:
        """Return the initial parameters of every copy, ``[S, P]`` in one row, with the variance of He et al. (2015)."""
        rows = []
        for seed in seeds:
            rng = np.random.default_rng(seed)
            rows += [rng.normal(0.0, math.sqrt(2.0 / shape[0]), shape).ravel() for shape in self.shapes]
        return np.concatenate(rows).astype(np.float32)

    def layers(self, parameters_SP: Vector) -> list[Vector]:
        """Return the layers of every copy, ``[S, inputs, outputs]``."""
        found, begin = [], 0
        for rows, columns in self.shapes:
            part = parameters_SP[:, begin : begin + rows * columns]
            found.append(part.reshape(len(part), rows, columns))
            begin += rows * columns
        return found

    def gradient(self, parameters_SP: Vector, rows_SB: Sizes) -> Vector:
        """Return the mean gradient of the cross-entropy of every copy, ``[S, P]``."""
        layers, inputs = self.layers(parameters_SP), self.inputs[rows_SB]
        hidden = _hidden(inputs, layers)
        slope = _softmax(hidden @ layers[-1])
        copies, places = np.indices(rows_SB.shape)
        slope[copies, places, self.labels[rows_SB]] -= 1.0
        slope /= rows_SB.shape[1]
        last = hidden.transpose(0, 2, 1) @ slope
        back = (slope @ layers[1][:, :-1].transpose(0, 2, 1)) * (hidden[..., :-1] > 0)
        first = inputs.transpose(0, 2, 1) @ back
        return np.concatenate([first.reshape(len(first), -1), last.reshape(len(last), -1)], axis=1)

    def accuracy(self, parameters_SP: Vector) -> Array:
        """Return the share of held-out samples that each copy tells, ``[S]``."""
        layers = self.layers(parameters_SP)
        inputs = np.broadcast_to(self.held_inputs, (len(parameters_SP), *self.held_inputs.shape))
        told = (_hidden(inputs, layers) @ layers[-1]).argmax(axis=-1)
        return np.asarray((told == self.held_labels).mean(axis=-1), dtype=np.float64)


@dataclass(eq=False)
class Copies:
    """An optimizer with a rate for each copy: torch's that ``optimizer`` makes, plain gradient descent without one."""

    rates: Array
    optimizer: Any = None
    is_linear: bool = True
    _torch: Any = field(default=None, init=False)

    def step(self, parameters: Vector, gradient: Vector, factor: float, applied: int) -> None:
        """Take a step of every copy, each by its own rate: torch's steps are proportional to the rate."""
        move = gradient if self.optimizer is None else self._moved(gradient)
        scale_S1 = (self.rates * factor).astype(np.float32)[:, None]
        parameters -= (move.reshape(len(self.rates), -1) * scale_S1).ravel()

    def _moved(self, gradient: Vector) -> Vector:
        import torch

        if self._torch is None:
            place = torch.zeros(len(gradient))
            self._torch = place, self.optimizer([place])
        place, optimizer = self._torch
        place.zero_()
        place.grad = torch.from_numpy(gradient)
        optimizer.step()
        moved: Vector = -place.numpy()
        return moved

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return nothing: a race is not resumed."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Do nothing."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Course:
    """Setting of a race: a problem, how long steps take, and its end."""

    problem: Problem
    times: FleetTimes
    batch: int
    epochs: float
    optimizer: Any = None
    is_linear: bool = True
    evaluations: int
    comm: Array
    """Seconds on the wire of each worker's step, ``[W]``."""
    costs: Array | None = None
    """Cost of each place in the data, ``[N]``, with the mean 1; the samples at a place differ from seed to seed."""


@dataclass(frozen=True, eq=False)
class Ran:
    """Result of a race: simulated seconds to the target, ``[S]`` (infinite if not reached); the server, and the end."""

    seconds: Array
    server: Server
    end: float


@dataclass(eq=False)
class _Step:
    stamp: StepToken
    assigned: SampleBatch
    gradient: Vector
    began: float
    turn: int


class Race:
    """One scheme on one course, for all seeds and rates at once.

    Parameters
    ----------
    course, scheme
        The setting, and the server's rules.
    seeds, rates
        Of each copy, ``[S]``: the seed of its initial parameters and of its order of samples, and its learning rate.
    settled
        Copies of one rate, side by side. The race ends a while after all of the first rate to do so have reached the
        target: no other can be better by then. 0 waits for all.
    """

    def __init__(self, course: Course, scheme: Scheme, seeds: Sizes, rates: Array, settled: int = 0) -> None:
        self.course, self.seeds, self.settled = course, seeds, settled
        problem, workers = course.problem, course.times.workers
        optimizer: Optimizer = Copies(rates, course.optimizer, course.is_linear)
        self.server = Server(
            problem.start(seeds),
            optimizer,
            scheme,
            EpochSampler(len(problem.labels)),
            batch=course.batch,
            workers=[f"worker{row}" for row in range(workers)],
            predictor=EWMA(0.3),
            copy=True,
        )
        self.events = EventQueue[tuple[int, int]]()
        self.steps: dict[int, _Step] = {}
        self.turns = [0] * workers
        self.waiting: set[int] = set()
        self.comm_W = course.comm
        self.dead = np.zeros(len(seeds), dtype=bool)
        self.orders: dict[int, Sizes] = {}
        self.curve = [(0.0, problem.accuracy(self._parameters()))]

    def run(self) -> Ran:
        """Run until every copy has reached the target, or has diverged, or the epochs are over."""
        for row in range(len(self.turns)):
            self._pull(row)
        budget = self.course.epochs * self.server.sampler.samples
        with np.errstate(over="ignore", invalid="ignore"):
            for row, turn in self.events:
                if turn == self.turns[row]:
                    self._push(row)
                    if self._evaluated(budget):
                        break
        return Ran(_reached(self.curve, self.course.problem.target), self.server, self.events.now)

    def _parameters(self) -> Vector:
        return self.server.parameters.reshape(len(self.seeds), -1)

    def _pull(self, row: int) -> None:
        pulled = self.server.pull(f"worker{row}")
        if pulled is None:
            self.waiting.add(row)
            return
        self.waiting.discard(row)
        parameters_SP = pulled.parameters.reshape(len(self.seeds), -1)
        gradient_SP = self.course.problem.gradient(parameters_SP, self._rows(pulled.assigned))
        self.dead |= ~np.isfinite(gradient_SP).all(axis=1) | (np.abs(parameters_SP).max(axis=1) > BEYOND)
        gradient_SP[self.dead] = 0.0
        self.turns[row] += 1
        self.steps[row] = _Step(pulled.stamp, pulled.assigned, gradient_SP.ravel(), self.events.now, self.turns[row])
        start = self.events.now + self.comm_W[row] / 2
        took = self.course.times.seconds(row, float(self._costs(pulled.assigned).sum()), start)
        self.events.schedule(took + self.comm_W[row], (row, self.turns[row]))

    def _push(self, row: int) -> None:
        step, comm = self.steps.pop(row), float(self.comm_W[row])
        self.turns[row] += 1
        took = self.events.now - step.began - comm
        verdict = self.server.push(
            f"worker{row}", step.stamp, step.gradient, seconds=took, comm_seconds=comm, now=self.events.now
        )
        for name in verdict.abandoned_workers:
            self._leave(int(name.removeprefix("worker")))
        self._pull(row)
        for other in sorted(self.waiting - {row}):
            self._pull(other)

    def _leave(self, row: int) -> None:
        """Let a worker whose step was given up report how far it was, and begin anew."""
        step, comm = self.steps.pop(row), float(self.comm_W[row])
        done = self.course.times.samples(row, step.began + comm / 2, self.events.now)
        seconds = self.events.now - step.began - comm / 2
        if seconds > 0:
            # As a loop of micro-batches would: it knows how many samples are through, not what they cost.
            costs = np.cumsum(self._costs(step.assigned))
            self.server.report(f"worker{row}", int(np.searchsorted(costs, done)), seconds, comm)
        self._pull(row)

    def _rows(self, assigned: SampleBatch) -> Sizes:
        """Return the samples of every copy, ``[S, B]``: each has an order of its own in each epoch."""
        rows_SB = np.empty((len(self.seeds), len(assigned)), np.int64)
        for epoch in np.unique(assigned.epochs):
            if epoch not in self.orders:
                count = self.server.sampler.samples
                orders = {
                    int(seed): np.random.default_rng((seed, epoch)).permutation(count) for seed in set(self.seeds)
                }
                self.orders[int(epoch)] = np.stack([orders[int(seed)] for seed in self.seeds])
            here = assigned.epochs == epoch
            rows_SB[:, here] = self.orders[int(epoch)][:, assigned.indices[here]]
        return rows_SB

    def _costs(self, assigned: SampleBatch) -> Array:
        return np.ones(len(assigned)) if self.course.costs is None else self.course.costs[assigned.indices]

    def _evaluated(self, budget: float) -> bool:
        """Evaluate if it is time; return whether the race is over."""
        applied, evaluations = self.server.sampler.applied, self.course.evaluations
        if applied >= budget * len(self.curve) / evaluations:
            accuracy_S = np.where(self.dead, 0.0, self.course.problem.accuracy(self._parameters()))
            self.curve.append((self.events.now, accuracy_S))
            reached_S = _reached(self.curve, self.course.problem.target)
            if np.isfinite(reached_S[~self.dead]).all():
                return True
            if self.settled and self.events.now > LATER * reached_S.reshape(-1, self.settled).max(axis=1).min():
                return True
        return applied >= budget


def _reached(curve: list[tuple[float, Array]], target: float) -> Array:
    accuracy_ES = np.array([accuracy for _, accuracy in curve])
    seconds = np.full(accuracy_ES.shape[1], np.inf)
    for e in range(len(curve) - 1, SMOOTHING_WINDOW - 2, -1):
        seconds[accuracy_ES[e - SMOOTHING_WINDOW + 1 : e + 1].mean(axis=0) >= target] = curve[e][0]
    return seconds


def _hidden(inputs: NDArray[np.float32], layers: list[Vector]) -> Vector:
    units = np.maximum(inputs @ layers[0], 0.0)
    return np.concatenate([units, np.ones((*units.shape[:-1], 1), units.dtype)], axis=-1)


def _softmax(scores: Vector) -> Vector:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Vector = powers / powers.sum(axis=-1, keepdims=True)
    return shares
