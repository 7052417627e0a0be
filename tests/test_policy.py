import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.policy import excited, largest_gain, turning, within_half_step, within_largest_change
from paceline.predictors import BatchTime, Curves, LastValue, Report
from paceline.solver import split

FLEET = ("gpu0", "gpu1", "gpu2")
FREE = {"warmup": 0, "dead_band": 0.0, "cooldown": 0, "largest_change": np.inf, "reversal_memory": 0}
"""A policy without rules: the best split of every forecast is taken."""


def run(speeds, **rules):
    """Plans of three workers, 600 samples together, at these speeds in samples/s, by these rules and no others."""
    balancer = LoadBalancer(LastValue(), workers=FLEET, global_batch=600, policy=Policy(**{**FREE, **rules}))
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


def test_the_dead_band_is_the_least_gain_that_is_acted_upon():
    # Keeping takes 200/90 s, the best split 600/290 s: a gain of 6.9 %.
    assert sizes(run([(100, 100, 90)], dead_band=0.07)) == [[200, 200, 200]]
    (plan,) = run([(100, 100, 90)], dead_band=0.06)
    assert plan.sizes.tolist() == [207, 207, 186]
    assert plan.gain == pytest.approx(1 - 2.07 / (200 / 90))


def test_during_the_cool_down_sizes_are_kept():
    speeds = [(100, 100, 50), (100, 100, 100), (100, 100, 100), (100, 100, 100)]
    plans = run(speeds, cooldown=2, urgent=1.0)
    assert sizes(plans) == [[240, 240, 120], [240, 240, 120], [240, 240, 120], [200, 200, 200]]
    assert [plan.acted for plan in plans] == [True, False, False, True]


def test_an_urgent_gain_does_not_wait_for_the_cool_down():
    # Keeping (240, 240, 120) takes 240/90 s, the best split 600/290 s: a gain of 22 %.
    speeds = [(100, 100, 50), (100, 90, 100)]
    assert sizes(run(speeds, cooldown=2, urgent=0.25))[-1] == [240, 240, 120]
    assert sizes(run(speeds, cooldown=2, urgent=0.2))[-1] == [207, 186, 207]


@pytest.mark.parametrize("seed", range(20))
def test_no_split_gains_more_than_the_largest_gain(seed):
    rng = np.random.default_rng(seed)
    curves = Curves(
        floor=rng.uniform(0, 0.5, 4) * rng.integers(0, 2),
        slope=rng.uniform(0.001, 0.01, 4),
        intercept=rng.uniform(-0.1, 2, 4) * rng.integers(0, 2),
        limit=np.full(4, np.inf),
    )
    sizes = rng.multinomial(400, [0.25] * 4)
    kept = curves.busy_seconds(sizes).max()
    gain = 1 - split(curves, 400).makespan / kept
    assert gain <= largest_gain(curves, 400, kept) <= 1


def test_the_largest_gain_is_nearly_reached_where_nothing_bounds_the_split():
    curves = Curves.from_speed(np.array([300.0, 200, 100]))
    gain = 1 - split(curves, 6000).makespan / (2000 / 100)
    assert largest_gain(curves, 6000, 2000 / 100) == pytest.approx(gain)


def test_a_worker_that_turns_round_takes_half_the_step():
    # gpu2 goes from 200 down to 120 and is wanted back at 200: it gets 160, then the rest.
    speeds = [(100, 100, 50), (100, 100, 100), (100, 100, 100)]
    assert sizes(run(speeds, reversal_memory=3)) == [[240, 240, 120], [220, 220, 160], [200, 200, 200]]


def test_by_default_a_worker_that_turns_round_goes_the_whole_way_at_once():
    speeds = [(100, 100, 50), (100, 100, 100)]
    assert sizes(run(speeds, reversal_memory=Policy().reversal_memory))[-1] == [200, 200, 200]


def test_a_turn_after_a_long_time_is_no_oscillation():
    speeds = [(100, 100, 50)] * 4 + [(100, 100, 100)]
    assert sizes(run(speeds, reversal_memory=3))[-1] == [200, 200, 200]
    assert sizes(run(speeds, reversal_memory=4))[-1] == [220, 220, 160]


def test_no_size_changes_by_more_than_the_largest_change():
    # gpu2 is ten times slower. At 0.25 the others may go from 200 to 250; what is left stays with gpu2.
    assert sizes(run([(100, 100, 10)] * 3, largest_change=0.25)) == [[220, 220, 160], [236, 236, 128], [249, 248, 103]]
    assert sizes(run([(100, 100, 10)] * 3, largest_change=1.0)) == [[250, 250, 100], [275, 275, 50], [286, 286, 28]]


def test_sizes_are_multiples_of_the_quantum_within_the_bounds():
    (plan,) = run([(100, 10, 300)], quantum=8, lower={"gpu1": 40}, upper={"gpu2": 250})
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


@pytest.mark.parametrize(
    ("speed", "best", "largest"), [((100, 50, 50), [300, 150, 150], 0.5), ((100, 100, 40), [250, 250, 100], 1.0)]
)
def test_a_change_that_just_reaches_the_largest_is_not_called_cut(speed, best, largest):
    (plan,) = run([speed], largest_change=largest)
    assert plan.sizes.tolist() == best
    assert "largest change" not in plan.why
    assert "held to the largest change" in run([speed], largest_change=0.98 * largest)[0].why


def test_the_quantum_is_blamed_for_nothing_that_single_samples_cost():
    policy = Policy(**FREE)
    balancer = LoadBalancer(LastValue(), workers=("a", "b"), global_batch=5, policy=policy)
    plan = balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / np.array([1.0, 3.0])))
    assert plan.sizes.tolist() == [1, 4]
    assert "multiples" not in plan.why


def test_one_quantum_may_always_move():
    fewest, most = within_largest_change(np.array([4, 4]), 0.1, quantum=4)
    assert (fewest.tolist(), most.tolist()) == ([0, 0], [8, 8])


def test_half_a_step_is_rounded_up_to_whole_quanta():
    fewest, most = within_half_step(np.array([64, 64]), np.array([56, 72]), np.array([True, True]), quantum=8)
    assert (fewest.tolist(), most.tolist()) == ([56, 0], [np.inf, 72])


def test_who_never_changed_does_not_turn_round():
    nothing = np.zeros(2, dtype=int)
    assert not turning(np.array([64, 64]), np.array([60, 68]), nothing, nothing, memory=9).any()


class Curious(LastValue):
    """Requests excitation of given workers."""

    def __init__(self, wants=(True, True, False)):
        super().__init__()
        self.wants = wants

    @property
    def wants_excitation(self):
        return np.array(self.wants)


def plans_with_excitation(wants, iterations=30, **rules):
    policy = Policy(**{**FREE, "dead_band": 0.02, "excitation": 0.05, **rules})
    balancer = LoadBalancer(Curious(wants), workers=FLEET, global_batch=600, policy=policy)
    plans = [balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / 100)) for _ in range(iterations)]
    return np.array([plan.sizes for plan in plans]), plans


def test_excitation_moves_samples_of_those_whom_the_predictor_asks_for_around_their_sizes():
    sizes_KW, _ = plans_with_excitation((True, True, False))
    assert (sizes_KW[:, 2] == 200).all()
    assert set(sizes_KW[:, 0]) == {190, 210}
    assert set(sizes_KW[:, 1]) == {190, 210}


def test_a_single_worker_is_excited_with_a_partner():
    sizes_KW, _ = plans_with_excitation((False, True, False))
    assert set(sizes_KW[:, 1]) == {190, 210}
    assert set(sizes_KW[:, 0]) == set(sizes_KW[:, 2]) == {190, 200, 210}


def test_excitation_is_seeded_and_off_where_nobody_asks_or_the_policy_says_no():
    once, again, other = (plans_with_excitation((True, True, True), seed=seed)[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(once, again)
    assert (once != other).any()
    for still in (
        plans_with_excitation((False, False, False)),
        plans_with_excitation((True, True, True), excitation=0.0),
    ):
        assert (still[0] == 200).all()


def test_excitation_keeps_sum_quantum_and_bounds():
    sizes_KW, _ = plans_with_excitation((True, True, True), quantum=4, lower=196, upper=204)
    assert (sizes_KW.sum(axis=1) == 600).all()
    assert (sizes_KW % 4 == 0).all()
    assert set(sizes_KW.ravel()) == {196, 200, 204}


@pytest.mark.parametrize(("excitation", "still_wanted"), [(0.05, False), (0.0, True)])
def test_excitation_lets_a_predictor_tell_fixed_time_from_time_per_sample(excitation, still_wanted):
    predictor = BatchTime()
    policy = Policy(excitation=excitation)
    balancer = LoadBalancer(predictor, workers=FLEET, global_batch=600, policy=policy)
    for _ in range(40):
        balancer.step(Report(balancer.plan.sizes, 0.5 + 0.01 * balancer.plan.sizes))
    assert predictor.wants_excitation.any() == still_wanted
    intercept_W = balancer.plan.forecast.curves.intercept
    np.testing.assert_allclose(intercept_W, 0.0 if still_wanted else 0.5, rtol=0.25)


def test_devices_with_fixed_times_are_balanced_in_two_changes_by_curves_and_not_by_speeds():
    fixed, of_sample = np.array([0.5, 0.0, 0.2]), np.array([1 / 300, 1 / 300, 1 / 900])
    best = 1098 / 1500  # 300 (t - 0.5) + 300 t + 900 (t - 0.2) = 768

    def ratio_after_two_changes(predictor):
        policy = Policy(warmup=1, excitation=0.0)
        balancer = LoadBalancer(predictor, workers=FLEET, global_batch=768, policy=policy)
        acted = 0
        while acted < 2:
            sizes = balancer.plan.sizes
            acted += balancer.step(Report(sizes, fixed + of_sample * sizes)).acted
        return (fixed + of_sample * balancer.plan.sizes).max() / best

    assert ratio_after_two_changes(BatchTime()) < 1.05
    assert ratio_after_two_changes(LastValue()) > 1.1


def test_a_fleet_of_one_is_not_excited():
    one = np.array([64])
    assert excited(one, one > 0, one, one, amount=0.5, quantum=1, seed=(0, 1)).tolist() == [64]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"warmup": -1}, "warmup must be 0 or more, got -1"),
        ({"dead_band": 1.0}, r"dead_band must lie in \[0, 1\), got 1.0"),
        ({"dead_band": np.nan}, r"dead_band must lie in \[0, 1\), got nan"),
        ({"cooldown": -2}, "cooldown must be 0 or more, got -2"),
        ({"urgent": 1.5}, r"urgent must lie in \[0, 1\], got 1.5"),
        ({"largest_change": 0}, "largest_change must be above 0, got 0"),
        ({"reversal_memory": -1}, "reversal_memory must be 0 or more, got -1"),
        ({"excitation": -0.1}, r"excitation must lie in \[0, 1\), got -0.1"),
        ({"quantum": 0}, "quantum must be at least 1 sample, got 0"),
        ({"lower": -1}, "lower must be 0 samples or more, got -1"),
        ({"upper": {"gpu0": -8}}, "upper must be 0 samples or more, got {'gpu0': -8}"),
        ({"risk": 3.0}, "risk must lie in"),
    ],
)
def test_a_policy_out_of_range_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Policy(**arguments)
