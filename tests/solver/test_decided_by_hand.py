"""Curves of a decision at the bounds of what a glance proves, and without a search wherever none is needed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import Curves
from paceline.solver import decided as room
from paceline.solver import split
from paceline.solver.decided import FewCurves, ManyCurves, decided


def curves_of(slope, intercept=None, floor=None):
    none = np.zeros(len(slope))
    floor, intercept = (none if one is None else np.array(one) for one in (floor, intercept))
    return Curves(floor, np.array(slope), intercept, np.full(len(slope), np.inf))


def both(slope, *rest):
    return FewCurves(list(slope), *rest), ManyCurves(curves_of(slope, *rest))


def searched(monkeypatch):
    found = []
    monkeypatch.setattr(room, "split", lambda *given, **bounds: found.append(given) or split(*given, **bounds))
    return found


@pytest.mark.parametrize(("workers", "kind"), [(1, FewCurves), (64, FewCurves), (65, ManyCurves)])
def test_up_to_sixty_four_workers_are_few(workers, kind):
    speed = np.arange(1.0, workers + 1)
    assert type(decided(speed)) is type(decided(speed, Curves.from_speed(speed))) is kind


@pytest.mark.parametrize(
    ("slope", "intercept", "batch", "soonest"),
    [
        ([0.5, 0.25], None, 12, 2.0),
        ([1.0, 1.0], [0.0, 2.0], 2, 2.0),  # the second would begin to work as the first ends
        ([1.0, 1.0], [0.0, 2.0], 1, 0.0),  # it would idle, which the formula ignores
        ([1.0, 1.0], [0.0, 2.0], 4, 3.0),
        ([0.0, 1.0], [0.0, 0.0], 4, 0.0),
    ],
)
def test_nothing_ends_before_all_that_work_end_together(slope, intercept, batch, soonest):
    floor = None if intercept is None else [9.0, 9.0]
    few, many = both(slope, intercept, floor)
    assert few.soonest(batch) == many.soonest(batch) == soonest, "floors are left out of the bound"


@pytest.mark.parametrize(
    ("sizes", "step", "low", "high", "proven"),
    [
        ([4, 4], 1, [0, 0], [8, 8], False),  # the first would end a fifth by 5 s, before the second's 8 s
        ([4, 4], 1, [0, 4], [8, 8], True),  # who ends last may give nothing
        ([4, 4], 1, [4, 3], [8, 8], False),
        ([4, 4], 1, [0, 0], [4, 8], True),  # the first may take nothing
        ([4, 4], 1, [0, 0], [5, 8], False),
        ([7, 4], 1, [0, 0], [8, 8], True),  # the first would end one more together with the last
        ([6, 4], 1, [0, 0], [8, 8], False),
        ([4, 4], 4, [0, 0], [8, 8], True),
        ([4, 4], 4, [0, 1], [7, 8], True),
        ([4, 8], 4, [0, 4], [8, 8], False),
        ([4, 8], 4, [0, 5], [8, 8], True),
        ([4, 8], 4, [0, 4], [7, 8], True),
        ([8, 0], 1, [0, 0], [9, 9], False),
    ],
)
def test_a_glance_proves_sizes_that_nobody_may_or_can_change_for_the_better(sizes, step, low, high, proven):
    for slope, *rest in (([1.0, 2.0],), ([1.0, 2.0], [0.0, 0.0], [0.0, 0.0])):
        for curves in both(slope, *rest):
            assert curves.proven(np.array(sizes), step, np.array(low, float), np.array(high, float)) is proven


@settings(max_examples=60)
@given(
    st.lists(st.tuples(*(st.integers(0, 4) for _ in range(3)), st.integers(0, 9)), min_size=1, max_size=4),
    st.sampled_from([1, 2]),
)
def test_what_is_proven_at_a_glance_follows_from_what_one_more_multiple_takes(workers, step):
    slope, intercept, floor, multiples = zip(*workers, strict=True)
    sizes = np.array(multiples) * step
    low, high = np.maximum(sizes - np.arange(len(sizes)) % 3, 0.0), sizes + np.arange(len(sizes)) % 4
    few, many = both(*([float(one) for one in row] for row in (slope, intercept, floor)))

    def takes(i, size):
        return max(floor[i], intercept[i] + slope[i] * size) if size else 0

    everyone = range(len(sizes))
    makespan = max(takes(i, sizes[i]) for i in everyone)
    stuck = any(takes(i, sizes[i]) == makespan and sizes[i] - step < low[i] for i in everyone)
    later = [takes(i, sizes[i] + step) for i in everyone if sizes[i] + step <= high[i]]
    for curves in (few, many):
        assert curves.proven(sizes, step, low, high) is (stuck or all(makespan <= one for one in later))
        assert curves.makespan(sizes) == curves.evaluate(sizes).makespan == makespan


@pytest.mark.parametrize(
    ("slope", "batch", "step", "low", "high", "sizes"),
    [
        ([0.5, 0.25], 12, 1, [0, 0], [12, 12], [4, 8]),  # nothing is missing after rounding down
        ([0.5, 0.24], 11, 1, [0, 0], [12, 8], [3, 8]),  # one is missing, and goes to who ends it first
        ([0.5, 0.25], 13, 1, [4, 9], [4, 9], [4, 9]),
        ([0.5, 0.25], 12, 4, [0, 0], [12, 12], [4, 8]),
        ([0.5, 0.25, 0.2], 22, 2, [2, 2, 2], [22, 22, 22], [4, 8, 10]),
        ([1.0, 1.1], 2, 1, [0, 0], [9, 9], [1, 1]),
    ],
)
def test_where_rounding_the_fluid_split_finds_the_best_nothing_is_searched(
    slope, batch, step, low, high, sizes, monkeypatch
):
    met = searched(monkeypatch)
    for few in (FewCurves(slope), FewCurves(slope, [0.0] * len(slope), [0.0] * len(slope))):
        found = few.split(batch, step, np.array(low, float), np.array(high, float))
        assert found.sizes.tolist() == sizes
        exact = split(curves_of(slope), batch, lower=low, upper=high, batch_multiple=step)
        assert (found.makespan, found.status, found.seconds.tolist()) == (
            exact.makespan,
            exact.status,
            exact.seconds.tolist(),
        )
    assert not met


@pytest.mark.parametrize(
    ("slope", "intercept", "batch", "low", "high"),
    [
        ([1.0, 1.0], None, 3, [0, 0], [9, 9]),  # two splits end together
        ([1.0, 2.0], None, 9, [0, 0], [5, 9]),  # a bound holds one back
        ([1.0, 2.0], None, 9, [0, 5], [9, 9]),
        ([0.0, 2.0], None, 9, [0, 0], [9, 9]),  # a level line
        ([1.0, 9.0], None, 2, [0, 0], [9, 9]),  # one gets nothing
        ([1.0, 1.0], [0.0, 7.0], 5, [0, 0], [9, 9]),  # one would begin too late
    ],
)
def test_where_it_does_not_the_exact_search_decides(slope, intercept, batch, low, high, monkeypatch):
    met, none = searched(monkeypatch), [0.0, 0.0]
    few = FewCurves(slope, intercept, none) if intercept else FewCurves(slope)
    found = few.split(batch, 1, np.array(low, float), np.array(high, float))
    exact = split(curves_of(slope, intercept), batch, lower=low, upper=high)
    assert (found.sizes.tolist(), found.status) == (exact.sizes.tolist(), exact.status)
    assert len(met) == 1


def test_memory_limits_are_the_callers_bounds_and_not_the_curves_own():
    speed = np.array([1.0, 1.0])
    curves = Curves(np.zeros(2), 1 / speed, np.zeros(2), np.array([3.0, 3.0]))
    for one in (ManyCurves(curves), ManyCurves(curves).stretched(np.array([2.0, 2.0])), decided(speed, curves)):
        assert one.split(20, 1, np.zeros(2), np.full(2, 20.0)).sizes.tolist() == [10, 10]
        assert one.evaluate(np.array([10, 10])).makespan in {10.0, 20.0}


@settings(max_examples=30)
@given(st.lists(st.tuples(*(st.floats(0.1, 9) for _ in range(4))), min_size=1, max_size=5), st.booleans())
def test_stretched_curves_take_as_many_times_as_long_whatever_is_asked_of_them(workers, straight):
    slope, intercept, floor, factor = map(list, zip(*workers, strict=True))
    rest = () if straight else (intercept, floor)
    stretched = [[value * f for value, f in zip(line, factor, strict=True)] for line in (slope, *rest)]
    for one, other in zip(both(slope, *rest), both(*stretched), strict=True):
        one, sizes = one.stretched(np.array(factor)), np.arange(1, len(slope) + 1)
        assert one.evaluate(sizes).seconds.tolist() == other.evaluate(sizes).seconds.tolist()
        assert one.soonest(40) == other.soonest(40)


@pytest.mark.parametrize("multiple", [1, 4, 8])
def test_bounds_and_multiples_of_a_split_are_those_that_were_asked_for(multiple):
    low, high = np.array([0.0, 8.0, 16.0]), np.array([64.0, 40.0, 24.0])
    slope = [1.0, 2.0, 9.0]
    sizes_W = split(curves_of(slope), 96, lower=low, upper=high, batch_multiple=multiple).sizes
    assert not (sizes_W % multiple).any()
    for one in both(slope):
        assert one.split(96, multiple, low, high).sizes.tolist() == sizes_W.tolist()
