"""Losses of the wrong kind are noticed, those of the right kind are not; nothing is left behind by a balance."""

import gc
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.engines.torch.checked import refuse_mixing_layers
from paceline.engines.torch.reporting.likeness import likeness
from paceline.engines.torch.weighting.loss_kind import MOST, LossKind
from paceline.torch import BalancedLoader, attach


def sentences(loss, power, noise, seed, ranks=2):
    """What is said of gradients that grow with this power of the samples."""
    rng, kind = np.random.default_rng(seed), LossKind(loss)
    said = []
    for _ in range(MOST):
        sizes = rng.integers(4, 40, ranks).astype(float)
        if kind.wants(sizes):
            said.append(kind.learn(sizes, power * np.log(sizes) + noise * rng.standard_normal(ranks) - 0.1))
    return [sentence for sentence in said if sentence]


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("noise", [0.02, 0.15])
@pytest.mark.parametrize(
    ("loss", "power", "wrong"),
    [
        ("mean", 0.0, False),
        ("mean", -0.5, False),
        ("mean", 1.0, True),
        ("sum", 1.0, False),
        ("sum", 0.0, True),
        ("scaled", 1.0, False),
        ("scaled", 0.5, False),
        ("scaled", 2.0, True),
    ],
)
@pytest.mark.slow
def test_a_loss_of_the_wrong_kind_is_said_once_and_of_the_right_kind_never(loss, power, wrong, noise, ranks):
    said = [len(sentences(loss, power, noise, seed, ranks)) for seed in range(50)]
    assert said == [int(wrong)] * 50


def test_nothing_is_said_without_unequal_batches_or_of_nonsense():
    kind = LossKind("mean")
    assert not kind.wants(np.array([10, 11]))
    assert not kind.wants(None)
    assert not any(kind.learn(np.array([10.0, np.nan]), np.array([1.0, 2.0])) for _ in range(100))


def test_datasets_are_alike_where_their_samples_are_and_only_where_they_can_be_seen():
    whole = torch.utils.data.TensorDataset(torch.arange(1.0, 41.0).reshape(10, 4), torch.arange(10))
    shards = [torch.utils.data.Subset(whole, range(first, 10, 2)) for first in (0, 1)]
    assert likeness(shards[0]) == likeness(torch.utils.data.Subset(whole, list(range(0, 10, 2))))
    assert likeness(shards[0]) != likeness(shards[1])
    rounded = np.nextafter(whole.tensors[0].numpy(), np.inf)
    assert likeness(whole) == likeness(rounded) == likeness(torch.utils.data.ConcatDataset([whole, shards[0]]))
    assert likeness(whole) != likeness(whole.tensors[0] + 1)
    assert likeness([1, 2]) == likeness([3, 4])
    for kind in (torch.arange(6).bfloat16(), torch.eye(3).to_sparse(), np.array(["a", "b"]), np.array([{}, {}])):
        assert likeness(kind)[0] == "sample 0"


def test_layers_that_mix_the_samples_of_all_ranks_need_a_scaled_loss():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SyncBatchNorm(4))
    with pytest.raises(ValueError, match=r'synchronised batch normalisation \(1\).*loss="scaled"'):
        refuse_mixing_layers(model)
    refuse_mixing_layers(model[:1])


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
def test_a_balance_that_is_closed_or_dropped_leaves_no_descriptor_and_no_thread_behind(close):
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


def test_a_model_can_be_attached_anew_after_its_balance_was_closed():
    assert run_ranks(2, attached_anew) == [True, True]
