"""Hedged forecasts follow what each choice would have cost, and the balancer keeps its contract with them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import LoadBalancer, Policy
from paceline.coordinator.balanced import hedging as rules
from paceline.coordinator.balanced.hedging import CHOICES_C2, Hedging
from paceline.predictors import EWMA, Auto, Calibrated, Forecast, LastValue, Report
from paceline.solver.risk import log_caution

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


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-9, 1e12), min_size=1, max_size=6), st.floats(0.0, 1e6), st.integers(0, 99))
def test_any_choice_is_a_finite_stretch_that_keeps_the_fleets_speed(speed, spread, seed):
    rng, count = np.random.default_rng(seed), len(speed)
    forecast = Forecast(np.array(speed), spread * rng.random(count))
    for choice in range(len(CHOICES_C2)):
        hedging = Hedging()
        hedging.choice = choice
        stretch = hedging.stretch(forecast)
        assert np.isfinite(stretch).all()
        assert (forecast.speed / stretch).sum() == pytest.approx(forecast.speed.sum())
    np.testing.assert_allclose(forecast.speed / stretch, forecast.speed.mean(), err_msg="the last is equal batches")


@settings(derandomize=True, max_examples=25, deadline=None)
@given(st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_what_nobody_reported_changes_nothing_and_a_true_forecast_is_followed(speed, spread):
    hedging, count = Hedging(), len(speed)
    forecast = Forecast(np.array(speed), np.full(count, spread))
    for reported in (np.nan, np.nan, forecast.speed):
        assert (hedging.choice, set(hedging._cost_C)) == (0, {0.0})
        hedging.follow(np.full(count, reported), forecast)
    assert hedging.choice == 0


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.integers(2, 40), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.2, 1.0]), st.sampled_from([1, 2]))
def test_a_small_fleet_is_judged_as_a_large_one_is(count, seed, unknown, horizon):
    """The same iterations in plain floats and in arrays, with workers that report or are forecast now and then."""
    rng, told = np.random.default_rng(seed), []
    rows = [
        (np.where(rng.random(count) < unknown / 2, np.nan, rng.lognormal(4, 1, count)), rng.lognormal(4, 1, count))
        for _ in range(12)
    ]
    spreads = [np.where(rng.random(count) < unknown, np.inf, 0.5 * rng.random(count)) for _ in rows]
    for few in (0, 64):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rules, "FEW", few)
            hedging = Hedging(horizon)
            for (speed_W, forecast_W), spread_W in zip(rows, spreads, strict=True):
                forecast = Forecast(forecast_W, spread_W)
                hedging.follow(speed_W, forecast)
            told.append((hedging.choice, hedging.state_dict(), hedging.stretch(forecast)))
    (choice, state, stretch), (other, again, likewise) = told
    assert choice == other
    assert state["cost"].any() or unknown == 1
    for one, two in ((state["cost"], again["cost"]), (state["planned"], again["planned"]), (stretch, likewise)):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


def test_a_forecast_is_judged_by_the_iteration_that_it_is_for():
    """The two workers swap their speeds in turns; a forecast for the iteration after the next says so."""
    fast_slow, slow_fast = np.array([100.0, 50.0]), np.array([50.0, 100.0])
    costs = []
    for horizon in (1, 2):
        hedging = Hedging(horizon)
        for k in range(20):
            now = fast_slow if k % 2 else slow_fast
            hedging.follow(now, Forecast(now, np.full(2, 0.1)))  # it will be the same in two iterations
        costs.append(hedging._cost_C[0])
    assert costs[0] > 1.0
    assert costs[1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow
def test_a_resumed_balancer_chooses_the_same():
    made = [LoadBalancer(Calibrated(), workers=FLEET, global_batch=400, horizon=2) for _ in range(2)]
    for speed_W in reports(60, [0.01, 0.01, 0.4, 0.4]):
        made[0].step(Report(made[0].plan.sizes, made[0].plan.sizes / speed_W))
    made[1].load_state_dict(made[0].state_dict())
    assert made[0]._hedging.choice == made[1]._hedging.choice > 0
    for speed_W in reports(20, [0.01, 0.01, 0.4, 0.4], seed=1):
        plans = [each.step(Report(each.plan.sizes, each.plan.sizes / speed_W)) for each in made]
        assert np.array_equal(plans[0].sizes, plans[1].sizes)
        assert plans[0].why == plans[1].why


def test_another_word_is_refused():
    with pytest.raises(ValueError, match="risk must lie in"):
        Policy(risk="high")


@pytest.mark.parametrize("stalled", [25.0, 50.0, 1e3, 1e9])
def test_a_stall_counts_for_as_much_however_long_it_is(stalled):
    """Beyond twenty times the best time, which is half of what two equal workers take if one stalls for long."""
    costs = []
    for times in (stalled, 41.0):
        hedging = Hedging()
        forecast = Forecast(speed=np.array([100.0, 100.0]), spread=np.array([0.1, 0.1]))
        for speed in (100.0, 100.0 / times):
            hedging.follow(np.array([100.0, speed]), forecast)
        costs.append(hedging.state_dict()["cost"])
    assert np.all(costs[0] < costs[1]) if stalled < 40 else np.all(costs[0] == costs[1])


@settings(max_examples=30)
@given(st.integers(2, 20), st.integers(0, 999), st.sampled_from([1, 2]), st.sampled_from([0.0, 0.2]))
def test_every_choice_costs_the_fading_sum_of_the_waits_that_its_sizes_would_have_made(count, seed, horizon, unknown):
    rng, hedging, cost, plans = np.random.default_rng(seed), Hedging(horizon), np.zeros(7), []
    for _ in range(8):
        speed_W = np.where(rng.random(count) < unknown, np.nan, rng.lognormal(4, 1, count))
        forecast = Forecast(rng.lognormal(4, 1, count), rng.random(count))
        hedging.follow(speed_W, forecast)
        known_W = np.isfinite(speed_W)
        if len(plans) >= horizon and known_W.sum() > 1:
            speed_W = speed_W[known_W]
            for choice, planned_W in enumerate(plans[-horizon]):
                share_W = planned_W[known_W] / planned_W[known_W].sum()
                times = (share_W / speed_W).max() * speed_W.sum()  # of the best split
                cost[choice] = 0.98 * cost[choice] + min(np.log(times), 3.0)
        plans.append([forecast.speed**a * np.exp(b * log_caution(forecast.spread)) for a, b in CHOICES_C2])
        assert hedging.state_dict()["cost"] == pytest.approx(cost, abs=1e-9)
        best = np.flatnonzero(cost <= cost.min() + 1e-8)
        assert hedging.choice in best
        planned_W = plans[-1][hedging.choice]
        wanted_W = forecast.speed.sum() * planned_W / planned_W.sum()
        assert forecast.speed / hedging.stretch(forecast) == pytest.approx(wanted_W)
    resumed = Hedging(horizon)
    resumed.load_state_dict(hedging.state_dict())
    for one in (hedging, resumed):
        one.follow(np.full(count, 50.0), forecast)
    assert resumed.choice == hedging.choice
    for name, value in hedging.state_dict().items():
        assert np.array_equal(value, resumed.state_dict()[name])
    hedging.start()
    assert (hedging.state_dict()["planned"].size, hedging.choice) == (0, resumed.choice)


def test_of_choices_that_cost_the_same_the_forecast_itself_comes_first():
    """Workers of one speed and one spread: shrunk or spared, the sizes are equal ones."""
    hedging, forecast = Hedging(), Forecast(np.full(3, 50.0), np.full(3, 0.2))
    for seed in range(20):
        hedging.follow(np.random.default_rng(seed).lognormal(4, 0.5, 3), forecast)
    assert np.ptp(hedging.state_dict()["cost"]) < 1e-9
    assert hedging.state_dict()["cost"].min() > 1
    assert hedging.choice == 0
