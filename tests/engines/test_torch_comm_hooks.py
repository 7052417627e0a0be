"""Communication hooks of the script get weighted gradients: steps stay those of one process on the union of batches."""

import pytest
import torch
from ranks import run_ranks
from test_torch_exact import FREE, Restless
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach

SAMPLES, GLOBAL_BATCH = 128, 8


def hook_of(name):
    """A hook and its state; PowerSGD begins to compress in the third step."""
    if name == "powerSGD":
        return powerSGD_hook, PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return getattr(default_hooks, name), None


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.Tanh(), torch.nn.Linear(12, 12)).double()


def data():
    return torch.randn(SAMPLES, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def steps(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs in batches:
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()


def distances(rank, names):
    """How far each hook's parameters end from one process's, relative to how far they moved, and its uneven steps."""
    found = {}
    for name in names:
        net = network()
        model, loader = DistributedDataParallel(net), BalancedLoader(data(), GLOBAL_BATCH, shuffle=False)
        hook, state = hook_of(name)
        balance = attach(model, loader, predictor=Restless(), policy=FREE, hook=hook, hook_state=state)
        uneven = []
        balance.on_iteration.append(lambda one, uneven=uneven: uneven.append(len(set(one.sizes.tolist())) > 1))
        steps(model, loader)
        balance.close()
        alone = network()
        steps(alone, data().split(GLOBAL_BATCH))
        pairs = list(zip(net.parameters(), alone.parameters(), network().parameters(), strict=True))
        off, moved = (sum(float((p[0] - p[at]).square().sum()) for p in pairs) for at in (1, 2))
        found[name] = (off / moved) ** 0.5, sum(uneven)
    return found


@pytest.fixture(scope="module")
def ends():
    names = ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "powerSGD")
    first, second = run_ranks(2, distances, names)
    assert first == second
    return first


@pytest.mark.parametrize(
    ("name", "most"),
    [("allreduce_hook", 1e-12), ("fp16_compress_hook", 2e-3), ("bf16_compress_hook", 2e-2), ("powerSGD", 0.5)],
)
def test_a_hook_of_the_script_averages_weighted_gradients(ends, name, most):
    distance, uneven = ends[name]
    assert uneven >= 4
    assert distance < most


def refused(rank):
    loader = BalancedLoader(data(), GLOBAL_BATCH)
    errors = []
    for model, hook in ((DistributedDataParallel(network()), 16), (network(), default_hooks.allreduce_hook)):
        with pytest.raises(TypeError) as caught:
            attach(model, loader, hook=hook, loss="mean" if isinstance(hook, int) else "scaled")
        errors.append(str(caught.value))
    return errors


def test_what_is_no_hook_or_has_no_model_for_it_is_refused():
    (first, second), _ = run_ranks(2, refused)
    assert "hook must be a function of a state and a bucket" in first
    assert "hook= needs DistributedDataParallel, got Sequential" in second
