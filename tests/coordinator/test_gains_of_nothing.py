"""A best split that gains nothing says so, whatever was forgone before; and rounds keep what was told of them."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced import decision
from paceline.coordinator.balanced import reasons as why
from paceline.coordinator.balanced.decision import Forgone, _weighted
from paceline.coordinator.federated import FederatedBalancer
from paceline.coordinator.federated.round_report import RoundReport
from paceline.predictors import LastValue, Report
from paceline.runs.federated_round import iteration_of


def situation(best, *, known=0.0, cost=0.1, proven=False):
    """Sizes that take a second, of which half may be saved at most, and the makespan of the best split."""
    curves = SimpleNamespace(makespan=lambda sizes: 1.0, soonest=lambda batch: 0.5)
    split = SimpleNamespace(makespan=best, sizes=np.array([3, 5]))
    return SimpleNamespace(
        spared=curves,
        curves=curves,
        policy=SimpleNamespace(change_cost=cost, batch_multiple=1),
        forgone=Forgone(known=known),
        global_batch=8,
        horizon=1,
        sizes=np.array([4, 4]),
        proven=lambda: proven,
        best=lambda: split,
        expected=lambda chosen: chosen,
        moved=lambda sizes: (why.nothing_to_gain, ()),
    )


KEPT = SimpleNamespace(makespan=1.0)


@pytest.mark.parametrize("best", [1.0, 1.25])
def test_a_best_split_that_is_not_faster_leaves_nothing_to_gain(best):
    now = situation(best, known=0.75)
    assert _weighted(now, KEPT) == (KEPT, 0.0, [(why.nothing_to_gain, ())])
    assert (now.forgone.known, now.forgone.bound) == (0.75, 0.0)
    assert _weighted(situation(0.5, proven=True), KEPT) == (KEPT, 0.0, [(why.nothing_to_gain, ())])


def test_a_gain_that_sums_to_less_than_a_change_costs_is_told_with_both():
    now = situation(0.96875, known=0.0625, cost=0.1)
    assert _weighted(now, KEPT) == (KEPT, 0.0, [(why.too_little, ("", 0.03125, 0.09375, 0.1))])
    chosen, gain, reasons = _weighted(situation(0.5, cost=0.25), KEPT)
    assert (chosen.makespan, gain) == (0.5, 0.5)
    assert [reason for reason, _ in reasons[1:]] == [why.expected, why.rounded]
    assert reasons[1][1] == (0.5, 1.0, 1, False)
    assert decision.gain_of(2.0, 0.5) == 0.75


def test_a_round_keeps_computing_and_communication_apart():
    plan = FederatedBalancer(batch=10, local_steps=5).plan(["a", "b", "c"])
    report = RoundReport(clients=["c", "a"], samples=[50, 50], seconds=[2.0, 1.0], comm_seconds=[0.5, 0.25])
    found = iteration_of(plan, report, time=1.7e9, wall_seconds=3.0)
    np.testing.assert_array_equal(found.comm_seconds, [0.25, np.nan, 0.5])
    np.testing.assert_array_equal(found.seconds, [1.25, np.nan, 2.5])
    assert (found.time, found.wall_seconds, found.index) == (1.7e9, 3.0, plan.round_index)


class Tries(LastValue):
    """Notes when it is asked for sizes to try, and moves a sample for one iteration."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def probe(self, sizes, low, high, *, batch_multiple, iteration):
        self.asked.append(iteration)
        return sizes + np.array([1, -1])


@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_sizes_are_tried_from_the_end_of_the_warm_up_on_wherever_none_were_changed(warmup):
    predictor = Tries()
    balancer = LoadBalancer(predictor, workers=["a", "b"], global_batch=16, policy=Policy(warmup=warmup))
    for number in range(1, 9):
        sizes = balancer.plan.sizes
        plan = balancer.step(Report(samples=sizes, seconds=sizes / 100.0))
        assert plan.sizes.tolist() == ([9, 7] if number >= warmup else [8, 8])
    assert predictor.asked == [number for number in range(1, 9) if number >= warmup]
