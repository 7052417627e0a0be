"""Sizes follow what a batch costs, wherever in the loop that time lies: two ranks, whose time the test moves."""

from time import sleep

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.recording.torch.busy_time import CPUEvents
from paceline.torch import BalancedLoader, attach

SHARE, STEPS = 32, 100
EACH = (0.0005, 0.0015)


class Spent:
    """Time that passes only where the test spends it."""

    def __init__(self, rank, costs):
        self.now, self.rank, self.costs = 0.0, rank, costs

    def spend(self, place, samples=1):
        fixed, each = self.costs.get(place, ((0, 0), (0, 0)))
        self.now += fixed[self.rank] + each[self.rank] * samples


def train(rank, costs, pauses=(), ahead=0):
    """Train at these costs; return the sizes of every step."""
    time = Spent(rank, costs)
    CPUEvents.record = staticmethod(lambda: time.now)

    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return 2 * SHARE * STEPS

        def __getitem__(self, number):
            time.spend("item")
            return torch.ones(4)

    class InBackward(torch.autograd.Function):
        @staticmethod
        def forward(context, outputs):
            context.samples = len(outputs)
            return outputs.clone()

        @staticmethod
        def backward(context, gradients):
            time.spend("backward", context.samples)
            return gradients

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, inputs):
            time.spend("forward", len(inputs))
            return InBackward.apply(self.layer(inputs))

    model = DistributedDataParallel(Network())
    loader = BalancedLoader(Samples(), 2 * SHARE)
    balance = attach(model, loader, timeout=30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes_TW, out = [], []
    batches = iter(loader)
    for step in range(STEPS):
        while len(out) <= ahead and (batch := next(batches, None)) is not None:
            out.append((batch, loader.batch_sizes.tolist()))
        inputs, sizes_W = out.pop(0)
        sizes_TW.append(sizes_W)
        time.spend("body", len(inputs))
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.spend("optimizer")
        optimizer.step()
        time.spend("metrics", len(inputs))
        if pauses and step % 10 == 9:
            time.now += pauses[rank]
    balance.close()
    return sizes_TW


def changes(sizes_TW):
    return int((sizes_TW[1:] != sizes_TW[:-1]).any(axis=1).sum())


@pytest.mark.parametrize(
    ("place", "ahead"), [("item", 0), ("item", 2), ("body", 0), ("body", 1), ("backward", 0), ("metrics", 0)]
)
def test_sizes_follow_the_time_of_samples_anywhere(place, ahead):
    sizes_TW = np.array(
        run_ranks(2, train, {place: ((0, 0), EACH), "optimizer": ((0.002, 0.002), (0, 0))}, (), ahead)[0]
    )
    assert abs(sizes_TW[40:] - [48, 16]).max() <= 4
    assert changes(sizes_TW[40:]) <= 10


@pytest.mark.parametrize("place", ["body", "optimizer"])
def test_sizes_stay_equal_beside_fixed_time_of_all(place):
    sizes_TW = np.array(run_ranks(2, train, {place: ((0.02, 0.02), (0, 0)), "forward": ((0, 0), (0.0005, 0.0005))})[0])
    assert (sizes_TW == SHARE).all()


@pytest.mark.parametrize("pauses", [(0.03, 0.0), (60.0, 60.0)])
def test_sizes_do_not_follow_pauses(pauses):
    sizes_TW = np.array(run_ranks(2, train, {"body": ((0, 0), EACH)}, pauses)[0])
    assert abs(sizes_TW[40:] - [48, 16]).max() <= 2
    assert changes(sizes_TW[40:]) <= 5


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, number):
        sleep(0.002)
        return number


@pytest.mark.processes
@pytest.mark.parametrize("processes", [0, 1, 2])
def test_loader_reports_the_time_of_its_processes(processes):
    """What they need for a batch, divided by their number, whatever the rank waited for."""
    loader = BalancedLoader(Slow(), 12, rank=1, world_size=2, num_workers=processes)
    ahead = []
    loader.after_load = lambda waited, seconds: ahead.append(seconds)
    for _ in loader:
        loader.sizes = np.array([10, 2])
    assert len(ahead) == 2
    if processes:
        assert ahead[0] >= 6 * 0.002 / processes
        assert ahead[1] >= 2 * 0.002 / processes
    else:
        assert ahead == [0.0, 0.0]
