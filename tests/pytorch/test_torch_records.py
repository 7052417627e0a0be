"""A record says what happened in its own iteration: who took how many samples, and whether sizes changed after it."""

import itertools

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from trainers import restless

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
def test_one_record_per_iteration(accumulate):
    (records, taken), (others, _) = run_ranks(2, recorded, accumulate)
    assert records == others, "every rank holds the same record"
    assert [index for index, *_ in records] == list(range(len(taken)))
    assert [sizes for _, sizes, *_ in records] == [[accumulate * size for size in sizes] for sizes in taken]
    changes = [before != after for before, after in itertools.pairwise(taken)]
    assert [acted for *_, acted, _ in records][:-1] == changes
    assert sum(changes) >= 3
    assert all(why.startswith("Moved") == acted for *_, acted, why in records)


def concatenated(rank, counted, ahead):
    """Train on concatenated rows, whose losses are scaled; return the sizes of all steps, and the records."""
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    data = [torch.ones(3 + number % 5, 4) for number in range(96)]
    loader = BalancedLoader(data, 12, collate_fn=lambda samples: torch.cat(samples)[None])
    balance, sizes, records = attach(model, loader, **restless()), [], []
    balance.on_iteration.append(records.append)
    fetched = []
    for rows in loader:
        sizes.append(loader.batch_sizes.tolist())
        fetched.append(rows)
        while len(fetched) > (ahead if len(sizes) < 8 else 0):
            rows = fetched.pop(0)
            loss = model(rows).mean()
            balance.measured(0.001 * rows.shape[1])  # so that no pause of the machine leaves a lap out
            (balance.scale(loss, rows.shape[1]) if counted else balance.scale(loss)).backward()
    balance.close()
    return sizes, [one.sizes.tolist() for one in records], [bool(np.isfinite(one.seconds).all()) for one in records]


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("counted", [True, False])
def test_concatenated_rows_recorded_apart(counted, ahead):
    for sizes, recorded, measured in run_ranks(2, concatenated, counted, ahead):
        assert len({tuple(pair) for pair in sizes}) > 1, "sizes changed"
        # a lap that was not over at its report is part of the next one, whose sizes are means
        own = [step for step in range(1, len(recorded)) if measured[step - 1]]
        assert own
        assert [recorded[step] for step in own] == [sizes[step] for step in own]
        assert all(measured[-2:])  # before, the first change of size leaves laps out
