"""Tasks that a replay trains: small, real problems that need no download. Axes: N samples, P parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline._arrays import Sizes
from paceline._require import require
from paceline.coordinator.asynchronous import Vector

Floats = NDArray[np.float32]

HELD_OUT = 4
"""One sample in this many is kept for the accuracy."""


class ReplayTask(Protocol):
    """A model, its training samples, and samples that are held out."""

    @property
    def samples(self) -> int:
        """Number of training samples."""
        ...

    def start(self, seed: int) -> Vector:
        """Return parameters to start from, ``[P]``."""
        ...

    def gradient(self, parameters: Vector, rows: Sizes) -> Vector:
        """Return the mean gradient of the loss over training samples, ``[P]``."""
        ...

    def accuracy(self, parameters: Vector) -> float:
        """Return the share of held-out samples that are predicted correctly."""
        ...


class Perceptron:
    """scikit-learn's digits, by a softmax over no or one hidden layer; written out in numpy, as torch takes longer.

    Parameters
    ----------
    hidden
        Units of the hidden layer; 0 is logistic regression.
    """

    def __init__(self, hidden: int = 0) -> None:
        self.inputs, self.labels, self.held_inputs, self.held_labels = _digits()
        width = self.inputs.shape[1]
        self.shapes = [(width, hidden), (hidden + 1, 10)] if hidden else [(width, 10)]

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self.inputs)

    def start(self, seed: int) -> Vector:
        """Return parameters to start from, ``[P]``, with the variance of He et al. (2015)."""
        rng = np.random.default_rng(seed)
        layers = [rng.normal(0.0, np.sqrt(2.0 / shape[0]), shape).ravel() for shape in self.shapes]
        return np.concatenate(layers).astype(np.float32)

    def gradient(self, parameters: Vector, rows: Sizes) -> Vector:
        """Return the mean gradient of the cross-entropy, ``[P]``."""
        layers, inputs = self._layers(parameters), self.inputs[rows]
        hidden = _hidden(inputs, layers)
        slope = _softmax(hidden @ layers[-1])
        slope[np.arange(len(rows)), self.labels[rows]] -= 1.0
        slope /= len(rows)
        last = hidden.T @ slope
        if len(layers) == 1:
            return last.ravel()
        back = (slope @ layers[1][:-1].T) * (hidden[:, :-1] > 0)
        return np.concatenate([(inputs.T @ back).ravel(), last.ravel()])

    def accuracy(self, parameters: Vector) -> float:
        """Return the share of held-out digits that are recognised."""
        layers = self._layers(parameters)
        predicted = (_hidden(self.held_inputs, layers) @ layers[-1]).argmax(axis=1)
        return float((predicted == self.held_labels).mean())

    def _layers(self, parameters: Vector) -> list[Vector]:
        layers, start = [], 0
        for rows, columns in self.shapes:
            layers.append(parameters[start : start + rows * columns].reshape(rows, columns))
            start += rows * columns
        return layers


class Letters:
    """The next letter of Python's own help texts, by a small transformer.

    Parameters
    ----------
    length
        Letters of a sample.
    count
        Samples, held-out ones included.
    """

    def __init__(self, length: int = 16, count: int = 4096) -> None:
        require("torch", needed_by="the replay of a transformer", extra="torch")
        import torch

        from paceline.eval.replay.asynchronous.transformer import Transformer

        text = torch.tensor(_help_texts(length, count))
        self._held = torch.arange(count) % HELD_OUT == 0
        self._train, self._test = text[~self._held], text[self._held][:256]
        self._model = Transformer(letters=int(text.max()) + 1, length=length)

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self._train)

    def start(self, seed: int) -> Vector:
        """Return parameters to start from, ``[P]``."""
        return self._model.start(seed)

    def gradient(self, parameters: Vector, rows: Sizes) -> Vector:
        """Return the mean gradient of the cross-entropy, ``[P]``."""
        return self._model.gradient(parameters, self._train[rows])

    def accuracy(self, parameters: Vector) -> float:
        """Return the share of held-out letters that are predicted correctly."""
        return self._model.accuracy(parameters, self._test)


TASKS: dict[str, Callable[[], ReplayTask]] = {
    "digits-logistic": Perceptron,
    "digits-mlp": lambda: Perceptron(hidden=32),
    "letters-transformer": Letters,
}
"""Tasks that may be trained, by name."""


@cache
def task(name: str) -> ReplayTask:
    """Return the task of this name, a key of ``TASKS``; it is built once.

    Raises
    ------
    ValueError
        If there is no such task.
    ImportError
        If scikit-learn or torch is missing.
    """
    if name not in TASKS:
        raise ValueError(f"task must be one of {list(TASKS)}, got {name!r}")
    return TASKS[name]()


def _digits() -> tuple[Floats, Sizes, Floats, Sizes]:
    require("sklearn", needed_by="the replay of digits", extra="boosting")
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    pixels = (digits.data[order] - digits.data.mean()) / digits.data.std()
    inputs = np.hstack([pixels, np.ones((len(pixels), 1))]).astype(np.float32)  # the last column is the bias
    labels = digits.target[order].astype(np.int64)
    held = np.arange(len(labels)) % HELD_OUT == 0
    return inputs[~held], labels[~held], inputs[held], labels[held]


def _help_texts(length: int, count: int) -> Sizes:
    """Return pieces of the help texts that Python ships, as numbers of letters, ``[N, length]``."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace")
    codes = np.frombuffer(text, dtype=np.uint8)[: length * count]
    _, letters = np.unique(codes, return_inverse=True)
    return letters.astype(np.int64).reshape(count, length)


def _hidden(inputs: Floats, layers: list[Vector]) -> Vector:
    """Return what the last layer reads: the inputs, or rectified units and a one for the bias."""
    if len(layers) == 1:
        return inputs
    units = np.maximum(inputs @ layers[0], 0.0)
    return np.hstack([units, np.ones((len(units), 1), units.dtype)])


def _softmax(scores: Vector) -> Vector:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Vector = powers / powers.sum(axis=1, keepdims=True)
    return shares
