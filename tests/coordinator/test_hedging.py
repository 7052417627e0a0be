"""Hedged forecasts follow what each choice would have cost, and the balancer keeps its contract with them."""

import numpy as np
import pytest

from paceline import LoadBalancer, Policy
from paceline.predictors import EWMA, Auto, Calibrated, LastValue, Report

FLEET = ("a", "b", "c", "d")


def reports(count, deviation, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield 100.0 * np.exp(rng.normal(0.0, deviation))


def times(speeds, predictor=None, **rules):
    """Time of each iteration over the best possible one."""
    balancer = LoadBalancer(
        predictor or Calibrated("ewma:smoothing=0.1"), workers=FLEET, global_batch=4000, policy=Policy(**rules)
    )
    for speed_W in speeds:
        sizes = balancer.plan.sizes
        yield (sizes / speed_W).max() * speed_W.sum() / 4000
        balancer.step(Report(sizes, sizes / speed_W))


def late(speeds, predictor=None, **rules):
    found = list(times(speeds, predictor, **rules))
    return float(np.mean(found[len(found) // 2 :]))


@pytest.mark.slow
def test_noise_that_differs_between_workers_is_spared_and_saves_time():
    speeds = list(reports(300, [0.01, 0.01, 0.3, 0.3]))
    assert late(speeds, change_cost=0) < 0.98 * late(speeds, change_cost=0, risk=0)


@pytest.mark.parametrize("predictor", [LastValue, EWMA, Auto])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
@pytest.mark.slow
def test_forecasts_of_mere_noise_end_in_equal_batches(predictor, noise):
    speeds = list(reports(300, [noise] * 4))
    equal = np.mean([(1 / speed_W).max() * speed_W.sum() / 4 for speed_W in speeds[150:]])
    assert late(speeds, predictor()) < 1.01 * equal


@pytest.mark.slow
@pytest.mark.parametrize("predictor", [LastValue, EWMA, Auto])
def test_forecasts_of_workers_that_differ_are_followed(predictor):
    speeds = [speed_W * [1.0, 0.5, 2.0, 1.0] for speed_W in reports(300, [0.03] * 4)]
    plain = late(speeds, predictor(), change_cost=0, risk=0)
    assert late(speeds, predictor()) < 1.01 * plain


@pytest.mark.slow
def test_a_resumed_balancer_chooses_the_same():
    made = [LoadBalancer(Calibrated(), workers=FLEET, global_batch=400, horizon=2) for _ in range(2)]
    for speed_W in reports(60, [0.01, 0.01, 0.4, 0.4]):
        made[0].step(Report(made[0].plan.sizes, made[0].plan.sizes / speed_W))
    made[1].load_state_dict(made[0].state_dict())
    for speed_W in reports(20, [0.01, 0.01, 0.4, 0.4], seed=1):
        plans = [each.step(Report(each.plan.sizes, each.plan.sizes / speed_W)) for each in made]
        assert np.array_equal(plans[0].sizes, plans[1].sizes)
        assert plans[0].why == plans[1].why


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="risk must lie in"):
        Policy(risk="high")
