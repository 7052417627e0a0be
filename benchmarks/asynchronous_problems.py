"""Problems and fleets of the page: small, none needs a download. Axes: N samples, D inputs, W workers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from asynchronous_race import Problem
from numpy.typing import NDArray

from paceline._arrays import Array
from paceline.datasets import Trace

HELD_OUT = 4
"""One sample in this many is held out."""

TRIED = 400
"""So many of those at most tell the accuracy."""


@cache
def digits(hidden: int, target: float, tried: int | None = TRIED) -> Problem:
    """Return scikit-learn's handwritten digits: 64 pixels, 10 classes."""
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    pixels = (loaded.data - loaded.data.mean()) / loaded.data.std()
    return _problem(target, pixels, loaded.target, hidden, tried)


@cache
def made(target: float) -> Problem:
    """Return made clusters: 54 inputs, 7 classes of two clusters each, 2% of the labels wrong."""
    from sklearn.datasets import make_classification

    inputs, labels = make_classification(
        n_samples=3000,
        n_features=54,
        n_informative=16,
        n_redundant=10,
        n_classes=7,
        n_clusters_per_class=2,
        flip_y=0.02,
        class_sep=1.5,
        random_state=0,
    )
    return _problem(target, inputs / inputs.std(), labels, 32)


@cache
def teacher(target: float) -> Problem:
    """Return labels of a random network: 30 inputs, 5 classes."""
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(3000, 30))
    hidden = np.tanh(inputs @ rng.normal(size=(30, 12)) / 2.0)
    return _problem(target, inputs, (hidden @ rng.normal(size=(12, 5))).argmax(axis=1), 32)


def costs(kind: str, samples: int) -> Array:
    """Return the cost of every place in the data, ``[N]``, with the mean 1: one in 100 costs 30, or log-normal."""
    rng = np.random.default_rng(5)
    drawn_N = np.where(rng.random(samples) < 0.01, 30.0, 1.0) if kind == "rare" else np.exp(rng.normal(size=samples))
    scaled_N: Array = drawn_N / drawn_N.mean()
    return scaled_N


def fleet(grades: tuple[float, ...], workers: int) -> Trace:
    """Return a fleet of which equal parts need so many times as long as the fastest, with 10% noise."""
    rng = np.random.default_rng([workers, len(grades)])
    base_W = 1.0 / np.array(grades)[np.arange(workers) * len(grades) // workers]
    speed_TW = base_W * np.exp(rng.normal(0.0, 0.1, (400, workers)))
    return Trace(np.ones_like(speed_TW), 1.0 / speed_TW, meta={"job": "graded", "source": "synthetic"})


def _problem(target: float, inputs: Array, labels: NDArray[Any], hidden: int, tried: int | None = TRIED) -> Problem:
    order = np.random.default_rng(0).permutation(len(labels))
    with_bias = np.hstack([inputs[order], np.ones((len(order), 1))]).astype(np.float32)
    kinds = labels[order].astype(np.int64)
    held = np.arange(len(order)) % HELD_OUT == 0
    return Problem(target, with_bias[~held], kinds[~held], with_bias[held][:tried], kinds[held][:tried], hidden)
