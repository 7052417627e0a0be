"""A job resumes from its checkpoint exactly, and with other ranks what was learned follows the workers' names."""

import io
from itertools import chain, islice

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import EWMA
from paceline.torch import BalancedLoader, BalanceWarning, Costs, StreamLoader, attach

SAMPLES, GLOBAL_BATCH = 600, 60
SPEED = {"a": 100.0, "b": 200.0, "c": 300.0, "d": 400.0}
FREE = Policy(warmup=0, change_cost=0, risk=0)


class Indices(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.ones(4), index


def run(rank, workers, state, steps):
    """Train this many steps; return each step's sizes and own samples, and the state as a checkpoint file has it."""
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loader = BalancedLoader(Indices(), GLOBAL_BATCH, seed=7)
    balance = attach(model, loader, predictor=EWMA(0.5), policy=FREE, workers=workers, timeout=30)
    if state is not None:
        balance.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
    history = []
    for step, (inputs, indices) in enumerate(loader):
        history.append((dict(zip(workers, loader.batch_sizes.tolist(), strict=True)), indices.tolist()))
        pace = 1 + 0.2 * np.sin(step + rank)
        balance.measured(len(inputs) / SPEED[workers[rank]] * pace)
        model(inputs).mean().backward()
        if step + 1 == steps:
            break
    file = io.BytesIO()
    torch.save(balance.state_dict(), file)
    return history, file.getvalue()


@pytest.fixture(scope="module")
def begun():
    """Four steps of three workers."""
    return run_ranks(3, run, ["a", "b", "c"], None, 4)


def samples_of(results):
    return list(chain.from_iterable(indices for history, _ in results for _, indices in history))


def resumed(begun, workers):
    return run_ranks(len(workers), run, workers, begun[0][1], SAMPLES)


def test_every_rank_has_the_same_state(begun):
    states = [torch.load(io.BytesIO(state), weights_only=True) for _, state in begun]
    for state in states[1:]:
        for part in ("balancer", "loader"):
            for name, value in states[0][part].items():
                assert repr(state[part][name]) == repr(value)  # NaN included


def test_resumed_job_continues_exactly(begun):
    straight = run_ranks(3, run, ["a", "b", "c"], None, SAMPLES)
    later = resumed(begun, ["a", "b", "c"])
    first = later[0][0][0]
    assert first[0] == straight[0][0][4][0], "the first sizes after the checkpoint are those that were planned"
    assert later[2][0][0][1] == straight[2][0][4][1]
    assert sorted(samples_of(begun) + samples_of(later)) == list(range(SAMPLES))


@pytest.mark.parametrize("workers", [["c", "a"], ["d", "c", "a", "b"]])
def test_other_ranks_follow_worker_names(begun, workers):
    later = resumed(begun, workers)
    sizes = later[0][0][0][0]
    known = [worker for worker in workers if worker != "d"]
    pace = [sizes[worker] / SPEED[worker] for worker in known]
    assert max(pace) < 1.5 * min(pace), f"sizes {sizes} do not follow the speeds"
    assert sorted(samples_of(begun) + samples_of(later)) == list(range(SAMPLES))


def read_back(state):
    """Return what torch.load makes of it, by its own defaults."""
    file = io.BytesIO()
    torch.save({"train_dataloader": state}, file)
    file.seek(0)
    return torch.load(file)["train_dataloader"]


LOADERS = {
    "plain": lambda **ranks: BalancedLoader(range(50), 8, **ranks),
    "ahead": lambda **ranks: BalancedLoader(range(50), 8, num_workers=1, **ranks),
    "sampled": lambda **ranks: BalancedLoader(range(50), 8, sampler=torch.utils.data.RandomSampler(range(50)), **ranks),
    "lengths": lambda **ranks: BalancedLoader(
        range(50), 8, costs=Costs(lengths=[1 + n % 5 for n in range(50)], padded=True), **ranks
    ),
    "stream": lambda **ranks: StreamLoader(range(50), 8, costs=Costs(lengths=lambda n: 1 + n % 5), window=7, **ranks),
}


@pytest.mark.processes
@pytest.mark.parametrize("kind", LOADERS)
def test_loader_state_read_by_torch_load(kind):
    loader, later = (LOADERS[kind](rank=0, world_size=1) for _ in range(2))
    batches = iter(loader)
    begun = [sample for batch in islice(batches, 2) for sample in batch.tolist()]
    later.load_state_dict(read_back(loader.state_dict()))
    rest = [batch.tolist() for batch in later]
    assert rest == [batch.tolist() for batch in batches]
    assert sorted([*begun, *chain.from_iterable(rest)]) == list(range(50))


def fetched_ahead(rank):
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loader = BalancedLoader(Indices(), GLOBAL_BATCH, seed=7)
    attach(model, loader, timeout=30)
    batches = iter(loader)
    (inputs, _), _ = next(batches), next(batches)
    model(inputs).mean().backward()
    with pytest.warns(BalanceWarning, match="Batches had been fetched but not computed"):
        loader.state_dict()


def test_loader_state_warns_of_fetched_batch():
    run_ranks(1, fetched_ahead)
