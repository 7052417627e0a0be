"""Buffers that every rank computes alike with equal batches, and that part with unequal ones, are warned of."""

import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from trainers import Restless

from paceline.coordinator import Policy
from paceline.torch import BalancedLoader, attach


class Centered(torch.nn.Module):
    """A center of the outputs of all ranks, as in DINO."""

    def __init__(self, divisor):
        super().__init__()
        self.layer, self.divisor = torch.nn.Linear(4, 3), divisor
        self.register_buffer("center", torch.zeros(3))

    def forward(self, inputs):
        outputs = self.layer(inputs)
        total = outputs.detach().sum(dim=0)
        dist.all_reduce(total)
        self.center = 0.9 * self.center + 0.1 * total / self.divisor(inputs)
        return outputs


def told(rank, by):
    torch.manual_seed(0)
    data = torch.randn(240, 4)
    loader = BalancedLoader(data, 12)
    divisor = {
        "its own length": lambda inputs: len(inputs) * 2,
        "all lengths": lambda inputs: 12,
    }[by]
    network = torch.nn.Sequential(Centered(divisor), torch.nn.BatchNorm1d(3))
    model = DistributedDataParallel(network, broadcast_buffers=False)
    attach(model, loader, predictor=Restless(), policy=Policy(warmup=5, change_cost=0, risk=0, lower=2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for inputs in loader:
                model(inputs).square().mean().backward()
                model.zero_grad()
    return [str(one.message) for one in caught if "Buffers" in str(one.message)]


@pytest.mark.parametrize(("by", "number"), [("its own length", 1), ("all lengths", 0)])
def test_local_center_division_warned_once(by, number):
    for sentences in run_ranks(2, told, by):
        assert len(sentences) == number
        assert all("0.center" in sentence for sentence in sentences)
