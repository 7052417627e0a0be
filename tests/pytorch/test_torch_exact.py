"""A step with uneven batches equals that of one process on the union of all batches."""

import functools
from contextlib import nullcontext
from itertools import chain

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import Forecast
from paceline.torch import BalancedLoader, attach

SAMPLES, GLOBAL_BATCH, EPOCHS = 203, 24, 2
FREE = Policy(warmup=0, change_cost=0, risk=0)


class Restless:
    """A predictor to which the workers seem to have other speeds in every iteration, the same on every rank."""

    covariate_names = ()

    def reset(self, workers):
        self.workers = tuple(workers)
        self.seen = 0

    def observe(self, report):
        self.seen += 1

    def predict(self, *, covariates=None, horizon=1):
        count = len(self.workers)
        return Forecast(np.random.default_rng(self.seen).uniform(1, 9, count), np.full(count, 0.1))

    def state_dict(self):
        return {}


class Samples(torch.utils.data.Dataset):
    def __init__(self, dtype):
        chance = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(SAMPLES, 6, generator=chance, dtype=torch.float64).to(dtype)
        self.targets = torch.randn(SAMPLES, 3, generator=chance, dtype=torch.float64).to(dtype)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index], index


def network(dtype):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).to(dtype)


def wrapped(net, way):
    if way.startswith("ddp"):
        return DistributedDataParallel(net)
    if way.startswith("fsdp"):
        from torch.distributed.fsdp import fully_shard

        for layer in (net[0], net[2], net[4]):
            fully_shard(layer)
        return fully_shard(net)
    return net


def summing(model, way, last):
    """Sum the gradients of all ranks in the last micro-batch of a step only."""
    if way == "fsdp":
        model.set_requires_gradient_sync(last)
    return model.no_sync() if way.startswith("ddp") and not last else nullcontext()


def average_by_hand(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def loss_of(way, outputs, targets):
    """Return a mean, or a sum as in PyTorch's own example of FSDP2 (a hundredth of it, so that steps stay small)."""
    if way == "fsdp, sum":
        return (outputs - targets).square().sum() / 100
    return torch.nn.functional.mse_loss(outputs, targets)


def train(rank, way, dtype, accumulate):
    """Train; return the parameters and the samples of every batch of this rank."""
    model = wrapped(network(dtype), way)
    loader = BalancedLoader(Samples(dtype), GLOBAL_BATCH, accumulate=accumulate, seed=3)
    balance = attach(model, loader, predictor=Restless(), policy=FREE, timeout=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    drawn = []
    for _ in range(EPOCHS):
        for number, (inputs, targets, indices) in enumerate(loader, 1):
            drawn.append(indices.tolist())
            last = number % accumulate == 0 or number == len(loader)
            with summing(model, way, last):
                loss = loss_of(way, model(inputs), targets) / accumulate
                (balance.scale(loss) if way == "fsdp, sum" else loss).backward()
            if last:
                if way == "bare":
                    average_by_hand(model)
                optimizer.step()
                optimizer.zero_grad()
    parameters = [getattr(p, "full_tensor", lambda p=p: p)().detach().numpy() for p in model.parameters()]
    return parameters, drawn, balance.plan.iteration


def train_alone(batches, way, dtype, accumulate, world_size):
    """Train one process on these batches and return its parameters; of sums, ranks average their gradients."""
    net, samples = network(dtype), Samples(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    per_epoch = len(batches) // EPOCHS
    for number, batch in enumerate(batches):
        loss = loss_of(way, net(samples.inputs[batch]), samples.targets[batch]) / accumulate
        (loss / world_size if way == "fsdp, sum" else loss).backward()
        place = number % per_epoch + 1
        if place % accumulate == 0 or place == per_epoch:
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach().numpy() for parameter in net.parameters()]


WAYS = [("ddp", 1), ("ddp", 2), ("ddp", 3), ("bare", 1), ("fsdp", 1), ("fsdp", 3), ("fsdp, sum", 1)]
CASES = [(way, dtype, accumulate) for way, accumulate in WAYS for dtype in (torch.float64, torch.float32)]


ON_RANKS = [(2, case) for case in CASES] + [(4, case) for case in CASES if case[1] is torch.float64]
"""More ranks differ by the sums over them, which double precision shows to the last digits."""


def train_all(rank, cases):
    return {case: train(rank, *case) for case in cases}


@pytest.fixture(scope="module")
def results_of():
    """Results of every rank; of a number of ranks once for all cases."""

    @functools.cache
    def trained_on(ranks):
        return run_ranks(ranks, train_all, [case for of, case in ON_RANKS if of == ranks])

    return lambda ranks, case: [trained[case] for trained in trained_on(ranks)]


@pytest.mark.parametrize(
    ("ranks", "case"), ON_RANKS, ids=[f"{ranks} ranks-{case[0]} x{case[2]} {case[1]}" for ranks, case in ON_RANKS]
)
def test_parameters_equal_one_process(results_of, ranks, case):
    (_, dtype, _), results = case, results_of(ranks, case)
    drawn = [drawn for _, drawn, _ in results]
    batches = [list(chain(*parts)) for parts in zip(*drawn, strict=True)]
    alone = train_alone(batches, *case, world_size=ranks)
    tolerance = 1e-12 if dtype is torch.float64 else 2e-5
    for parameters, _, _ in results:
        for parameter, expected in zip(parameters, alone, strict=True):
            np.testing.assert_allclose(parameter, expected, rtol=tolerance, atol=tolerance)
    per_epoch = len(batches) // EPOCHS
    for epoch in range(EPOCHS):
        assert sorted(chain(*batches[epoch * per_epoch :][:per_epoch])) == list(range(SAMPLES))
    sizes = {tuple(len(part) for part in parts) for parts in zip(*drawn, strict=True)}
    assert len(sizes) > len(batches) / case[2] / 3, "sizes hardly changed, so nothing was tested"
