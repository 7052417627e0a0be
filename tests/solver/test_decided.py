"""Curves of small fleets in plain floats answer as those in arrays do, bit for bit. Axis: W workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, BatchTime, Curves, LastValue, Report
from paceline.solver import decided as room
from paceline.solver import evaluate, split
from paceline.solver.decided import FewCurves, ManyCurves, decided

speeds = st.floats(0.01, 1e4) | st.sampled_from([64.0, 100.0])
times = st.floats(0.0, 3.0) | st.sampled_from([0.0, 0.5])
fleets = st.integers(1, 9).flatmap(
    lambda count: st.tuples(
        *(st.lists(each, min_size=count, max_size=count).map(np.array) for each in (speeds, times, times)),
        st.booleans(),
    )
)


def both(speed_W, intercept_W, floor_W, straight):
    """The same curves in plain floats and in arrays."""
    if straight:
        return decided(speed_W), Curves.from_speed(speed_W)
    curves = Curves(floor_W, 1 / speed_W, intercept_W, np.full(len(speed_W), np.inf))
    return decided(speed_W, curves), curves


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(fleets, st.sampled_from([1, 4]), st.integers(1, 200), st.integers(0, 3), st.none() | st.integers(0, 60))
def test_small_fleets_are_split_as_the_exact_search_does(fleet, batch_multiple, multiples, least, spare):
    few, curves = both(*fleet)
    count, batch = len(curves.slope), multiples * batch_multiple
    low = np.full(count, float(min(least, multiples // count) * batch_multiple))
    high = np.full(count, float(batch if spare is None else (-(-multiples // count) + spare) * batch_multiple))
    found, exact = (
        few.split(batch, batch_multiple, low, high),
        split(curves, batch, lower=low, upper=high, batch_multiple=batch_multiple),
    )
    for name in ("sizes", "seconds", "makespan", "weights"):
        np.testing.assert_array_equal(getattr(found, name), getattr(exact, name))
    assert found.sizes.dtype == exact.sizes.dtype
    assert found.status is exact.status


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    fleets,
    st.sampled_from([1, 4]),
    st.integers(1, 40),
    st.integers(0, 3),
    st.none() | st.integers(0, 9),
    st.booleans(),
)
def test_sizes_that_a_glance_proves_are_as_fast_as_the_best_and_the_best_are_proven_in_proportional_times(
    fleet, batch_multiple, multiples, least, spare, searched
):
    few, curves = both(*fleet)
    count, batch = len(curves.slope), multiples * batch_multiple
    low = np.full(count, float(min(least, multiples // count) * batch_multiple))
    high = np.full(count, float(batch if spare is None else (-(-multiples // count) + spare) * batch_multiple))
    best = split(curves, batch, lower=low, upper=high, batch_multiple=batch_multiple)
    even = np.array([multiples // count + (place < multiples % count) for place in range(count)]) * batch_multiple
    sizes = best.sizes if searched else even
    proven = few.proven(sizes, batch_multiple, low, high)
    assert proven == ManyCurves(curves).proven(sizes, batch_multiple, low, high)
    assert proven or not (searched and fleet[-1]), "times in proportion to samples"
    assert not proven or few.makespan(sizes) == best.makespan == evaluate(curves, sizes).makespan


@pytest.mark.parametrize("usual", [[1.0, 100.0], [3.0, 4.0]])
def test_where_sizes_are_the_best_already_steps_do_not_search(usual, monkeypatch):
    """One worker is so slow that its lower bound holds it; or two round alike whatever the noise."""
    rng, searched, search = np.random.default_rng(0), [], FewCurves.split
    monkeypatch.setattr(FewCurves, "split", lambda *given: searched.append(given) or search(*given))
    balancer = LoadBalancer(LastValue(), workers=range(2), global_batch=16, policy=Policy(change_cost=0.0))
    for _ in range(100):
        speed_W = usual * rng.lognormal(0, 0.01, 2)
        balancer.step(Report(balancer.plan.sizes, balancer.plan.sizes / speed_W))
    assert len(searched) < 10


@settings(deadline=None)
@given(fleets, st.integers(1, 500))
def test_small_fleets_take_the_same_times_and_have_a_bound_that_no_split_beats(fleet, batch):
    few, curves = both(*fleet)
    sizes = np.random.default_rng(batch).multinomial(batch, np.full(len(curves.slope), 1 / len(curves.slope)))
    one, other = few.evaluate(sizes), evaluate(curves, sizes)
    np.testing.assert_array_equal(one.seconds, other.seconds)
    assert one.makespan == other.makespan
    assert few.soonest(batch) <= other.makespan * (1 + 1e-12)
    assert few.soonest(batch) == pytest.approx(ManyCurves(curves).soonest(batch), rel=1e-12)


@settings(deadline=None)
@given(fleets, st.integers(1, 99))
def test_stretched_curves_are_those_of_arrays(fleet, seed):
    few, curves = both(*fleet)
    rng, count = np.random.default_rng(seed), len(curves.slope)
    many, factor = ManyCurves(curves), rng.uniform(1, 3, count)
    sizes = rng.integers(1, 99, count)
    stretched = few.stretched(factor).evaluate(sizes), many.stretched(factor).evaluate(sizes)
    np.testing.assert_array_equal(*(one.seconds for one in stretched))


@pytest.mark.parametrize("slope", [[0.0, 0.01], [np.inf, 0.01]])
def test_where_a_line_is_level_or_upright_there_is_no_easy_bound(slope):
    assert FewCurves(slope).soonest(100) == 0.0


@pytest.mark.parametrize("predictor", [LastValue, lambda: EWMA(0.3), BatchTime])
@pytest.mark.parametrize("risk", [0.0, 0.5, "auto"])
@pytest.mark.slow
def test_a_balancer_of_few_workers_plans_as_one_of_many_does(predictor, risk, monkeypatch):
    def plans():
        rng = np.random.default_rng(0)
        balancer = LoadBalancer(predictor(), workers=range(6), global_batch=384, policy=Policy(risk=risk))
        usual_W = rng.lognormal(4, 0.3, 6)
        for k in range(200):
            speed_W = usual_W * np.where(k // 20 % 2 * (np.arange(6) == k // 40), 0.4, 1) * rng.lognormal(0, 0.03, 6)
            yield balancer.step(Report(balancer.plan.sizes, 0.1 + balancer.plan.sizes / speed_W))

    few = [(plan.sizes.tolist(), plan.seconds.tolist(), plan.why) for plan in plans()]
    monkeypatch.setattr(room, "FEW", 0)
    assert few == [(plan.sizes.tolist(), plan.seconds.tolist(), plan.why) for plan in plans()]


def test_workers_of_one_sample_need_no_search_but_those_of_none_do(monkeypatch):
    monkeypatch.setattr(room, "split", lambda *given, **bounds: pytest.fail("searched"))
    few = FewCurves([0.5, 0.25, 0.5])
    assert few.split(4, 1, np.zeros(3), np.full(3, 9.0)).sizes.tolist() == [1, 2, 1]
    with pytest.raises(pytest.fail.Exception, match="searched"):
        few.split(1, 1, np.zeros(3), np.full(3, 9.0))


def test_of_fleets_as_they_are_few_need_the_exact_search(monkeypatch):
    rng, searched = np.random.default_rng(0), []
    monkeypatch.setattr(room, "split", lambda *given, **bounds: searched.append(given) or split(*given, **bounds))
    for count in range(2, 34):
        for _ in range(10):
            speed_W, batch = rng.lognormal(4.6, 0.4, count), 64 * count
            decided(speed_W).split(batch, 1, np.ones(count), np.full(count, float(batch)))
    assert len(searched) < 0.01 * 320
