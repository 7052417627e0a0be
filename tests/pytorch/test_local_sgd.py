"""Local SGD: ranks take different numbers of steps, and their averaged models are what the definition says."""

import copy
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks  # noqa: E402

from paceline.coordinator import Policy  # noqa: E402
from paceline.predictors import LastValue  # noqa: E402
from paceline.torch import BalancedLoader, LocalSGD  # noqa: E402

pytestmark = pytest.mark.processes

ROUND, STEP = 48, 4
DATA = torch.arange(480, dtype=torch.float64).reshape(-1, 1).remainder(7) / 7


def step(model, optimizer, inputs):
    model(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def network(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    model.register_parameter("single", torch.nn.Parameter(torch.ones(3)))  # of another type than all others
    return model


def parameters(model):
    return torch.cat([one.detach().reshape(-1) for one in model.parameters() if one.dtype == torch.float64])


def trained(rank, outer, state_after):
    """Rank 1 takes three times as long for a sample. Return models after each round, samples, and sizes."""
    model = network(seed=rank)  # all begin with the first rank's
    loader = BalancedLoader(DATA, ROUND, micro_batch=STEP, seed=0)
    local = LocalSGD(model, loader, predictor=LastValue(), policy=Policy(warmup=1, batch_multiple=STEP), outer=outer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, merged, own, samples, sizes, state = [], [], [], [], [], None
    before.append(parameters(model))
    for inputs in loader:
        samples.append(inputs)
        time.sleep(0.001 * len(inputs) * (1 + 2 * rank))
        step(model, optimizer, inputs)
        if loader.step_ends:
            own.append(parameters(model))
            sizes.append(loader.batch_sizes.tolist())
            local.merge()
            merged.append(parameters(model))
            if local.rounds == state_after:
                state = copy.deepcopy((model.state_dict(), local.state_dict()))
    return torch.stack(before + merged), torch.stack(own), torch.cat(samples), sizes, state


def plain(rank):
    return as_arrays(trained(rank, None, 0)[:4])


def diloco(rank):
    return as_arrays(
        trained(rank, lambda anchors: torch.optim.SGD(anchors, lr=0.7, momentum=0.9, nesterov=True), 0)[:4]
    )


def as_arrays(values):
    """What can leave a process that ends."""
    return [value.numpy() if isinstance(value, torch.Tensor) else value for value in values]


def in_ranks(work):
    """The values of two ranks, as tensors again."""
    return [
        [torch.from_numpy(value) if isinstance(value, np.ndarray) else value for value in values]
        for values in run_ranks(2, work)
    ]


def resumed(rank):
    """What is left of an epoch after a resume, beside the job that went on."""
    merged, _, samples, _, (weights, state) = trained(rank, None, 4)
    model = network()
    loader = BalancedLoader(DATA, ROUND, micro_batch=STEP, seed=0)
    local = LocalSGD(model, loader, predictor=LastValue(), policy=Policy(warmup=1, batch_multiple=STEP))
    model.load_state_dict(weights)
    local.load_state_dict(state)
    rest = torch.cat(list(loader))
    return as_arrays([local.rounds, samples, rest, merged[4], parameters(model)])


def test_merged_models_are_means_weighted_by_samples():
    (merged, own, samples, sizes), (also, other, others, _) = in_ranks(plain)
    assert torch.equal(merged, also)
    for number, (first, second) in enumerate(sizes):
        mean = (first * own[number] + second * other[number]) / (first + second)
        torch.testing.assert_close(merged[number + 1], mean, rtol=1e-12, atol=1e-12)
    together = torch.cat([samples, others]).reshape(-1).sort().values
    assert torch.equal(together, DATA.reshape(-1).sort().values)


def test_faster_rank_takes_more_steps():
    (_, _, _, sizes), _ = in_ranks(plain)
    assert sizes[0] == [24, 24]
    assert sizes[-1][0] >= 32
    assert all(one % STEP == 0 for pair in sizes for one in pair)


def test_outer_optimizer_steps_by_the_mean_change():
    (merged, own, _, sizes), (_, other, _, _) = in_ranks(diloco)
    anchor = merged[0].clone().requires_grad_()
    optimizer = torch.optim.SGD([anchor], lr=0.7, momentum=0.9, nesterov=True)
    for number, (first, second) in enumerate(sizes):
        mean = (first * own[number] + second * other[number]) / (first + second)
        anchor.grad = anchor.detach() - mean
        optimizer.step()
        torch.testing.assert_close(merged[number + 1], anchor.detach(), rtol=1e-12, atol=1e-12)


def test_resume_goes_on_with_the_rest_of_the_epoch():
    (rounds, samples, rest, model, resumed_model), (_, others, other_rest, _, _) = in_ranks(resumed)
    assert rounds == 4
    assert torch.equal(model, resumed_model)
    assert len(rest) + len(other_rest) == len(DATA) - 4 * ROUND
    seen = torch.cat([samples, others]).reshape(-1)
    assert torch.isin(torch.cat([rest, other_rest]).reshape(-1), seen).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "pass micro_batch= to the loader"),
        ({"micro_batch": 5}, "must be a multiple of micro_batch=5 .*: the nearest is 50"),
    ],
)
def test_loaders_without_whole_steps_are_refused(options, message, alone):
    with pytest.raises(ValueError, match=message):
        LocalSGD(network(), BalancedLoader(DATA, ROUND, **options))


@pytest.mark.parametrize("wrong", ["model", "loader"])
def test_what_cannot_take_local_steps_is_refused(wrong, alone):
    model = torch.nn.parallel.DistributedDataParallel(network()) if wrong == "model" else network()
    loader = BalancedLoader(DATA, ROUND, micro_batch=STEP) if wrong == "model" else torch.utils.data.DataLoader(DATA)
    with pytest.raises(TypeError, match="pass the model itself" if wrong == "model" else r"write BalancedLoader\("):
        LocalSGD(model, loader)


def test_merge_in_the_middle_of_a_round_is_refused(alone):
    loader = BalancedLoader(DATA, ROUND, micro_batch=STEP)
    local = LocalSGD(network(), loader)
    next(iter(loader))
    with pytest.raises(RuntimeError, match="steps left in the round"):
        local.merge()
