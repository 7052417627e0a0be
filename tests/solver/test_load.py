"""How many multiples end by a deadline: the most whose computed times do, to the very float. Axis: W workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.solver import assign
from paceline.solver.load import Load, overlapped

SLOPES = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([0.1, 0.3, 1 / 3, 0.0, 1e-320]))
TIMES = st.one_of(st.just(0.0), st.floats(0.0, 100.0), st.sampled_from([0.1, 0.7]))
WORKERS = st.lists(
    st.tuples(TIMES, SLOPES, st.one_of(TIMES, st.floats(-3, 0)), TIMES, st.integers(0, 5), st.integers(0, 40)),
    min_size=1,
    max_size=4,
)


@pytest.mark.slow
@settings(max_examples=80)
@given(WORKERS, st.sampled_from([1, 3]), st.sampled_from([1.0, 1.0, 1.0, 2, 8, np.inf]), st.integers(0, 45))
def test_as_many_are_within_a_deadline_as_are_computed_to_end_by_it_to_the_very_float(
    workers, step, overlap, multiples
):
    floor, slope, intercept, comm, lower, more = map(np.array, zip(*workers, strict=True))
    load = Load(floor, slope, intercept, comm, lower * 1.0, lower + more * 1.0, step, overlap)
    with np.errstate(all="ignore"):
        for i in range(len(workers)):
            own = load.only(np.array([i]))
            end = float(own.seconds(np.array([float(multiples)]))[0])
            for deadline in (np.nextafter(end, -1), end, np.nextafter(end, np.inf), end * 1.5):
                counts = np.arange(lower[i] + 1, lower[i] + more[i] + 1)
                compute = np.maximum(floor[i], intercept[i] + slope[i] * (counts * step))
                seconds = compute + comm[i] if overlap == 1 else overlapped(compute, comm[i], overlap)
                wanted = lower[i] + np.count_nonzero(seconds <= deadline)
                assert own.multiples_within(deadline).tolist() == [wanted]
                assert load.multiples_within(deadline)[i] == wanted
                assert load.multiples_within(np.full(len(workers), deadline))[i] == wanted


def test_each_worker_may_have_a_deadline_of_its_own():
    none = np.zeros(3)
    load = Load(none, np.array([1.0, 0.5, 0.25]), none, none, none, np.full(3, 9.0))
    for overlap in (1.0, 2):
        own = Load(none, load.slope, none, none, none, load.upper, 1, overlap)
        assert own.multiples_within(np.array([2.0, 2.0, 2.0])).tolist() == [2, 4, 8]
        assert own.multiples_within(np.array([0.5, 2.0, 9.0])).tolist() == [0, 4, 9]
    assert load.first.tolist() == [1.0, 0.5, 0.25]
    assert load.rate.tolist() == [1.0, 2.0, 4.0]
    assert load.flat is None


@np.errstate(divide="ignore")
def test_multiples_that_end_with_the_first_are_estimated_where_a_curve_begins_flat():
    none, one = np.zeros(5), np.ones(5)
    slope = np.array([0.1, 0.6, 0.5, 0.0, 0.1])
    load = Load(one, slope, np.array([0, 0, 0, 0, 0.5]), none, np.array([0, 0, 0, 0, 3.0]), one * 50)
    assert load.begins_flat.tolist() == [True, False, True, True, True]
    assert load.flat.tolist() == pytest.approx([10.0, 0.0, 2.0, np.inf, 5.0])
    later = Load(one, slope, none, none, np.array([9, 0, 1, 0, 8.0]), one * 50, 1)
    assert later.begins_flat.tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(("overlap", "seconds"), [(1, 7.0), (2, 5.0), (4, 337**0.25), (8, (3.0**8 + 4.0**8) ** 0.125)])
def test_overlapping_communication_adds_to_the_power_of_the_overlap(overlap, seconds):
    assert overlapped(np.array([3.0]), np.array([4.0]), overlap) == pytest.approx([seconds], rel=1e-12)
    assert overlapped(np.array([3.0, 5.0]), np.array([4.0, 1.0]), np.inf).tolist() == [4.0, 5.0]
    load = Load(*(np.array([one]) for one in (0.0, 1.0, 1.0, 4.0, 0.0, 9.0)), batch_multiple=2, overlap=overlap)
    assert load.seconds(np.array([1.0])) == pytest.approx([seconds], rel=1e-12)
    assert Load(*(np.array([one]) for one in (0.0, 1.0, 1.0, 4.0, 0.0, 9.0))).seconds(np.array([2.0])).tolist() == [7.0]


def test_the_ranks_own_order_is_kept_only_by_those_who_ask_for_it():
    """The slow rank is the first: with the longest sample it would take four times as long."""
    costs, speeds = [8.0, 1.0, 1.0], [1.0, 4.0]
    plain = assign(costs, speeds, padded=True)
    assert plain.owner.tolist() == assign(costs, speeds, padded=True, steady=0.0).owner.tolist() == [1, 0, 0]
    assert assign(costs, speeds, padded=True, steady=2.9).owner.tolist() == [1, 0, 0]
    assert assign(costs, speeds, padded=True, steady=3.1).owner.tolist() == [0, 1, 1]
    assert assign(costs, speeds).counts.tolist() == assign(costs, speeds, padded=False).counts.tolist()
