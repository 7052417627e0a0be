"""Lengths of what ranks gather are compared while batches that differ in size are trained on, and else never."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from paceline.torch import equal_shapes
from paceline.torch.equal_shapes import FAR_AHEAD, EqualShapes


class Group:
    """A group of two ranks, of which the other gathers three numbers."""

    def __init__(self):
        self.looks = 0

    def size(self):
        return 2

    def allgather(self, lengths, own):
        self.looks += 1
        lengths[0][0][:], lengths[0][1][:] = own[0], 3
        return SimpleNamespace(wait=lambda: None)


@pytest.mark.slow
@pytest.mark.parametrize("looping", [True, False])
@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("since", [0, FAR_AHEAD, FAR_AHEAD + 1])
@pytest.mark.parametrize("shards", [True, False])
@pytest.mark.parametrize("others", [True, False])
def test_lengths_are_compared_while_batches_may_differ_and_of_no_shards(
    monkeypatch, looping, ended, waits, since, shards, others
):
    monkeypatch.setattr(equal_shapes, "_shards", lambda: shards)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2] if others else [0, 1])
    loader = SimpleNamespace(looping=looping, ended=ended, since_uneven=since, batch_sizes=np.array([4, 3]))
    compared, group = EqualShapes(loader, lambda: waits, [0, 1]), Group()
    wanted = (looping or (ended and waits)) and since <= FAR_AHEAD and not shards and not others
    compared(group, torch.zeros(3))
    assert group.looks == int(wanted)
    if wanted:
        with pytest.raises(RuntimeError, match=r"given \[2, 3\] numbers, by rank.*the newest is \[4, 3\]"):
            compared(group, torch.zeros(2))
    else:
        compared(group, torch.zeros(2))
        assert group.looks == 0
