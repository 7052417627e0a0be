"""What a model's weighting talks to: a listener, a group of ranks and buckets of gradients, without a network."""

import math
from types import SimpleNamespace

import torch

from paceline.torch.weighting.batch import Turn


class Listener:
    """What a balance is asked, in the order of the questions."""

    def __init__(self, loss="mean", adds_parts=False, sums_shares=False, micro_batches=math.inf):
        self.loss, self.weights_loss, self.adds_parts = loss, loss == "mean" or adds_parts, adds_parts
        self.sums_shares, self.micro_batches, self.called = sums_shares, micro_batches, []
        self.error, self.turn = None, turn_of(0.5)
        for name in ("sent", "backward_ends", "backward_ended"):
            setattr(self, name, lambda name=name: self.called.append(name))
        for name in ("summed", "trained"):
            setattr(self, name, lambda what, name=name: self.called.append((name, what)))

    def look(self, args, kwargs):
        self.called.append(("look", len(args), sorted(kwargs)))
        return SimpleNamespace(through=())

    def given(self, one, recognition):
        self.called.append("given")
        return self.turn

    def noted(self, turn, inputs, made):
        self.called.append(("noted", turn, len(inputs), len(made)))

    def work_of(self, turn):
        return 2.5

    def ready(self, gradients, turn):
        self.called.append(("ready", None if gradients is None else gradients.tolist(), turn))
        if self.error is not None:
            raise self.error
        return "waiting"


def turn_of(share, part=None, features=()):
    return Turn(4, share, 8, True, share if part is None else part, features=features)


class Group:
    """A group of ranks, of which all others send these numbers."""

    def __init__(self, others=0.0, lost=False):
        self.others, self.lost, self.sent = others, lost, []

    def allreduce(self, tensors):
        future = torch.futures.Future()
        (one,) = tensors
        self.sent.append(one.clone())
        if self.lost:
            future.set_exception(RuntimeError("closed by peer"))
        else:
            one += self.others if one.dtype == torch.float32 else 0.25
            future.set_result([one])
        return SimpleNamespace(get_future=lambda: future, wait=lambda: None)


class Bucket:
    def __init__(self, gradients, last=True):
        self.gradients_of, self.last = torch.tensor(gradients), last

    def buffer(self):
        return self.gradients_of

    def is_last(self):
        return self.last


class Plain:
    """A group of one rank for gradients, and of two for weights."""

    def __init__(self, group):
        self.group = group

    def allreduce(self, tensors):
        if len(tensors[0]) == 1:
            return self.group.allreduce(tensors)
        future = torch.futures.Future()
        future.set_result(tensors)
        return SimpleNamespace(get_future=lambda: future)


def begun(weighting, turn=None):
    """Begin a backward pass over a batch of this turn."""
    one = SimpleNamespace(turn=turn or turn_of(0.25))
    weighting.backward_begins([one])
    return one


def summed(weighting, bucket, group):
    return weighting.hook(bucket, group).wait().tolist()
