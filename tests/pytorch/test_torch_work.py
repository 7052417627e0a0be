"""A live balance divides by cost: it learns what lengths cost, and judges shares by what they were planned to be."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced.work import RAREST, WorkStatus
from paceline.predictors import EWMA, LastValue
from paceline.torch import BalancedLoader, Costs, attach
from paceline.torch.planning import Planning, relative_change
from paceline.torch.reports import COLUMNS, RankReports


def job(**options):
    lengths = np.ceil(9 * np.random.default_rng(0).lognormal(0, 0.8, 400))
    data = torch.utils.data.TensorDataset(torch.randn(400, 4), torch.tensor(lengths))
    loader = BalancedLoader(data, 20, costs=Costs(lengths=lengths), **options)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    return model, loader, attach(model, loader)


def trained(model, loader, balance, true=(0.5, 0.3, 0.2), epochs=4):
    """Train, and report the seconds that lengths of such costs would take."""
    columns = [loader.dataset.tensors[1].numpy() ** power for power in (1, 2, 0)]
    scale = [column.mean() for column in columns]
    for _ in range(epochs):
        for inputs, lengths in loader:
            numbers = [float((lengths.numpy() ** power).sum()) for power in (1, 2, 0)]
            work = sum(t * number / s for t, number, s in zip(true, numbers, scale, strict=True))
            balance.measured(work / 100)
            model(inputs).mean().backward()


@pytest.mark.slow
def test_balance_learns_costs_of_lengths(alone):
    model, loader, balance = job()
    seen = []
    balance.on_iteration.append(lambda iteration: seen.append(iteration.work))
    trained(model, loader, balance)
    assert balance.work.status is WorkStatus.LEARNED
    length, square, _ = balance.work.coefficients  # all batches have 20 samples: their cost may as well be fixed
    assert length / square == pytest.approx(5 / 3, rel=0.05)
    assert loader.coefficients.tolist() == balance.work.coefficients.tolist()
    assert np.mean([work[0] for work in seen]) == pytest.approx(20, rel=0.1)  # in average samples
    balance.close()


@pytest.mark.slow
def test_what_was_learned_goes_on_after_a_restart(alone):
    model, loader, balance = job()
    trained(model, loader, balance)
    saved = balance.state_dict()
    balance.close()
    _, later, resumed = job()
    resumed.load_state_dict(saved)
    assert resumed.work.coefficients.tolist() == balance.work.coefficients.tolist()
    assert later.coefficients.tolist() == loader.coefficients.tolist()
    resumed.close()


@pytest.mark.slow
def test_single_rank_has_no_loss_warning(alone):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, loader, balance = job()
        trained(model, loader, balance, epochs=2)
    balance.close()


@pytest.mark.parametrize("works", [([1.0, 2.0], [2.0, 4.0]), ([0.0, 2.0], [0.0, 5.0]), ([0.0, 1.0], [1.0, 0.0])])
def test_proportional_costs_are_unchanged(works):
    assert relative_change(*map(np.array, works)) == 0


def test_reports_at_their_shares_keep_the_speeds():
    row = dict.fromkeys(COLUMNS, 0.0) | {"micro_batches": 2.0, "steps": 2.0}
    report = np.array([[*(row | {"samples": 9.0, "seconds": s}).values(), 1.0] for s in (2.0, 4.0)])
    work = np.array([40.0, 30.0])
    rows = RankReports(report, features=1).at_shares(work, np.array([18.0, 14.0]), fixed=0.0)
    assert (rows["samples"] / rows["seconds"]).tolist() == pytest.approx([20.0, 7.5])
    assert rows["samples"].tolist() == [36.0, 28.0]
    with_fixed = RankReports(report, features=1).at_shares(work, np.array([18.0, 14.0]), fixed=0.5)
    assert with_fixed["seconds"].tolist() == pytest.approx([1 + 1 * 36 / 40, 1 + 3 * 28 / 30])


@pytest.mark.slow
def test_recorder_takes_known_work_or_input_size(alone, tmp_path):
    from paceline.recording import Recorder, merge, watch

    for name, balanced in (("known", True), ("inputs", False)):
        model, loader, balance = job()
        if not balanced:
            balance.close()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        told = []
        with Recorder(tmp_path / name, "0") as recorder, watch(model, optimizer, recorder) as watching:
            watching.stopwatch.times_exchanges = True  # a balanced model has a hook of its own; collect wraps that
            for inputs, _ in loader:
                told.append(float(np.sum(loader.rank_batch.features * np.array(loader.coefficients))))
                model(inputs).mean().backward()
                optimizer.step()
        balance.close()
        expected = told if balanced else [20 * 4] * len(told)
        assert merge([tmp_path / name]).work[:, 0] == pytest.approx(expected)


class Stub:
    """What planning asks of a loader of two ranks."""

    def __init__(self):
        self.coefficients, self.shares = np.eye(3)[0], np.array([32, 32])


def planned(steps, *, true=(0.4, 0.5, 0.1), tell=lambda planning: None):
    """Let a rank with few long samples and one with many short ones report, at equal speeds."""
    chance, loader = np.random.default_rng(0), Stub()
    balancer = LoadBalancer(EWMA(0.3), workers=["0", "1"], global_batch=64, policy=Policy(warmup=2))
    planning = Planning(balancer, loader, None, ["0", "1"], 0)
    for _ in range(steps):
        part_W = np.array(loader.shares / 32.0)
        long, short = chance.uniform(0.9, 1.1, (2, 3)) * [[30, 55, 8], [30, 9, 50]]
        features_WF = np.stack([long, short]) * part_W[:, None]
        known = {"samples": 1, "micro_batches": 1, "steps": 1}
        seconds_W = features_WF @ np.array(true) / 800
        rows = [
            [*(known.get(name, seconds if name == "seconds" else 0) for name in COLUMNS), *features_F]
            for seconds, features_F in zip(seconds_W, features_WF, strict=True)
        ]
        planning.learn(RankReports(np.array(rows), planning.features))
        planning.hand_over()
        tell(planning)
    return planning


def test_speeds_rescaled_to_new_costs():
    before, after = [], []

    def tell(planning):
        changed = planning.work.status is not WorkStatus.EARLY
        (after if changed else before).append(planning.plan)

    planned(9, tell=tell)
    speeds = [plan.forecast.speed for plan in (before[-1], after[0])]
    assert speeds[0][1] > 1.3 * speeds[0][0], "by length alone the rank with the long samples seems slow"
    assert speeds[1][1] == pytest.approx(speeds[1][0], rel=0.15)


@pytest.mark.slow
def test_settled_costs_fitted_rarely():
    fits = planned(200).work.state_dict()["fits"]
    assert fits[1] == RAREST


def test_small_last_batch_teaches_nothing(alone):
    class Remembers(LastValue):
        def observe(self, report):
            seen.extend(report.seconds.tolist())
            super().observe(report)

    seen = []
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    loader = BalancedLoader(torch.zeros(90, 2), 40)
    balance = attach(model, loader, predictor=Remembers())
    for inputs in loader:
        model(inputs).mean().backward()
    balance.state_dict()  # takes in the last report
    assert [np.isfinite(seconds) for seconds in seen] == [True, True, False]
