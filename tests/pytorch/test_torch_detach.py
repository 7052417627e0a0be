"""A balance that is closed or dropped leaves nothing behind."""

import gc
import threading
from pathlib import Path

import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.torch import BalancedLoader, attach


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
