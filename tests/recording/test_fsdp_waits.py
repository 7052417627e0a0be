"""Waits inside the forward and backward passes of a sharded model are told apart from a rank's own time."""

import time

import pytest
import torch
from ranks import run_ranks

from paceline.recording.torch.waits import FSDPWaits

FORWARD, BACKWARD = 0.02, 0.03


class Sleeps(torch.autograd.Function):
    """Takes the second rank's time in the backward pass."""

    @staticmethod
    def forward(ctx, inputs, seconds):
        ctx.seconds = seconds
        return inputs.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None


class Slow(torch.nn.Module):
    """Takes the second rank's time in both passes."""

    def forward(self, inputs):
        slow = torch.distributed.get_rank()
        time.sleep(slow * FORWARD)
        return Sleeps.apply(inputs, slow * BACKWARD)


class Waited:
    """Adds up the time of waits that lie in no other."""

    depth, seconds = 0, 0.0

    def wait_begins(self):
        self.depth += 1
        if self.depth == 1:
            self.began = time.perf_counter()

    def wait_ends(self):
        assert self.depth > 0
        self.depth -= 1
        if not self.depth:
            self.seconds += time.perf_counter() - self.began


def own_seconds(rank, whole, low):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, output_dtype=torch.float32) if low else MixedPrecisionPolicy()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Slow(), torch.nn.Linear(4, 4))
    for layer in (model[0], model[2]):
        fully_shard(layer, mp_policy=policy)
    if whole:
        fully_shard(model, mp_policy=policy)
    waited, own = Waited(), []
    waits = FSDPWaits(model, waited)
    for _ in range(4):
        torch.distributed.barrier()
        began, waited.seconds = time.perf_counter(), 0.0
        model(torch.randn(2, 4)).sum().backward()
        own.append(time.perf_counter() - began - waited.seconds)
    waits.close()
    return sorted(own)[1], waited.depth


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("low", [False, True])
def test_waits_of_fsdp2_are_not_own_time(whole, low):
    (fast, fast_depth), (slow, slow_depth) = run_ranks(2, own_seconds, whole, low)
    assert fast_depth == slow_depth == 0
    assert slow > FORWARD + BACKWARD > 2 * fast
