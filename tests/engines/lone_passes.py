"""The passes of one rank in a job whose loader, clock and time only the test moves."""

import math
import time
import warnings
from types import SimpleNamespace

import numpy as np

from paceline.torch.passes import Passes
from paceline.torch.weighting.listener import BalanceWarning
from paceline.torch.weighting.rank_batch import RankBatch

FACTS = {"rank": 0, "world_size": 3, "global_batch": 12, "accumulate": 2, "micro_batch": None, "coefficients": None}


class Watch:
    """A clock that notes what it is told, and takes a second for it."""

    def __init__(self, seconds, delay=0):
        self.delay, self.seconds, self.told = delay, seconds, []

    def forward(self, samples, *, counts, features):
        self.seconds[0] += 1
        self.told.append(("forward", samples, counts, features))

    def batch(self, samples):
        pass

    def forget_batches(self):
        pass

    def ready(self):
        self.seconds[0] += 1
        self.told.append("ready")
        return "waiting"

    def wait_begins(self):
        self.told.append("wait")

    def summed(self, waiting):
        self.told.append(("summed", waiting))

    def wait_ends(self):
        self.told.append("wait ends")


def passes_maker(monkeypatch):
    """Return a function that makes the passes of a loss, with their loader and clock."""
    seconds = [100.0]
    monkeypatch.setattr(time, "thread_time", lambda: seconds[0])

    def make(loss="mean", count=None, delay=0, **facts):
        loader = SimpleNamespace(
            **(FACTS | {"step_ends": True, "rank_batch": RankBatch.plain(np.array([1]), 0)} | facts)
        )
        clock = Watch(seconds, delay)
        passes = Passes(loader, clock, loss, count)
        return passes, loader, clock

    return make


def handed_out(passes, loader, sizes, batch=None, **facts):
    sizes_W = np.array(sizes)
    whole = RankBatch.plain(sizes_W, loader.rank)
    loader.rank_batch = RankBatch(sizes_W, whole.weight, whole.part, **facts)
    passes.hand_out(sizes_W, batch)
    return sizes_W


def passed(passes, recognition, *inputs):
    one = SimpleNamespace(seen=passes.look(inputs, {}), doubt=(), scaled=False, begin=math.inf)
    one.turn = passes.given(one, recognition)
    return one


def said(act):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in caught if one.category is BalanceWarning]
