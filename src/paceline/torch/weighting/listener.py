"""Protocol of the object that a weighting reports to, and the kinds of loss."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.graph import Pass
from paceline.torch.weighting.handed import Seen
from paceline.torch.weighting.recognition import Recognition

Loss = Literal["mean", "sum", "scaled"]
"""A rank's loss: a mean over its batch, a sum, or a mean that the loop gives to ``balance.scale()``."""


def weights_loss(loss: str, count: object) -> bool:
    """Return whether gradients are weighted as ranks sum them: for means, and where a function counts loss terms."""
    return loss == "mean" or count is not None


class BalanceWarning(UserWarning):
    """The loop does something for which balanced batches give other results than equal ones."""


class Warnings:
    """Warns of each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, about: str, sentence: str) -> None:
        """Warn, if nothing was said of this yet."""
        if about not in self._said:
            self._said.add(about)
            warnings.warn(sentence, BalanceWarning, stacklevel=3)


class Listener(Protocol):
    """Receiver of a weighting's reports on a model's passes: the balance."""

    loss: Loss
    weights_loss: bool
    """True if gradients are weighted as they are summed over the ranks."""

    adds_parts: bool
    """True if the sums are of the loss terms of all micro-batches of a step, which only their rank knows."""

    warn: Warnings

    @property
    def sums_shares(self) -> bool:
        """True if weights are summed over the ranks: equal on all ranks, and constant during a backward pass."""
        ...

    @property
    def micro_batches(self) -> float:
        """By how many micro-batches loops divide a loss where terms are summed, and so the most of a step.

        Infinite where they do not divide.
        """
        ...

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Seen:
        """Return the evidence of a batch in the inputs of a forward pass."""
        ...

    def given(self, one: Pass, recognition: Recognition) -> Turn | None:
        """Note that a forward pass in training begins, and return its turn; None if its batch is not known."""
        ...

    def work_of(self, turn: Turn) -> float:
        """Return the cost of this rank's samples of a turn, in average samples."""
        ...

    def trained(self, passes: Sequence[Pass]) -> None:
        """Note that gradients of passes are about to be computed, and refuse or warn of what is wrong with them."""
        ...

    def noted(self, turn: Turn, inputs: Sequence[Any], made: Sequence[torch.Tensor]) -> None:
        """Note the tensors that a pass in training got, and those that it made of them."""
        ...

    def ready(self, gradients: torch.Tensor | None, turn: Turn | None) -> Any:
        """Note that all gradients are ready, the last of these and of this turn; return the argument of ``summed``."""
        ...

    def sent(self) -> None:
        """Note that the gradients were handed to the network."""
        ...

    def summed(self, waiting: Any) -> None:
        """Note that the gradients of all ranks are summed."""
        ...

    def backward_ended(self) -> None:
        """Note that a backward pass ended, for a model outside DistributedDataParallel."""
        ...

    def backward_ends(self) -> None:
        """Note that a backward pass has handed all it has to the network, and waits for the gradients of all ranks."""
        ...
