"""Losses of the wrong kind are noticed, those of the right kind are not; nothing is left behind by a balance."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach
from paceline.torch.agreement import checksum_of
from paceline.torch.loss_kind import MAX_STEPS, LossKind


def sentences(power, noise, seed, ranks=2):
    """What is said of gradients that grow with this power of the samples, weights included."""
    rng, kind = np.random.default_rng(seed), LossKind()
    said = []
    for _ in range(MAX_STEPS):
        sizes = rng.integers(4, 40, ranks).astype(float)
        if kind.wants(sizes):
            said.append(kind.learn(sizes, power * np.log(sizes) + noise * rng.standard_normal(ranks) - 0.1))
    return [sentence for sentence in said if sentence]


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("noise", [0.02, 0.15])
@pytest.mark.parametrize(("power", "wrong"), [(1.0, False), (0.5, False), (2.0, True)])
@pytest.mark.slow
def test_summed_loss_warned_once_mean_never(power, wrong, noise, ranks):
    said = [len(sentences(power, noise, seed, ranks)) for seed in range(50)]
    assert said == [int(wrong)] * 50


def test_unknown_norms_are_forgotten():
    """A size or a norm that is not known, or beyond all bounds, leaves the line through the others."""
    said = []
    for spoilt in ([], [([8.0, np.nan], [1.0, 2.0])], [([8.0, 9.0], [1.0, np.inf]), ([8.0, 0.0], [1.0, 2.0])]):
        rng, kind = np.random.default_rng(0), LossKind()
        for sizes, norms in spoilt:
            assert kind.learn(np.array(sizes), np.array(norms)) == ""
        found = []
        for _ in range(MAX_STEPS):
            sizes = rng.integers(4, 40, 2).astype(float)
            found.append(kind.learn(sizes, 2 * np.log(sizes) + 0.02 * rng.standard_normal(2)))
        said.append(found)
    assert said[0] == said[1] == said[2]
    assert sum(map(bool, said[0])) == 1


def test_step_with_missing_norm_says_nothing():
    kind, sizes = LossKind(), np.array([8.0, 16.0])
    for samples, norms in [([0.0, 8.0], [1.0, 2.0]), ([8.0, 9.0], [-751.0, 1.0]), ([8.0, 9.0], [np.nan, 1.0])]:
        assert not any(kind.learn(np.array(samples), np.array(norms)) for _ in range(2 * MAX_STEPS))
        assert not kind.full
    assert not any(kind.learn(np.ones(2), np.array([1.0, 5.0])) for _ in range(MAX_STEPS)), "no line through one size"
    assert kind.full
    assert not kind.wants(sizes)
    fresh = LossKind()
    assert [fresh.wants(np.array([10, most])) for most in (11, 12)] == [False, True]


def test_equal_batches_and_nonsense_say_nothing():
    kind = LossKind()
    assert not kind.wants(np.array([10, 11]))
    assert not kind.wants(None)
    assert not any(kind.learn(np.array([10.0, np.nan]), np.array([1.0, 2.0])) for _ in range(100))


def test_datasets_compared_where_visible():
    whole = torch.utils.data.TensorDataset(torch.arange(1.0, 41.0).reshape(10, 4), torch.arange(10))
    shards = [torch.utils.data.Subset(whole, range(first, 10, 2)) for first in (0, 1)]
    assert checksum_of(shards[0]) == checksum_of(torch.utils.data.Subset(whole, list(range(0, 10, 2))))
    assert checksum_of(shards[0]) != checksum_of(shards[1])
    rounded = np.nextafter(whole.tensors[0].numpy(), np.inf)
    assert checksum_of(whole) == checksum_of(rounded) == checksum_of(torch.utils.data.ConcatDataset([whole, shards[0]]))
    assert checksum_of(whole) != checksum_of(whole.tensors[0] + 1)
    assert checksum_of([1, 2]) == checksum_of([3, 4])
    for kind in (torch.arange(6).bfloat16(), torch.eye(3).to_sparse(), np.array(["a", "b"]), np.array([{}, {}])):
        assert checksum_of(kind)[0] == "sample 0"


def held():
    """Open descriptors, threads and balances of this process."""
    gc.collect()
    return (
        len(list(Path("/proc/self/fd").iterdir())),
        threading.active_count(),
        len(list(Path("/proc/self/task").iterdir())),
    )


def attached_and_closed(rank, close):
    counts = []
    for turn in range(6):
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        loader = BalancedLoader(torch.randn(48, 4), 12)
        balance = attach(model, loader)
        for inputs in loader:
            model(inputs).mean().backward()
        if close:
            balance.close()
            balance.close()  # twice is once
            for inputs in loader:  # the job may go on without
                model(inputs).mean().backward()
        del model, loader, balance
        torch.distributed.barrier()
        if turn:
            counts.append(held())
    return counts


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux's /proc")
@pytest.mark.parametrize("close", [True, False], ids=["closed", "dropped"])
def test_closed_balance_leaves_no_thread(close):
    for counts in run_ranks(2, attached_and_closed, close):
        assert max(counts[1:]) <= counts[0]


def attached_anew(rank):
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loader = BalancedLoader(torch.randn(48, 4), 12)
    first = attach(model, loader)
    assert attach(DistributedDataParallel(torch.nn.Linear(4, 2)), loader) is first
    first.close()
    second = attach(model, loader)
    return second is not first and first.closed and not second.closed


def test_model_attached_again_after_close():
    assert run_ranks(2, attached_anew) == [True, True]
