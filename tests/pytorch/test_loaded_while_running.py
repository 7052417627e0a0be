"""A state that is loaded into a job in the middle of its training: what was under way is forgotten."""

import time

import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import EWMA
from paceline.torch import BalancedLoader, attach

SPEED = (100.0, 300.0)


def train(model, loader, balance, speeds, steps):
    """Take some steps at these speeds; return the sizes of each and this rank's samples."""
    history = []
    for inputs, rows in loader:
        history.append((loader.batch_sizes.tolist(), rows.tolist()))
        balance.measured(len(inputs) / speeds[loader.rank])
        model(inputs).mean().backward()
        if len(history) == steps:
            return history
    return history


def begun():
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    data = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.arange(400))
    loader = BalancedLoader(data, 40, seed=7)
    policy = Policy(warmup=0, change_cost=0, risk=0)
    return model, loader, attach(model, loader, predictor=EWMA(0.5), policy=policy, timeout=30)


def loads(rank):
    """Return what follows a state that is loaded into a new job, and into one whose speeds were turned round."""
    first = begun()
    train(*first, SPEED, 3)
    state = first[2].state_dict()
    followed = []
    for steps in (0, 1, 4):
        job = begun()
        if steps:
            train(*job, SPEED[::-1], steps)
        job[2].load_state_dict(state)
        followed.append(train(*job, SPEED, 5))
        job[2].close()
    return followed


def test_loaded_state_overrides_the_past():
    for new, *others in run_ranks(2, loads):
        for other in others:
            assert other == new


def tells(rank):
    """Return which iterations were told after training, after the state was asked for, and after it was loaded."""
    job, seen, found = begun(), [], []
    job[2].on_iteration.append(lambda iteration: seen.append(iteration.index))
    for act in (dict, job[2].state_dict):
        train(*job, SPEED, 3)
        found.append(list(seen))
        act()
        found.append(list(seen))
    state = job[2].state_dict()
    train(*job, SPEED, 2)
    job[2].load_state_dict(state)
    found.append(list(seen))
    return found


def test_ended_iteration_told_before_state():
    for trained, as_before, again, asked, loaded in run_ranks(2, tells):
        assert as_before == trained
        assert len(trained) == 2, "the third is told with the next batch"
        assert (len(again), len(asked), len(loaded)) == (5, 6, 8)
        assert loaded == sorted(set(loaded))


def spends(rank):
    """Return the time that balancing took of the last iteration, and the time of all."""
    job, began = begun(), time.perf_counter()
    train(*job, SPEED, 6)
    return job[2].overhead_seconds, time.perf_counter() - began


def test_balancing_time_is_part_of_the_loop():
    for overhead, whole in run_ranks(2, spends):
        assert 0 < overhead < whole
