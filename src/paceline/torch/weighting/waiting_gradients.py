"""Gradients of a model that wait to be summed over the ranks, the batches behind them, and their weight.

A loop may accumulate several batches, compute one twice, or drop what it has accumulated. One weight has to be right
for the sum, and what is counted must follow what is there.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.hooks import gradients_in
from paceline.torch.weighting.listener import Listener

Mark = tuple[int, int]
"""A gradient, and how often it was changed."""

Kept = dict[torch.Tensor, torch.Tensor | None]

TWO_BATCHES = (
    "One backward pass covers batches of {samples} and of {others} samples on this rank. One weight cannot serve both: "
    'the gradients are not those of equal batches. Call backward() for each, or use attach(..., loss="scaled") and '
    "balance.scale() for the loss of the balanced batch."
)


class WaitingGradients:
    """Keeps the account of one model's gradients.

    Parameters
    ----------
    model
        The model, whose parameters get the gradients.
    listener
        Says how gradients are weighted, and takes warnings.

    Attributes
    ----------
    turn
        The batch whose gradients came last; None once they were summed.
    unsummed
        Whether gradients have come that were not summed yet.
    before
        What the parameters' gradients were before a backward pass without any loss term; None in all others.
    """

    def __init__(self, model: torch.nn.Module, listener: Listener) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._listener = listener
        self._weights_loss = listener.weights_loss
        self.turn: Turn | None = None
        self._turns: list[Turn] = []
        self._counted: list[Turn] = []
        self._newest: list[Turn] = []
        self._scale: float
        self.unsummed = self._summed_now = False
        self._there: dict[torch.Tensor, Mark] = {}
        self._total: torch.Tensor | None = None
        self.before: Kept | None = None
        self._done: Kept | None = None

    @property
    def trains(self) -> bool:
        """True if any parameter gets gradients."""
        for parameter in self._parameters:  # noqa: SIM110 - each step of a generator costs as much as a call
            if parameter.requires_grad:
                return True
        return False

    @property
    def part(self) -> float:
        """Share to be summed over the ranks: that of a step's last micro-batch, or of all its batches."""
        if self._listener.adds_parts:
            return sum(turn.part for turn in self._turns)
        return self._turns[-1].part if self._turns else math.nan

    @property
    def waits(self) -> bool:
        """True if there are gradients of this rank alone, zeros included that a batch without loss terms leaves."""
        return self.unsummed and (self._any() or any(_mark(one.grad) == mark for one, mark in self._there.items()))

    def begins(self, turns: list[Turn]) -> float:
        """Enter the batches behind a backward pass, before its gradients are there; return the weight of the sum.

        Micro-batches accumulated under ``no_sync`` may have other weights, because an epoch's last batch is split in
        other proportions. Their gradients are rescaled, so that one weight is right for the sum.

        Raises
        ------
        RuntimeError
            If no weight is right.
        """
        turn = turns[0] if len(turns) == 1 else self._one_of(turns)
        self._summed_now = False
        if self.unsummed and (self._listener.adds_parts or self._done):
            self._drop_what_is_gone()
        if not self.unsummed and self._weights_loss and (self._listener.adds_parts or turn.whole != 1):
            self._put_aside()
        if self._listener.adds_parts:
            self._enter(turn)
        else:
            self._turns = [turn]
        if self._weights_loss and self.unsummed and turn.share and self._scale not in (0.0, turn.share):
            self._multiply(self._scale / turn.share)
        if turn.share or not self.unsummed:  # else its gradients are 0, and those before keep their weight
            self._scale = turn.share
        if not turn.share and self._listener.loss != "sum":
            # The mean over no terms is 0 / 0, which no factor takes back: only what was there before is kept.
            self.before = {one: None if one.grad is None else one.grad.clone() for one in self._parameters}
        self.unsummed, self.turn = True, self._turns[-1]
        return self._scale

    def ends(self, total: torch.Tensor | None = None) -> None:
        """Note that the backward pass is over; ``total`` is the sum of all ranks' parts, if parts were summed."""
        if not self._summed_now and self.before is not None:
            for parameter, kept in self.before.items():
                if parameter.grad is not None:
                    parameter.grad.zero_() if kept is None else parameter.grad.copy_(kept)
        self.before = None
        if self._summed_now and (self._done or self._listener.adds_parts):
            self._add_done(total)
        if self.unsummed:
            self._there = {one: _mark(one.grad) for one in self._parameters if one.grad is not None}

    def _add_done(self, total: torch.Tensor | None) -> None:
        """Add the gradients put aside; where terms are counted, each term of both sums counts the same."""
        before = self._total
        self._total = total[0].clone() if self._listener.adds_parts and total is not None else None  # without axes
        old: torch.Tensor | float = 1.0
        new: torch.Tensor | float = 1.0
        if self._done and before is not None and self._total is not None:
            again = any(one is turn for one in self._counted for turn in self._newest)
            together = before if again else before + self._total
            old, new, self._total = before / together, self._total / together, together
        self._counted += self._newest
        for parameter, kept in (self._done or {}).items():
            if kept is not None:
                parameter.grad = kept * old if parameter.grad is None else parameter.grad.mul_(new).add_(kept * old)
        self._done = None

    def put_back(self, bucket: Any) -> None:
        """Restore in a bucket the gradients from before a backward pass without any loss term."""
        assert self.before is not None, "something was put aside"
        for parameter, gradient in zip(bucket.parameters(), gradients_in(bucket), strict=True):
            kept = self.before.get(parameter)
            gradient.zero_() if kept is None else gradient.copy_(kept)

    def summed(self) -> None:
        """Note that all gradients are on their way to be summed."""
        self.unsummed, self._summed_now = False, True
        self._newest, self._turns, self.turn = self._turns, [], None

    def _one_of(self, turns: list[Turn]) -> Turn:
        """Return the turn that stands for all batches behind a backward pass."""
        turn = next((one for one in turns if one.known), turns[0])
        others = [one for one in turns if one is not turn]
        if others and self._listener.adds_parts:
            raise RuntimeError(
                "one backward pass covers two batches, whose loss terms would not count alike: call backward() for each"
            )
        for other in others:
            if self._weights_loss and other.share != turn.share:
                self._listener.warn("backward", TWO_BATCHES.format(samples=turn.samples, others=other.samples))
        return turn

    def _put_aside(self) -> None:
        """Put aside gradients that were summed already, so that they are not weighted once more; ``ends`` adds them."""
        if not self._any():
            self._counted.clear()
            return
        self._done = {one: None if one.grad is None else one.grad.clone() for one in self._parameters}  # not buckets
        for parameter in self._parameters:
            parameter.grad = None

    def _enter(self, turn: Turn) -> None:
        """Count a batch once, however many backward passes go through it."""
        if not any(one is turn for one in self._turns):
            self._turns.append(turn)
        again = [any(one is done for done in self._counted) for one in self._turns]
        if any(again) and not all(again):
            raise RuntimeError(
                "gradients of a batch that were summed over the ranks already come once more together with another "
                "batch's, so that terms would not count alike: put all backward passes of a step but the last into "
                "`with model.no_sync():`"
            )
        if (count := len(self._turns) + len(self._counted) * (not any(again))) > self._listener.micro_batches:
            raise RuntimeError(
                f"{count} micro-batches were summed before a step, more than accumulate="
                f"{self._listener.micro_batches:g} says: give accumulate=, by which the loop divides its losses, and "
                "call zero_grad() after every step"
            )

    def _drop_what_is_gone(self) -> None:
        """Forget batches whose gradients the loop has dropped, by zero_grad(), before they were summed."""
        there = [(one.grad, mark) for one, mark in self._there.items() if one.grad is not None]
        # Gradients that were set to 0, or clipped, have changed.
        if not any(_mark(gradient) == mark or bool(gradient.any()) for gradient, mark in there):
            self.unsummed, self._done = False, None
            self._turns.clear()
            self._counted.clear()
        elif len(there) < len(self._there):
            raise RuntimeError(
                "some of the gradients that wait to be summed were dropped, and others not, so that the terms of their "
                "batches would not count alike: call zero_grad() for all parameters of the model, or for none"
            )

    def _any(self) -> bool:
        """Return whether a parameter has a gradient other than 0."""
        return any(one.grad is not None and bool(one.grad.any()) for one in self._parameters)

    def _multiply(self, factor: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def _mark(gradient: torch.Tensor | None) -> Mark:
    return id(gradient), -1 if gradient is None else gradient._version
