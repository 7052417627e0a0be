"""A load balancer searches while its curves do not hold, and plans by them again when they do. Axis: W workers."""

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy, SearchFallback
from paceline.datasets import recorded
from paceline.predictors import EWMA, LastValue, Report

FLEET = ("gpu0", "gpu1", "gpu2")
SPEED = np.array([100.0, 200.0, 100.0])


def bare(predictor=None):
    policy = Policy(warmup=2, largest_change=np.inf)
    return LoadBalancer(predictor or LastValue(), workers=FLEET, global_batch=300, policy=policy)


def guarded(**options):
    return SearchFallback(bare(), **options)


def plain(sizes):
    return sizes / SPEED


def pages(sizes):
    """Above 110 samples gpu1 runs out of fast memory and takes four times as long: no line tells that."""
    return plain(sizes) * np.where(sizes > 110, [1, 4, 1], 1)


def run(planner, seconds_of, count, seed=0):
    """Step and return plans and makespans; times have 2 % of noise."""
    rng = np.random.default_rng(seed)
    plans, makespans = [], []
    for _ in range(count):
        seconds = seconds_of(planner.plan.sizes) * np.exp(rng.normal(0, 0.02, len(planner.plan.sizes)))
        makespans.append(seconds.max())
        plans.append(planner.step(Report(planner.plan.sizes, seconds)))
    return plans, np.array(makespans)


def searched(planner):
    """Run until it searches."""
    plans = []
    while not planner.searching:
        assert len(plans) < 100
        plans += run(planner, pages, 1)[0]
    return plans


def test_while_the_curves_hold_the_plans_are_the_balancers():
    plans, alone = run(guarded(), plain, 60)[0], run(bare(), plain, 60)[0]
    assert [p.why for p in plans] == [p.why for p in alone]
    assert [p.checksum for p in plans] == [p.checksum for p in alone]


def test_a_device_that_no_line_describes_is_searched_for_and_ends_sooner():
    planner = guarded()
    plans, makespans = run(planner, pages, 800)
    assert any("The curves do not hold: the times of gpu1 are typically" in plan.why for plan in plans)
    assert any(plan.why.startswith("Searching, as the curves do not hold. Moved") for plan in plans)
    assert makespans[400:].mean() < 0.85 * run(bare(), pages, 800)[1][400:].mean()
    assert all(plan.sizes.sum() == 300 for plan in plans)


def test_the_plan_says_why_it_searches_and_why_it_stops():
    planner = guarded(patience=5)
    begun = searched(planner)[-1].why
    assert begun.endswith(
        "The curves do not hold: the times of gpu1 are typically 178 % off. From now on sizes are searched for."
    )
    plans, _ = run(planner, plain, 30)
    assert plans[0].why == (
        "Searching, as the curves do not hold. Kept the sizes: 1 of 5 iterations of the window measured."
    )
    ended = next(plan.why for plan in plans if "hold again" in plan.why)
    assert ended.endswith(
        "The curves hold again: at worst, the times of gpu1 are typically 8.7 % off. The search ends."
    )


def test_when_the_curves_hold_again_the_balancer_plans():
    planner = guarded(patience=5)
    run(planner, pages, 60)
    plans, _ = run(planner, plain, 120)
    assert sum("The curves hold again" in plan.why for plan in plans) <= 1
    assert not planner.searching
    assert np.abs(planner.plan.sizes - [75, 150, 75]).max() <= 4


def test_a_search_that_is_needed_again_stays_longer():
    planner = guarded(patience=5)
    plans, _ = run(planner, pages, 600)
    searching = np.array([plan.why.startswith("Searching") for plan in plans])
    edges = np.flatnonzero(np.diff(np.r_[0, searching, 0]))
    stays = edges[1::2] - edges[::2]
    assert len(stays) >= 2
    assert stays[1] > stays[0]


def test_noise_alone_is_no_reason_to_search():
    rng = np.random.default_rng(1)
    planner = SearchFallback(bare(EWMA()))
    for _ in range(300):
        sizes = planner.plan.sizes
        planner.step(Report(sizes, plain(sizes) * np.exp(rng.normal(0, 0.2, 3))))
        assert not planner.searching


def test_large_errors_are_no_reason_to_search_while_balancing_is_better_than_not():
    """A recorded job whose contention comes and goes: hard to forecast, and balancing still pays."""
    trace = recorded.load("digits-cnn-bursty")
    balanced = LoadBalancer(EWMA(0.5), workers=trace.workers, global_batch=1280)
    planner = SearchFallback(balanced)
    for speed in trace.speed[:600]:
        planner.step(Report(planner.plan.sizes, planner.plan.sizes / speed))
        assert not planner.searching
    assert planner.plan.forecast.spread.max() > 0.3


def test_a_good_split_is_not_given_up_for_wrong_times():
    """Every time is three times the forecast, all alike: the sizes are right, and equal ones would take longer."""

    class Optimist(LastValue):
        def _next_speed(self, drivers_WD, horizon):
            return 3.0 * super()._next_speed(drivers_WD, horizon)

    planner = SearchFallback(bare(Optimist()), patience=3)
    run(planner, plain, 60)
    assert planner._error.min() > np.log(2.5)
    assert np.log(0.7) < planner._loss < 0  # a mean: equal ones take 100 / 75 as long
    run(planner, pages, 2)  # for so short a time equal ones would have been better
    run(planner, plain, 60)
    assert not planner.searching


def test_a_worker_without_a_report_says_nothing_about_the_curves():
    planner = guarded(patience=1)
    for _ in range(20):
        planner.step(Report(planner.plan.sizes, np.full(3, np.nan)))
    assert not planner.searching


def test_a_resumed_fallback_goes_on_exactly_as_the_first():
    first, second = guarded(), guarded()
    plans = searched(first)
    second.load_state_dict({name: value.copy() for name, value in first.state_dict().items()})
    assert np.array_equal(second.plan.sizes, plans[-1].sizes)
    one, other = (run(planner, pages, 100, seed=3)[0] for planner in (first, second))
    assert [(p.why, p.checksum, p.acted) for p in one] == [(p.why, p.checksum, p.acted) for p in other]


def test_a_change_of_the_fleet_ends_the_search():
    planner = guarded()
    searched(planner)
    assert planner.leave("gpu1").sizes.sum() == 300
    assert not planner.searching
    assert planner.join("gpu9").workers == planner.workers == ("gpu0", "gpu2", "gpu9")


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"patience": 0}, {"tolerance": np.nan}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="tolerance must be above 0 and patience at least 1 iteration"):
        guarded(**options)
