"""A transformer of one layer that predicts the next letter. Axes: N samples, L letters, P parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from paceline.coordinator.asynchronous import Vector

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
