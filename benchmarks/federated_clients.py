"""Federated clients: data that differs, devices and links that take time, and a small network that really trains.

Axes: N samples, F features, C clients, W clients of one round, S local steps, T rows of a recording, K recorded
workers, B samples of a batch, H hidden units, O classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from published_profiles import read_published

from paceline._arrays import Array, Sizes
from paceline.datasets import Trace

Labels = NDArray[np.int64]

TEST_SHARE = 0.2
LEAST_SAMPLES = 8
"""A client with fewer has nothing to train on: samples are moved to it from the largest."""

UNIT_SPREAD = 0.4
"""Log deviation of the speed of two units of one phone model: age, heat and what else runs. Our assumption."""

MEDIAN_BANDWIDTH, BANDWIDTH_SPREAD = 10e6, 0.6
"""Bandwidth is log-normal with this median in bit/s and this log deviation. Our assumption, as no trace is at hand."""

LINK_SPREAD = 0.2
"""Log deviation of one client's bandwidth from round to round. Our assumption."""

MODEL_BYTES = 1e6

FULL_SIZE = "in 1000, out 1000, steps 10"
"""The largest LSTM layer of the phone profiles, the only kind that flash and the paper share, stands for the model.

What a step costs besides its samples counts most in the smallest layers.
"""

IN_PROPORTION = (20.0, 0.6, 8000.0, 0.6)
"""Median and log deviation of ms per sample and of kbit/s, where time is in proportion to samples. Our assumption."""

HIDDEN = 32


@dataclass(frozen=True, eq=False)
class Shards:
    """A classification task whose training data lies on clients: ``shard`` has the rows of each."""

    inputs: Array
    labels: Labels
    shard: tuple[NDArray[np.intp], ...]
    test_inputs: Array
    test_labels: Labels

    @property
    def amounts(self) -> Sizes:
        """Samples of each client, ``[C]``."""
        return np.array([len(rows) for rows in self.shard], dtype=np.int64)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(max(self.labels.max(), self.test_labels.max())) + 1


def digits(clients: int, alpha: float | None, *, seed: int) -> Shards:
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels on clients; see `spread` for ``alpha``."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    return _shards(digits.data / 16.0, digits.target, clients, alpha, seed)


def mixture(clients: int, alpha: float | None, *, seed: int, samples: int = 40_000) -> Shards:
    """Return a synthetic set of ten classes on clients: each class three overlapping Gaussian clouds in 32 dimensions.

    Its size follows ``samples``, so that a thousand clients have data too.
    """
    generator = np.random.default_rng(20)  # the set is the same for every seed, only its spreading differs
    centers = generator.normal(0.0, 0.75, (10, 3, 32))
    labels = generator.integers(10, size=samples)
    inputs = centers[labels, generator.integers(3, size=samples)] + generator.standard_normal((samples, 32))
    return _shards(inputs, labels, clients, alpha, seed)


def _shards(inputs: Array, labels: Labels, clients: int, alpha: float | None, seed: int) -> Shards:
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    held_out = int(TEST_SHARE * len(labels))
    test, train = order[:held_out], order[held_out:]
    rows = spread(labels[train], clients, alpha, generator)
    return Shards(inputs[train], labels[train], tuple(rows), inputs[test], labels[test])


def spread(labels: Labels, clients: int, alpha: float | None, generator: np.random.Generator) -> list[NDArray[np.intp]]:
    """Return the rows of each client, every class by a draw from a Dirichlet distribution; evenly without ``alpha``.

    A concentration of 0.1 leaves a client a few classes, 1 most of them, in unequal amounts. The usual benchmark split:
    T. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data distribution for federated visual
    classification", 2019; per class, as J. Wang et al. (FedNova, 2020) draw it.
    """
    if alpha is None:
        return list(np.array_split(generator.permutation(len(labels)), clients))
    parts: list[list[NDArray[np.intp]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
        for part, piece in zip(parts, np.split(rows, ends.astype(np.int64)), strict=True):
            part.append(piece)
    found = [np.concatenate(part) for part in parts]
    for i in range(clients):
        while (missing := LEAST_SAMPLES - len(found[i])) > 0:
            largest = int(np.argmax([len(part) for part in found]))
            taken = generator.permutation(found[largest])
            found[i], found[largest] = np.concatenate([found[i], taken[:missing]]), taken[missing:]
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class Population:
    """Devices and links of the clients: times of computing and of communicating.

    Parameters
    ----------
    devices
        Device type of each client.
    intercept, slope
        Seconds of a local step besides its samples, and per sample, ``[C]``.
    bandwidth
        The median of each client's link, ``[C]``, in bit/s.
    slowdown
        How much longer a step takes than at a worker's median speed, ``[T, K]``, from recorded workers.
    worker, offset
        Whose recording slows each client down, and from which row on, ``[C]``.
    """

    devices: Sequence[str]
    intercept: Array
    slope: Array
    bandwidth: Array
    slowdown: Array
    worker: NDArray[np.intp]
    offset: Sizes

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self.slope)

    @property
    def names(self) -> list[str]:
        """Id of each client."""
        return [f"client-{i}" for i in range(len(self))]

    def compute_seconds(self, rows: NDArray[np.intp], sizes: Sizes, steps: Sizes, position: int) -> Array:
        """Return the time of these local steps, ``[W]``; each takes one row of the recording from ``position`` on."""
        step_S = np.arange(steps.max(initial=0))
        taken_WS = step_S < steps[:, None]
        at_WS = (self.offset[rows, None] + position + step_S) % len(self.slowdown)
        slow_WS = self.slowdown[at_WS, self.worker[rows, None]]
        step_seconds = self.intercept[rows] + self.slope[rows] * sizes
        return np.asarray(step_seconds * np.where(taken_WS, slow_WS, 0.0).sum(axis=1))

    def comm_seconds(self, rows: NDArray[np.intp], generator: np.random.Generator) -> Array:
        """Return the time to fetch and to send the model in one round, ``[W]``."""
        bandwidth = self.bandwidth[rows] * np.exp(LINK_SPREAD * generator.standard_normal(len(rows)))
        return np.asarray(2 * 8 * MODEL_BYTES / bandwidth)

    def moved_by(self, traces: Sequence[Trace], seed: int) -> Self:
        """Return the same clients, each slowed down as one worker of these traces, from a row drawn at random on."""
        generator = np.random.default_rng(seed)
        known = [speed_T[np.isfinite(speed_T)] for trace in traces for speed_T in trace.speed.T]
        columns = [np.median(speed_T) / speed_T for speed_T in known if len(speed_T)]
        shortest = min(map(len, columns))
        slowdown = np.stack([column[:shortest] for column in columns], axis=1)
        return replace(
            self,
            slowdown=slowdown,
            worker=generator.integers(slowdown.shape[1], size=len(self)),
            offset=generator.integers(len(slowdown), size=len(self)),
        )


def phones(count: int, profiles: Path, seed: int) -> Population:
    """Return clients that are phones of the flash profiles, half of each model, behind mobile links."""
    files = sorted(profiles.glob("*_lstm.json"))
    curves = []
    for file in files:
        profile = read_published(file, "flash")
        full = profile[profile["held"] == FULL_SIZE]
        slope, intercept = np.polyfit(full["batch"].to_numpy(), full["seconds"].to_numpy(), 1)
        curves.append((max(float(intercept), 0.0), float(slope)))
    generator = np.random.default_rng(seed)
    kind = np.arange(count) % len(files)
    unit = np.exp(UNIT_SPREAD * generator.standard_normal(count))
    intercepts, slopes = np.array(curves)[kind].T
    links = MEDIAN_BANDWIDTH * np.exp(BANDWIDTH_SPREAD * generator.standard_normal(count))
    return _calm([files[k].stem for k in kind], intercepts * unit, slopes * unit, links)


def in_proportion(count: int, seed: int) -> Population:
    """Return clients whose time is in proportion to their samples."""
    generator = np.random.default_rng(seed)
    ms, ms_spread, kbps, kbps_spread = IN_PROPORTION
    slope = np.round(generator.lognormal(np.log(ms), ms_spread, count), 4) / 1e3
    bandwidth = np.round(generator.lognormal(np.log(kbps), kbps_spread, count), 1) * 1e3
    return _calm([""] * count, np.zeros(count), slope, bandwidth)


def _calm(devices: Sequence[str], intercept: Array, slope: Array, bandwidth: Array) -> Population:
    """Return clients that are slowed down by nothing."""
    nobody = np.zeros(len(slope), dtype=np.intp)
    return Population(
        devices=devices,
        intercept=intercept,
        slope=slope,
        bandwidth=bandwidth,
        slowdown=np.ones((1, 1)),
        worker=nobody,
        offset=nobody,
    )


@dataclass(frozen=True, eq=False)
class SmallNetwork:
    """One hidden layer of rectified units and a softmax: ``[F, H]``, ``[H]``, ``[H, O]`` and ``[O]``.

    In numpy, so that a thousand clients train on one core.
    """

    weights: tuple[Array, ...]

    @classmethod
    def drawn(cls, features: int, classes: int, seed: int) -> Self:
        """Return a network with random first weights (He et al., 2015)."""
        generator = np.random.default_rng(seed)
        into = generator.normal(0.0, np.sqrt(2.0 / features), (features, HIDDEN))
        out = generator.normal(0.0, np.sqrt(2.0 / HIDDEN), (HIDDEN, classes))
        return cls((into, np.zeros(HIDDEN), out, np.zeros(classes)))

    def accuracy(self, inputs: Array, labels: Labels) -> float:
        """Return the share of these samples that it classifies correctly."""
        into, into_bias, out, out_bias = self.weights
        score = np.maximum(inputs @ into + into_bias, 0.0) @ out + out_bias
        return float(np.mean(score.argmax(axis=1) == labels))

    def change(
        self, inputs: Array, labels: Labels, *, batch: int, steps: int, rate: float, generator: np.random.Generator
    ) -> Self:
        """Return what local steps of plain gradient descent on batches of these samples change.

        Batches are cut from shuffled passes over the samples, so a pass uses each once.
        """
        weights = [each.copy() for each in self.weights]
        passes = -(-steps * batch // len(labels))
        order = np.concatenate([generator.permutation(len(labels)) for _ in range(passes)])
        for k in range(steps):
            rows = order[k * batch : (k + 1) * batch]
            for each, gradient in zip(weights, _gradients(weights, inputs[rows], labels[rows]), strict=True):
                each -= rate * gradient
        return type(self)(tuple(after - before for after, before in zip(weights, self.weights, strict=True)))

    def moved(self, changes: Sequence[Self], shares: Sequence[float]) -> Self:
        """Return the network moved by the sum of changes times shares."""
        moved = [each.copy() for each in self.weights]
        for change, share in zip(changes, shares, strict=True):
            for each, part in zip(moved, change.weights, strict=True):
                each += share * part
        return type(self)(tuple(moved))


def _gradients(weights: Sequence[Array], inputs: Array, labels: Labels) -> tuple[Array, ...]:
    """Return the gradients of the mean cross-entropy of a batch, in the order of the weights."""
    into, into_bias, out, out_bias = weights
    hidden_BH = np.maximum(inputs @ into + into_bias, 0.0)
    score_BO = hidden_BH @ out + out_bias
    chance_BO = np.exp(score_BO - score_BO.max(axis=1, keepdims=True))
    chance_BO /= chance_BO.sum(axis=1, keepdims=True)
    chance_BO[np.arange(len(labels)), labels] -= 1.0
    error_BO = chance_BO / len(labels)
    error_BH = (error_BO @ out.T) * (hidden_BH > 0)
    return inputs.T @ error_BH, error_BH.sum(axis=0), hidden_BH.T @ error_BO, error_BO.sum(axis=0)
