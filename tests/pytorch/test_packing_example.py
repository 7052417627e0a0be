"""The example with a loop of its own: packed for unequal ranks, it trains as one process does."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from ranks import run_ranks, run_script

EXAMPLE = Path(__file__).parents[2] / "examples" / "packed_rollouts.py"


def trained(rank):
    """Train on two ranks; on the first also in one process over the global batch. Return how far they are apart."""
    example = runpy.run_path(str(EXAMPLE))
    packed = example["train"](steps=4)
    if rank:
        return 0.0
    torch.manual_seed(0)
    model = example["Model"]().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        rollouts = example["generate"](step)
        (example["loss_sum"](model, rollouts) / sum(len(one) - 1 for one in rollouts)).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(packed.parameters(), model.parameters(), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


@pytest.mark.checkout
def test_packed_loop_trains_as_one_process():
    assert max(run_ranks(2, trained)) < 1e-12


@pytest.mark.checkout
def test_packed_loop_gives_the_slow_rank_less():
    printed = run_script(2, EXAMPLE)[0]
    shares = [int(share) for share in re.findall(r"step \d+: work (\d+)%", printed)]
    assert shares[0] == 50
    assert sum(shares[3:]) / len(shares[3:]) > 55
