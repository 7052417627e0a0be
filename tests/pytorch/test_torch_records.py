"""A record says what happened in its own iteration: who took how many samples, and whether sizes changed after it."""

import itertools

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, attach


class Steps(LastValue):
    """A predictor whose speeds change in every third iteration, the same on every rank."""

    def predict(self, *, covariates=None, horizon=1):
        forecast = super().predict(covariates=covariates, horizon=horizon)
        speed = np.where(np.arange(len(self.workers)) == self.seen // 3 % 2, 40.0, 100.0)
        return type(forecast)(speed, forecast.spread)

    seen = 0

    def observe(self, report):
        super().observe(report)
        self.seen += 1


def recorded(rank, accumulate):
    """Train, and return each record's index, sizes, whether it tells of a change, and why; and the sizes that came."""
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loader = BalancedLoader(torch.zeros(480, 4), 24, accumulate=accumulate, drop_last=True)
    balance = attach(model, loader, predictor=Steps(), policy=Policy(warmup=2, risk=0))
    records, taken = [], []
    balance.on_iteration.append(records.append)
    for epoch in range(2):
        for number, inputs in enumerate(loader, 1):
            taken.append(loader.batch_sizes.tolist())
            if number % accumulate:
                with model.no_sync():
                    (model(inputs).mean() / accumulate).backward()
            else:
                (model(inputs).mean() / accumulate).backward()
            if epoch and number == 12:
                break
    balance.close()
    return [(one.index, one.sizes.tolist(), one.plan.acted, one.plan.why) for one in records], taken[::accumulate]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_every_iteration_has_one_record_and_as_many_tell_of_a_change_as_sizes_changed(accumulate):
    (records, taken), (others, _) = run_ranks(2, recorded, accumulate)
    assert records == others, "every rank holds the same record"
    assert [index for index, *_ in records] == list(range(len(taken)))
    assert [sizes for _, sizes, *_ in records] == [[accumulate * size for size in sizes] for sizes in taken]
    changes = [before != after for before, after in itertools.pairwise(taken)]
    assert [acted for *_, acted, _ in records][:-1] == changes
    assert sum(changes) >= 3
    assert all(why.startswith("Moved") == acted for *_, acted, why in records)
