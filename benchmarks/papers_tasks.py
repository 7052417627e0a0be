"""Tasks that the races of papers.py train: small problems that need no download.

Axes: N samples, L letters, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from paceline._arrays import Sizes
from paceline.coordinator.asynchronous import Vector
from paceline.datasets import Trace
from paceline.eval.asynchronous import TrainingTask

Floats = NDArray[np.float32]

HELD_OUT = 4
"""One sample in this many is kept for the accuracy."""


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
        """Return the share of held-out digits that are recognized."""
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


TASKS: dict[str, Callable[[], TrainingTask]] = {
    "digits-logistic": Perceptron,
    "digits-mlp": lambda: Perceptron(hidden=32),
    "letters-transformer": Letters,
}
"""Tasks that may be trained, by name."""


@cache
def task(name: str) -> TrainingTask:
    """Return the task of this name, a key of ``TASKS``; it is built once.

    Raises
    ------
    ValueError
        If there is no such task.
    """
    if name not in TASKS:
        raise ValueError(f"task must be one of {list(TASKS)}, got {name!r}")
    return TASKS[name]()


def _digits() -> tuple[Floats, Sizes, Floats, Sizes]:
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


WIDTH, HEADS = 32, 2


class Transformer:
    """The model, read and written as flat parameters.

    Parameters
    ----------
    letters
        Size of the alphabet.
    length
        Letters of a sample; the first is only read, the last only predicted.
    """

    def __init__(self, letters: int, length: int) -> None:
        self.letters, self.length = letters, length
        self._model = self._network()

    def start(self, seed: int) -> Vector:
        """Return parameters to start from, ``[P]``; the seed leaves torch's own numbers alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return parameters_to_vector(self._network().parameters()).detach().numpy()

    def gradient(self, parameters: Vector, text: torch.Tensor) -> Vector:
        """Return the mean gradient of the cross-entropy over pieces of text, ``[N, L]``."""
        loss = nn.functional.cross_entropy(self._scores(parameters, text).flatten(0, 1), text[:, 1:].flatten())
        return parameters_to_vector(torch.autograd.grad(loss, tuple(self._model.parameters()))).numpy()

    def accuracy(self, parameters: Vector, text: torch.Tensor) -> float:
        """Return the share of letters predicted right."""
        with torch.no_grad():
            predicted = self._scores(parameters, text).argmax(dim=-1)
        return float((predicted == text[:, 1:]).float().mean())

    def _scores(self, parameters: Vector, text: torch.Tensor) -> torch.Tensor:
        vector_to_parameters(torch.tensor(parameters, dtype=torch.float32), self._model.parameters())
        scores: torch.Tensor = self._model(text[:, :-1])
        return scores

    def _network(self) -> nn.Module:
        return _Network(self.letters, self.length - 1)


class _Network(nn.Module):
    def __init__(self, letters: int, length: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, WIDTH)
        self.place = nn.Parameter(0.02 * torch.randn(length, WIDTH))
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixing, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, letters)

    def forward(self, letters_NL: torch.Tensor) -> torch.Tensor:
        state = self.letter(letters_NL) + self.place
        heads = self.mixing(self.before(state)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        state = state + self.mixed(seen.transpose(1, 2).flatten(2))
        scores: torch.Tensor = self.last(state + self.inner(self.between(state)))
        return scores


def graded_fleet(workers: int, *, rows: int = 400, noise: float = 0.1, seed: int = 0) -> Trace:
    """Return a synthetic fleet of four grades: a quarter each needs once, twice, four and eight times as long."""
    rng = np.random.default_rng([workers, seed])
    base_W = 0.5 ** (np.arange(workers) * 4 // workers)
    speed_TW = base_W * np.exp(rng.normal(0.0, noise, (rows, workers)))
    return Trace(np.ones_like(speed_TW), 1.0 / speed_TW, meta={"job": "1x/2x/4x/8x", "source": "synthetic"})
