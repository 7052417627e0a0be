"""Looking at gathered rows disturbs no other gathering: outside a loop, by other calls, with a forgotten balance."""

import gc

import numpy as np
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from paceline.coordinator import Policy
from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, attach


def refused(rank):
    """Gather rows of an uneven batch after an even one was fetched; return the error."""
    model, loader = DistributedDataParallel(torch.nn.Linear(4, 2)), BalancedLoader(samples(), 8)
    balance, errors = attach(model, loader), []
    loader.shares = np.array([5, 3])
    batches = iter(loader)
    (rows,) = next(batches)
    loader.shares = np.array([4, 4])
    next(batches)
    assert loader.batch_sizes.tolist() == [4, 4]
    try:
        dist.all_gather([torch.zeros_like(rows) for _ in range(2)], model(rows).detach())
    except RuntimeError as error:
        errors.append(str(error))
    balance.close()
    return errors


def test_uneven_gather_refused():
    for errors in run_ranks(2, refused):
        assert "all_gather and gather need the same shape" in errors[0]


def samples():
    return TensorDataset(torch.randn(24, 4))


def test_loop_is_under_way_until_left():
    loader = BalancedLoader(samples(), 8, rank=0, world_size=2)
    seen = [loader.is_iterating]
    for _ in loader:
        seen.append(loader.is_iterating)
        break
    seen.append(loader.is_iterating)
    seen += [loader.is_iterating for _ in loader]
    assert [*seen, loader.is_iterating] == [False, True, False, True, True, True, False]


def trained():
    """Train on uneven batches, and leave the loop early; nobody closes the balance."""
    model, loader = DistributedDataParallel(torch.nn.Linear(4, 2)), BalancedLoader(samples(), 8)
    balance = attach(model, loader, predictor=LastValue(), policy=Policy(warmup=1000))
    loader.sizes = np.array([5, 3])
    for (rows,) in loader:
        model(rows).mean().backward()
        break
    assert len(set(loader.batch_sizes.tolist())) > 1, "nothing would be looked at"
    return balance


def gathered(rank):
    """Gather in three ways after training, of which one rank has forgotten the balance and another holds it."""
    held = trained()
    if rank == 0:
        del held
    gc.collect()
    own = torch.full((3,), float(rank))
    found = [[torch.zeros(3), torch.zeros(3)] for _ in range(2)]
    dist.all_gather(found[0], own)
    dist.group.WORLD.allgather(output_tensors=[found[1]], input_tensors=[own]).wait()
    whole = torch.zeros(6)
    dist.all_gather_into_tensor(whole, own)
    return [*(torch.cat(parts).tolist() for parts in found), whole.tolist()]


def test_gather_after_loop_is_independent():
    for found in run_ranks(2, gathered):
        assert found == [[0.0] * 3 + [1.0] * 3] * 3
