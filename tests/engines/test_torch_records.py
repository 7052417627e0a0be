"""A record says what happened in its own iteration: who took how many samples, and whether sizes changed after it."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import Policy
from paceline.predictors import LastValue
from paceline.torch import BalancedLoader, attach
from paceline.torch.records import record
from paceline.torch.reports import COLUMNS, RankReports


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
    assert 3 <= sum(changes) < len(changes) / 2
    assert all(why.startswith("Moved") == acted for *_, acted, why in records)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(1, 4), st.floats(1e-3, 9.0), st.integers(0, 3)), min_size=1))
def test_a_record_tells_of_one_step_however_many_were_measured_together(steps_of):
    """The last number of each is its steps, 0 where the device has not finished: sizes are then those handed out."""
    row = dict.fromkeys(COLUMNS, 1.0)
    found = [
        row
        | {"samples": samples * steps, "micro_batches": parts * steps, "steps": steps, "seconds": seconds * steps}
        | ({} if steps else dict.fromkeys(("samples", "micro_batches", "steps", "seconds"), np.nan))
        for samples, parts, seconds, steps in steps_of
    ]
    handed = np.arange(len(found)) + 5
    curves = SimpleNamespace(busy_seconds=lambda part_W: 0.5 + 2.0 * part_W)
    used, own = SimpleNamespace(forecast=SimpleNamespace(curves=curves)), ("index", "worker", "wall_seconds", "plan")
    rows = RankReports(np.array([list(one.values()) for one in found]))
    told = record(rows, used, handed, 3, None, overhead_seconds=0.0, **dict.fromkeys(own))
    sizes = [one[0] if one[3] else 5 + k for k, one in enumerate(steps_of)]
    parts = [one[1] if one[3] else 3 for one in steps_of]
    assert told.sizes.tolist() == sizes
    np.testing.assert_allclose(told.seconds, [one[2] if one[3] else np.nan for one in steps_of])
    np.testing.assert_allclose(
        told.forecast_seconds, [(0.5 + 2.0 * n / p) * p for n, p in zip(sizes, parts, strict=True)]
    )
