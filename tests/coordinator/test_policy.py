"""When sizes change, within which bounds, and how far noisy forecasts are followed."""

import numpy as np
import pytest
from test_load_balancer import FREE, Proportional

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, Auto, BatchTime, Calibrated, Curves, LastValue, Report
from paceline.solver import split

FLEET = ("gpu0", "gpu1", "gpu2")


def run(speeds, iterations=1, **rules):
    """Plans of three workers, 600 samples together, at these speeds in samples/s, by these rules and no others."""
    balancer = LoadBalancer(Proportional(), workers=FLEET, global_batch=600, policy=Policy(**{**FREE, **rules}))
    reports = (Report(balancer.plan.sizes, balancer.plan.sizes / np.array(speed)) for speed in speeds)
    return [balancer.step(report, iterations=iterations) for report in reports]


def sizes(plans):
    return [plan.sizes.tolist() for plan in plans]


def test_without_costs_every_forecast_is_followed():
    assert sizes(run([(100, 100, 100), (100, 100, 50), (110, 90, 100)])) == [
        [200, 200, 200],
        [240, 240, 120],
        [220, 180, 200],
    ]


def test_warmup_is_equal():
    # The first plan was made before any report: with three warm-up iterations two more are equal.
    assert sizes(run([(100, 100, 50)] * 3, warmup=3)) == [[200, 200, 200], [200, 200, 200], [240, 240, 120]]


def test_change_is_made_once_it_pays():
    # Keeping takes 200/90 s, the best split 600/290 s: a gain of 6.9%.
    (plan,) = run([(100, 100, 90)], change_cost=0.06)
    assert plan.sizes.tolist() == [207, 207, 186]
    assert plan.gain == pytest.approx(1 - 2.07 / (200 / 90))
    for iterations in (1, 2, 5):
        acted = [plan.acted for plan in run([(100, 100, 90)] * 8, change_cost=iterations * 0.0687)]
        assert acted == [False] * iterations + [True] + [False] * (7 - iterations)


def test_a_report_of_several_iterations_counts_as_many():
    cost = 6 * 0.0687
    assert [plan.acted for plan in run([(100, 100, 90)] * 4, iterations=3, change_cost=cost)] == [0, 0, 1, 0]
    assert sizes(run([(100, 100, 50)] * 2, iterations=3, warmup=4)) == [[200, 200, 200], [240, 240, 120]]
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match="iterations must be a whole number from 1"):
            run([(100, 100, 50)], iterations=wrong)


def test_regret_counts_from_the_last_change():
    slow, other = (100, 100, 90), (90, 100, 100)
    acted = [plan.acted for plan in run([slow, slow, other, other, other], change_cost=0.13)]
    assert acted == [False, True, False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("cost", [0.02, 0.3, 2.0])
@pytest.mark.parametrize("batch_multiple", [1, 50])
def test_regret_is_that_of_the_solver(cost, batch_multiple):
    """With sizes so coarse that single samples would gain more, as much is forgone as the solver says."""
    rng = np.random.default_rng(0)
    balancer = LoadBalancer(
        Proportional(),
        workers=FLEET,
        global_batch=600,
        policy=Policy(warmup=0, change_cost=cost, batch_multiple=batch_multiple, risk=0),
    )
    forgone, sizes = 0.0, balancer.plan.sizes
    for _ in range(300):
        speed = np.array([100.0, 100.0, 90.0]) * rng.lognormal(0, 0.001, 3)
        plan = balancer.step(Report(sizes, sizes / speed))
        best = split(Curves.from_speed(speed), 600, lower=1, batch_multiple=batch_multiple).makespan
        forgone += 1 - best / (sizes / speed).max()
        if plan.acted:
            assert cost < forgone < cost + 0.08
            forgone, sizes = 0.0, plan.sizes
    assert forgone < cost + 0.01


def test_risk_spares_the_noisy_worker():
    def last_size(risk):
        rng = np.random.default_rng(0)
        speeds = [(100, 100, 100 * np.exp(rng.normal(0, 0.3))) for _ in range(50)] + [(100, 100, 100)]
        return run(speeds, risk=risk)[-1].sizes.tolist()

    assert last_size(0) == [200, 200, 200]
    assert last_size(1)[2] < 180


def test_fixed_times_are_balanced_in_two_changes():
    fixed, of_sample = np.array([0.5, 0.0, 0.2]), np.array([1 / 300, 1 / 300, 1 / 900])
    best = 1098 / 1500  # 300 (t - 0.5) + 300 t + 900 (t - 0.2) = 768

    def ratio_after_two_changes(predictor):
        balancer = LoadBalancer(predictor, workers=FLEET, global_batch=768, policy=Policy(warmup=1))
        acted = 0
        while acted < 2:
            sizes = balancer.plan.sizes
            acted += balancer.step(Report(sizes, fixed + of_sample * sizes)).acted
        return (fixed + of_sample * balancer.plan.sizes).max() / best

    assert ratio_after_two_changes(BatchTime()) < 1.05
    assert ratio_after_two_changes(LastValue()) < 1.05


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"warmup": -1}, "warmup must be 0 or more, got -1"),
        ({"change_cost": -0.1}, "change_cost must be 0 iterations or more, got -0.1"),
        ({"change_cost": np.nan}, "change_cost must be 0 iterations or more, got nan"),
        ({"change_cost": np.inf}, "change_cost must be 0 iterations or more, got inf"),
        ({"batch_multiple": 0}, "batch_multiple must be at least 1 sample, got 0"),
        ({"lower": -1}, "lower must be 0 samples or more, got -1"),
        ({"upper": {"gpu0": -8}}, "upper must be 0 samples or more, got {'gpu0': -8}"),
        ({"risk": 3.0}, "risk must lie in"),
    ],
)
def test_policy_out_of_range_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Policy(**arguments)


# -- risk="auto": forecasts are followed as far as that has paid --------------------------------------------------


def reports(count, deviation, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield 100.0 * np.exp(rng.normal(0.0, deviation))


def times(speeds, predictor=None, **rules):
    """Time of each iteration over the best possible one."""
    balancer = LoadBalancer(
        predictor or Calibrated("ewma:smoothing=0.1"), workers=range(4), global_batch=4000, policy=Policy(**rules)
    )
    for speed_W in speeds:
        sizes = balancer.plan.sizes
        yield (sizes / speed_W).max() * speed_W.sum() / 4000
        balancer.step(Report(sizes, sizes / speed_W))


def late_ratio(speeds, predictor=None, **rules):
    found = list(times(speeds, predictor, **rules))
    return float(np.mean(found[len(found) // 2 :]))


@pytest.mark.slow
def test_unequal_noise_is_spared():
    speeds = list(reports(300, [0.01, 0.01, 0.3, 0.3]))
    assert late_ratio(speeds, change_cost=0) < 0.98 * late_ratio(speeds, change_cost=0, risk=0)


@pytest.mark.parametrize("predictor", [LastValue, EWMA, Auto])
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.4])
@pytest.mark.slow
def test_pure_noise_ends_in_equal_batches(predictor, noise):
    speeds = list(reports(300, [noise] * 4))
    equal = np.mean([(1 / speed_W).max() * speed_W.sum() / 4 for speed_W in speeds[150:]])
    assert late_ratio(speeds, predictor()) < 1.01 * equal


@pytest.mark.slow
@pytest.mark.parametrize("predictor", [LastValue, EWMA, Auto])
def test_real_differences_are_followed(predictor):
    speeds = [speed_W * [1.0, 0.5, 2.0, 1.0] for speed_W in reports(300, [0.03] * 4)]
    plain = late_ratio(speeds, predictor(), change_cost=0, risk=0)
    assert late_ratio(speeds, predictor()) < 1.01 * plain
