"""A loop that has shown that it trains on the loader's batches alone is trusted, and one that does not never is."""

import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, attach


def mixing(rank, foreign_at):
    """Train; return after each step whether other data may be mixed in, and whether it was seen in this step."""
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loader = BalancedLoader(torch.utils.data.TensorDataset(torch.randn(96, 4)), 8)
    policy = Policy(warmup=10**9)  # a batch that is one shorter than the one before would be as long with one more
    balance = attach(model, loader, predictor=LastValue(), policy=policy)
    seen = []
    for step, (inputs,) in enumerate(loader):
        if rank == 1 and step == foreign_at:
            inputs = torch.cat([inputs, inputs[:1] + 1.0])
        model.zero_grad()
        model(inputs).square().mean().backward()
        seen.append((balance._passes.mixes, balance._passes.foreign))
    balance.close()
    return seen


@pytest.mark.filterwarnings("ignore::paceline.torch.weighting.listener.BalanceWarning")
@pytest.mark.parametrize("foreign_at", [None, 1, 6])
def test_shares_are_summed_for_the_first_steps_and_for_ever_after_other_data_was_seen(foreign_at):
    first, second = run_ranks(2, mixing, foreign_at)
    ends = [step for step, (mixes, _) in enumerate(first) if mixes and step > 4]
    assert [mixes for mixes, _ in first] == [mixes for mixes, _ in second], "ranks agree"
    assert first[0][0]
    if foreign_at is None:
        assert not ends
        assert not any(seen for _, seen in [*first, *second])
    else:
        assert ends == list(range(max(5, ends[0]), len(first)))
        assert first[-1][0]
        assert not first[-1][1], "it is noted for one step"
        assert not second[-1][1], "it is noted for one step"
