"""Training data spread over clients, alike or not. Axes: N samples, F features, C clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Array, Sizes
from paceline._require import require

Labels = NDArray[np.int64]

TEST_SHARE = 0.2
LEAST_SAMPLES = 8
"""A client with fewer has nothing to train on: samples are moved to it from the largest."""


@dataclass(frozen=True, eq=False)
class Shards:
    """A classification task whose training data lies on clients.

    Parameters
    ----------
    name
        What it is.
    inputs, labels
        All training samples, ``[N, F]`` float64 and ``[N]``.
    shard
        The rows of each client.
    test_inputs, test_labels
        What accuracy is measured on.
    """

    name: str
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
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels on clients; see `spread` for ``alpha``.

    Raises
    ------
    ImportError
        If scikit-learn is missing.
    """
    require("sklearn", needed_by="digits", extra="lab")
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    inputs, labels = digits.data, digits.target
    return _shards("digits", inputs / 16.0, labels, clients, alpha, seed)


def mixture(clients: int, alpha: float | None, *, seed: int, samples: int = 40_000) -> Shards:
    """Return a synthetic set of ten classes on clients: each class three overlapping Gaussian clouds in 32 dimensions.

    Its size follows ``samples``, so that a thousand clients have data too.
    """
    generator = np.random.default_rng(20)  # the set is the same for every seed, only its spreading differs
    centers = generator.normal(0.0, 0.75, (10, 3, 32))
    labels = generator.integers(10, size=samples)
    inputs = centers[labels, generator.integers(3, size=samples)] + generator.standard_normal((samples, 32))
    return _shards("mixture", inputs, labels, clients, alpha, seed)


def spread(labels: Labels, clients: int, alpha: float | None, generator: np.random.Generator) -> list[NDArray[np.intp]]:
    """Return the rows of each client.

    Parameters
    ----------
    labels
        Class of each sample, ``[N]``.
    clients
        How many.
    alpha
        Every class is spread over the clients by a draw from a symmetric Dirichlet distribution of this
        concentration: 0.1 leaves a client a few classes, 1 most of them, in unequal amounts. ``None`` spreads all
        samples evenly and at random (IID).

    Notes
    -----
    The usual benchmark split: T. H. Hsu, H. Qi and M. Brown, "Measuring the effects of non-identical data
    distribution for federated visual classification", 2019; per class, as J. Wang et al. (FedNova, 2020) draw it.
    """
    if len(labels) < clients * LEAST_SAMPLES:
        raise ValueError(f"{len(labels)} samples are too few for {clients} clients with at least {LEAST_SAMPLES} each")
    if alpha is None:
        return list(np.array_split(generator.permutation(len(labels)), clients))
    parts: list[list[NDArray[np.intp]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        ends = np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
        for part, piece in zip(parts, np.split(rows, ends.astype(np.int64)), strict=True):
            part.append(piece)
    return _with_least([np.concatenate(part) for part in parts], generator)


def _with_least(parts: list[NDArray[np.intp]], generator: np.random.Generator) -> list[NDArray[np.intp]]:
    """Give every client the least number of samples, taken from the largest."""
    for i, part in enumerate(parts):
        while len(parts[i]) < LEAST_SAMPLES:
            largest = int(np.argmax([len(part) for part in parts]))
            taken = generator.permutation(parts[largest])
            missing = LEAST_SAMPLES - len(parts[i])
            parts[i] = np.concatenate([parts[i], taken[:missing]])
            parts[largest] = taken[missing:]
        del part
    return parts


def _shards(name: str, inputs: Array, labels: Labels, clients: int, alpha: float | None, seed: int) -> Shards:
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(labels))
    held_out = int(TEST_SHARE * len(labels))
    test, train = order[:held_out], order[held_out:]
    rows = spread(labels[train], clients, alpha, generator)
    return Shards(name, inputs[train], labels[train], tuple(rows), inputs[test], labels[test])
