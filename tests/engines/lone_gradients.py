"""A model on one rank, and the account of its gradients, as backward passes and sums change them."""

import math
from types import SimpleNamespace

import torch

from paceline.torch.weighting.batch import Turn
from paceline.torch.weighting.waiting_gradients import WaitingGradients


def turn_of(share, part=None, whole=1.0, samples=4, known=True):
    return Turn(samples, share, 8, known, share if part is None else part, whole)


class Rank:
    """A model of two parameters on one rank, and the account of its gradients."""

    def __init__(self, *, loss="mean", weights_loss=True, adds_parts=False, micro_batches=math.inf, lengths=(2, 1)):
        self.model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(length)) for length in lengths)
        self.said = []
        listener = SimpleNamespace(loss=loss, weights_loss=weights_loss, adds_parts=adds_parts)
        listener.micro_batches, listener.warn = micro_batches, lambda *of: self.said.append(of)
        self.listener, self.ledger = listener, WaitingGradients(self.model, listener)

    def backward(self, turns, gradient, *, sums=False, divides=False):
        """Add a gradient as a backward pass does; weight it, and divide it by the sum of the parts if ``divides``."""
        weight = self.ledger.begins(turns if isinstance(turns, list) else [turns])
        for one in self.model:
            each = torch.full_like(one, gradient)
            one.grad = each if one.grad is None else one.grad.add_(each)
        total = None
        if sums:
            bucket = SimpleNamespace(parameters=lambda: list(self.model))
            bucket.gradients = lambda: [one.grad for one in self.model]
            if self.ledger.before is not None:
                self.ledger.put_back(bucket)
            part = self.ledger.part
            total = torch.tensor([part], dtype=torch.float64) if divides else None
            for one in self.model:
                one.grad.mul_(weight).div_(max(part, 1e-30) if divides else 1)
            self.ledger.summed()
        self.ledger.ends(total)
        return weight

    def zero(self, *, to_none):
        for one in self.model:
            if to_none:
                one.grad = None
            elif one.grad is not None:
                one.grad.zero_()

    def gradient(self):
        found = {number for one in self.model for number in one.grad.flatten().tolist()}
        assert max(found) - min(found) < 1e-9, "of all parameters alike"
        return found.pop()
