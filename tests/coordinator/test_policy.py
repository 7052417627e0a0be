import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import BatchTime, Curves, LastValue, Report
from paceline.solver import split

FLEET = ("gpu0", "gpu1", "gpu2")
FREE = {"warmup": 0, "change_cost": 0.0, "risk": 0.0}
"""A policy without rules: the best split of every forecast is taken."""


class Proportional(LastValue):
    """Its forecasts are for times that are proportional to sizes, and not to be corrected for fixed parts."""

    reads_sizes = True


def run(speeds, **rules):
    """Plans of three workers, 600 samples together, at these speeds in samples/s, by these rules and no others."""
    balancer = LoadBalancer(Proportional(), workers=FLEET, global_batch=600, policy=Policy(**{**FREE, **rules}))
    return [balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / np.array(speed))) for speed in speeds]


def sizes(plans):
    return [plan.sizes.tolist() for plan in plans]


def test_without_rules_every_forecast_is_followed():
    assert sizes(run([(100, 100, 100), (100, 100, 50), (110, 90, 100)])) == [
        [200, 200, 200],
        [240, 240, 120],
        [220, 180, 200],
    ]


def test_warm_up_iterations_get_equal_batches():
    # The first plan was made before any report: with three warm-up iterations two more are equal.
    assert sizes(run([(100, 100, 50)] * 3, warmup=3)) == [[200, 200, 200], [200, 200, 200], [240, 240, 120]]


def test_a_change_is_made_once_keeping_has_cost_more_than_a_change():
    # Keeping takes 200/90 s, the best split 600/290 s: a gain of 6.9 %.
    (plan,) = run([(100, 100, 90)], change_cost=0.06)
    assert plan.sizes.tolist() == [207, 207, 186]
    assert plan.gain == pytest.approx(1 - 2.07 / (200 / 90))
    for iterations in (1, 2, 5):
        acted = [plan.acted for plan in run([(100, 100, 90)] * 8, change_cost=iterations * 0.0687)]
        assert acted == [False] * iterations + [True] + [False] * (7 - iterations)


def test_what_is_forgone_counts_from_the_last_change_of_sizes_on():
    slow, other = (100, 100, 90), (90, 100, 100)
    acted = [plan.acted for plan in run([slow, slow, other, other, other], change_cost=0.13)]
    assert acted == [False, True, False, True, False]


@pytest.mark.slow
@pytest.mark.parametrize("cost", [0.02, 0.3, 2.0])
@pytest.mark.parametrize("batch_multiple", [1, 50])
def test_the_cheap_bound_does_not_change_what_is_forgone(cost, batch_multiple):
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


def test_sizes_are_multiples_of_the_batch_multiple_within_the_bounds():
    (plan,) = run([(100, 10, 300)], batch_multiple=8, lower={"gpu1": 40}, upper={"gpu2": 250})
    assert plan.sizes.tolist() == [312, 40, 248]


def test_by_default_every_worker_gets_at_least_a_sample_and_no_more_if_it_is_that_slow():
    for lower in (Policy().lower, {"gpu0": 20}):
        (plan,) = run([(1000, 1000, 0.1)], lower=lower)
        assert plan.sizes[2] == 1


def test_risk_spares_the_noisy_worker():
    def last_size(risk):
        rng = np.random.default_rng(0)
        speeds = [(100, 100, 100 * np.exp(rng.normal(0, 0.3))) for _ in range(50)] + [(100, 100, 100)]
        return run(speeds, risk=risk)[-1].sizes.tolist()

    assert last_size(0) == [200, 200, 200]
    assert last_size(1)[2] < 180


def test_the_batch_multiple_is_blamed_for_nothing_that_single_samples_cost():
    policy = Policy(**FREE)
    balancer = LoadBalancer(LastValue(), workers=("a", "b"), global_batch=5, policy=policy)
    plan = balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / np.array([1.0, 3.0])))
    assert plan.sizes.tolist() == [1, 4]
    assert "multiples" not in plan.why


def test_after_a_change_nothing_is_tried_for_an_iteration():
    class Curious(Proportional):
        def probe(self, sizes, low, high, *, batch_multiple, iteration):
            return sizes + np.array([1, -1, 0])

    balancer = LoadBalancer(Curious(), workers=FLEET, global_batch=600, policy=Policy(**FREE))
    tried = [
        balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / np.array(speed))).sizes.tolist()
        for speed in [(100, 100, 100), (100, 100, 50), (100, 100, 50)]
    ]
    assert tried == [[201, 199, 200], [240, 240, 120], [241, 239, 120]]


@pytest.mark.parametrize(("probing", "still_wanted"), [(0.05, False), (0.0, True)])
def test_probing_lets_a_predictor_tell_fixed_time_from_time_per_sample(probing, still_wanted):
    predictor = BatchTime(probing=probing)
    balancer = LoadBalancer(predictor, workers=FLEET, global_batch=600)
    for _ in range(40):
        balancer.step(Report(balancer.plan.sizes, 0.5 + 0.01 * balancer.plan.sizes))
    assert predictor.wants_excitation.any() == still_wanted
    intercept_W = balancer.plan.forecast.curves.intercept
    np.testing.assert_allclose(intercept_W, 0.0 if still_wanted else 0.5, rtol=0.25)


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

    assert ratio_after_two_changes(BatchTime(probing=0.0)) < 1.05
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
def test_a_policy_out_of_range_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Policy(**arguments)
