"""The risk that is chosen online follows what noise costs, and the balancer keeps its promises with it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LoadBalancer, Policy
from paceline.coordinator.chosen_risk import RISKS, ChosenRisk
from paceline.predictors import Calibrated, Forecast, Report

FLEET = ("a", "b", "c", "d")


def reports(count, deviation, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield 100.0 * np.exp(rng.normal(0.0, deviation))


def balanced(deviation, risk, count=300):
    """Mean time of an iteration over the best possible one, in the second half."""
    balancer = LoadBalancer(
        Calibrated("ewma:smoothing=0.1"),
        workers=FLEET,
        global_batch=4000,
        policy=Policy(risk=risk, dead_band=0.0),
    )
    found = []
    for speed_W in reports(count, deviation):
        sizes = balancer.plan.sizes
        found.append((sizes / speed_W).max() * speed_W.sum() / 4000)
        balancer.step(Report(sizes, sizes / speed_W))
    return float(np.mean(found[count // 2 :]))


def test_noise_that_differs_between_workers_is_spared_and_saves_time():
    deviation = [0.01, 0.01, 0.3, 0.3]
    assert balanced(deviation, "auto") < 0.98 * balanced(deviation, 0.0)


def test_with_equal_noise_the_choice_costs_nothing():
    deviation = [0.1, 0.1, 0.1, 0.1]
    assert balanced(deviation, "auto") == pytest.approx(balanced(deviation, 0.0), rel=0.02)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_what_nobody_reported_changes_nothing_and_the_choice_is_one_of_the_risks(speed, spread):
    chosen, count = ChosenRisk(), len(speed)
    forecast = Forecast(np.array(speed), np.full(count, spread))
    chosen.judge(forecast, np.full(count, np.nan))
    assert chosen.risk == 0.0
    chosen.judge(forecast, np.array(speed))
    assert chosen.risk in RISKS


def test_a_resumed_balancer_chooses_the_same():
    made = [LoadBalancer(Calibrated(), workers=FLEET, global_batch=400, policy=Policy(risk="auto")) for _ in range(2)]
    for speed_W in reports(60, [0.01, 0.01, 0.4, 0.4]):
        made[0].step(Report(made[0].plan.sizes, made[0].plan.sizes / speed_W))
    made[1].load_state_dict(made[0].state_dict())
    assert made[0]._chosen_risk.risk == made[1]._chosen_risk.risk > 0.0
    for speed_W in reports(20, [0.01, 0.01, 0.4, 0.4], seed=1):
        plans = [each.step(Report(each.plan.sizes, each.plan.sizes / speed_W)) for each in made]
        assert np.array_equal(plans[0].sizes, plans[1].sizes)


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="risk must lie in"):
        Policy(risk="high")
