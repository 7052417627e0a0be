"""The gradients of a model that wait to be summed over the ranks: which batches they are of, and what they weigh.

A loop may accumulate several batches, compute one twice, or drop what it has accumulated. One weight has to be right
for the sum, and what is counted must follow what is there.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from paceline.coordinator.torch.weighing.handed import Turn
from paceline.coordinator.torch.weighing.hooks import ddp_of
from paceline.coordinator.torch.weighing.listener import Listener

Mark = tuple[int, int]
"""A gradient, and how often it was changed."""


class Ledger:
    """Keeps the account of one model's gradients.

    Parameters
    ----------
    model
        The model, whose parameters get the gradients.
    listener
        Says how they are weighed, and is warned through.
    """

    def __init__(self, model: torch.nn.Module, listener: Listener) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._ddp = ddp_of(model)
        self._listener = listener
        self._weighs = listener.weigh in ("gradients", "sum")
        self._turns: list[Turn] = []
        self._scale = 0.0
        self._unsummed = self._summed_now = False
        self._there: dict[torch.Tensor, Mark] = {}
        self._aside: dict[torch.Tensor, torch.Tensor | None] | None = None

    @property
    def turn(self) -> Turn | None:
        """The batch whose gradients came last; None once they were summed."""
        return self._turns[-1] if self._turns else None

    @property
    def part(self) -> float:
        """What is to be summed over the ranks: the part of a step's last micro-batch, or of all its batches."""
        if self._listener.adds_parts:
            return sum(turn.part for turn in self._turns)
        return self._turns[-1].part if self._turns else math.nan

    @property
    def waits(self) -> bool:
        """Whether gradients of this rank alone are there."""
        return self._unsummed and self._any()

    def begins(self, turns: list[Turn]) -> float:
        """Enter the batches behind a backward pass, before its gradients are there; return the weight of the sum.

        Micro-batches accumulated under ``no_sync`` may have other weights, because an epoch's last batch is split in
        other proportions. Their gradients are rescaled, so that one weight is right for the sum.

        Raises
        ------
        RuntimeError
            If no weight is right.
        """
        turn = self._one_of(turns)
        self._summed_now = False
        self._enter(turn)
        if self._weighs:
            self._weigh(turn)
        if not turn.share and self._listener.weigh != "none":
            # The mean over no terms is 0 / 0, which no factor takes back: only what was there before is kept.
            self._aside = {one: None if one.grad is None else one.grad.clone() for one in self._parameters}
        self._unsummed = True
        return self._scale

    def ends(self) -> None:
        """Note that the backward pass is over."""
        if not self._summed_now and self._aside is not None:
            for parameter, kept in self._aside.items():
                if kept is None or parameter.grad is None:
                    parameter.grad = None
                else:
                    parameter.grad.copy_(kept)
        self._aside = None
        if self._unsummed and self._listener.adds_parts:
            self._there = {one: _mark(one.grad) for one in self._parameters if one.grad is not None}

    def put_back(self, bucket: Any) -> None:
        """Let a bucket hold what was there before a backward pass without any loss term."""
        if self._aside is None:
            return
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            kept = self._aside.get(parameter)
            gradient.zero_() if kept is None else gradient.copy_(kept)

    def summed(self) -> None:
        """Note that all gradients are on their way to be summed."""
        self._unsummed, self._summed_now = False, True
        self._turns.clear()

    def _one_of(self, turns: list[Turn]) -> Turn:
        """Return the turn that stands for all batches behind a backward pass."""
        turn = next((one for one in turns if one.known), turns[0])
        others = [one for one in turns if one is not turn]
        if others and self._listener.adds_parts:
            raise RuntimeError(
                "one backward pass covers two batches, whose loss terms would not count alike: call backward() for each"
            )
        for other in others:
            if self._weighs and other.share != turn.share:
                self._listener.warn(
                    "backward",
                    f"One backward pass covers batches of {turn.samples} and of {other.samples} samples on this "
                    "rank. One weight cannot serve both: the gradients are not those of equal batches. Call backward() "
                    'for each, or use attach(..., weigh="loss") and balance.scale() for the loss of the balanced batch.',
                )
        return turn

    def _weigh(self, turn: Turn) -> None:
        """Let one weight be right for what waits and what comes."""
        if not self._unsummed:
            self._scale = turn.share
            if not turn.whole and self._ddp is not None:
                # Of a micro-batch without any loss term nothing is added, but gradients summed before are to stay.
                group: Any = self._ddp.process_group
                self._scale = 1 / group.size()
            if turn.whole not in (0.0, 1.0):
                self._multiply(1 / turn.whole)  # those summed before are summed once more
        elif turn.share:  # else its gradients are 0, and those before keep their weight
            if self._scale and self._scale != turn.share:
                self._multiply(self._scale / turn.share)
            self._scale = turn.share

    def _enter(self, turn: Turn) -> None:
        """Count a batch once, however many backward passes go through it."""
        if not self._listener.adds_parts:
            self._turns[:] = [turn]
            return
        if self._unsummed:
            self._drop_what_is_gone()
        # The mean of what is the same on all ranks is itself.
        elif (self._listener.micro_batches != 1 or self._listener.weigh == "sum") and self._any():
            raise RuntimeError(
                "gradients that were summed over the ranks already are there when a further backward pass begins, "
                "so that terms would not count alike: put all micro-batches of a step but the last into "
                "`with model.no_sync():`, and call zero_grad() after the step"
            )
        if not any(one is turn for one in self._turns):
            self._turns.append(turn)
        if len(self._turns) > self._listener.micro_batches:
            raise RuntimeError(
                f"{len(self._turns)} micro-batches were summed before a step, more than accumulate="
                f"{self._listener.micro_batches:g} says: give accumulate=, by which the loop divides its losses"
            )

    def _drop_what_is_gone(self) -> None:
        """Forget batches whose gradients the loop has dropped, by zero_grad(), before they were summed."""
        there = [(one.grad, mark) for one, mark in self._there.items() if one.grad is not None]
        # Gradients that were set to 0, or clipped, have changed.
        if not any(_mark(gradient) == mark or bool(gradient.any()) for gradient, mark in there):
            self._unsummed = False
            self._turns.clear()
        elif len(there) < len(self._there):
            raise RuntimeError(
                "some of the gradients that wait to be summed were dropped, and others not, so that the terms of their "
                "batches would not count alike: call zero_grad() for all parameters of the model, or for none"
            )

    def _any(self) -> bool:
        """Whether a parameter has a gradient other than 0."""
        return any(one.grad is not None and bool(one.grad.any()) for one in self._parameters)

    def _multiply(self, factor: float) -> None:
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)


def _mark(gradient: torch.Tensor) -> Mark:
    return id(gradient), gradient._version
