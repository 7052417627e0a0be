"""The rules among the fastest splits, spelled out one multiple after the other; and the first reason that holds."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_split import Problem, problems, solved

from paceline.predictors import Curves
from paceline.solver import Status, evaluate, split
from paceline.solver import share as selection

FREE = {"lower": [0.0] * 2, "upper": [np.inf] * 2, "comm": [0.0] * 2, "overlap": 1, "batch_multiple": 1}


def ends(problem, worker, size):
    """When a worker ends so many samples; it begins even for none."""
    curves, bounds = problem.curves, problem.bounds
    line = float(curves.intercept[worker]) + float(curves.slope[worker]) * size
    return problem.with_comm(max(float(curves.floor[worker]), line), float(bounds["comm"][worker]))


def by_rules(problem):
    """The sizes that the rules name, in multiples of each worker."""
    step, workers = problem.bounds["batch_multiple"], range(len(problem.curves.slope))
    total = problem.global_batch // step
    low, high = ([problem.allowed(i)[place] // step for i in workers] for place in (0, -1))
    times = sorted(ends(problem, i, n * step) for i in workers for n in range(low[i] + 1, high[i] + 1))
    if sum(low) == total:
        return low
    deadline = times[total - sum(low) - 1]
    most = [ended(problem, i, low[i], high[i], deadline) for i in workers]
    last = [i for i in workers if most[i] > low[i]]
    if sum(most) - total >= len(last):
        # Used alike: of what its curve alone allows by the deadline, nobody does a larger share than it must.
        able = [max(ended(problem, i, low[i], total, deadline), 1) for i in workers]
        uses = sorted(1 / able[i] * n for i in workers for n in range(low[i] + 1, most[i] + 1))
        level = uses[total - sum(low) - 1]
        most = [max([low[i], *(n for n in range(most[i] + 1) if 1 / able[i] * n <= level)]) for i in workers]
        last = [i for i in workers if most[i] > low[i] and 1 / able[i] * most[i] == level]
    keys = [problem.bounds["comm"], *(getattr(problem.curves, name) for name in ("floor", "intercept", "slope"))]
    order = sorted(last, key=lambda i: (ends(problem, i, most[i] * step), *(key[i] for key in keys), i))
    for i in order[len(order) - (sum(most) - total) :]:
        most[i] -= 1
    return most


def ended(problem, worker, low, high, deadline):
    step = problem.bounds["batch_multiple"]
    return max([low, *(n for n in range(low + 1, high + 1) if ends(problem, worker, n * step) <= deadline)])


@pytest.mark.slow
@settings(max_examples=80)
@given(problems(workers=6, multiples=40), st.sampled_from([selection.RANKABLE, -1000]))
@example(Problem(Curves(np.ones(2), np.full(2, 0.01), np.zeros(2), np.array([np.inf, 50.0])), 148, FREE), 256)
@example(Problem(Curves(np.ones(2), np.full(2, 0.01), np.zeros(2), np.array([np.inf, 50.0])), 149, FREE), 256)
def test_of_all_fastest_splits_the_rules_choose_one(problem, rankable):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "RANKABLE", rankable)
        plan = solved(problem)
    assert (plan.sizes // problem.bounds["batch_multiple"]).tolist() == by_rules(problem)


def test_flat_workers_of_which_one_has_little_room_give_back_as_the_rules_say():
    """By 1 s each could do a hundred samples, but the second has room for fifty."""
    curves = Curves(np.ones(2), np.full(2, 0.01), np.zeros(2), np.array([np.inf, 50.0]))
    assert split(curves, 149).sizes.tolist() == [100, 49], "one of those that end last gives one back"
    assert split(curves, 148).sizes.tolist() == [98, 50], "all would have to: the most used give"
    assert split(curves, 99).sizes.tolist() == [50, 49], "both are used to half, up to a sample"


def first_reason(problem, sizes):
    """The first status, in their order, whose condition holds."""
    step, workers = problem.bounds["batch_multiple"], range(len(sizes))
    now, later = ([ends(problem, i, sizes[i] + more) for i in workers] for more in (0, step))
    now = [time if size else 0.0 for time, size in zip(now, sizes, strict=True)]
    least, most = ([problem.allowed(i)[place] for i in workers] for place in (0, -1))
    last, room = [i for i in workers if now[i] == max(now)], [i for i in workers if sizes[i] < most[i]]
    sooner = [i for i in workers if later[i] < max(now)]
    if min(sizes) > 0 and min(later) > max(now):
        return Status.BALANCED
    if all(sizes[i] == least[i] for i in last) and set(sooner) & set(room):
        return Status.HELD_BY_LOWER
    if set(sooner) - set(room):
        return Status.HELD_BY_UPPER
    if any(sizes[i] == 0 for i in room):
        return Status.IDLE
    return Status.FLAT if any(later[i] <= max(now) for i in set(last) & set(room)) else Status.BALANCED


@pytest.mark.slow
@settings(max_examples=60)
@given(problems(workers=5, multiples=30))
def test_the_status_is_the_first_whose_condition_holds(problem):
    plan = solved(problem)
    assert plan.status is first_reason(problem, plan.sizes.tolist())


def test_who_may_take_nothing_is_no_reason_unless_it_would_end_sooner():
    for slow, status in ((1.0, Status.BALANCED), (0.1, Status.BALANCED), (0.05, Status.HELD_BY_UPPER)):
        curves = Curves(np.zeros(3), np.array([0.01, 0.01, slow]), np.zeros(3), np.array([np.inf, np.inf, 0.0]))
        plan = split(curves, 20)
        assert plan.sizes.tolist() == [10, 10, 0]
        assert plan.status is status, slow


def test_one_more_sample_in_the_same_time_counts_only_for_those_that_end_last():
    """The second would end another sample together with the first, which ends last, and one more would be later."""
    plan = split(Curves.from_speed(np.array([1.0, 0.5])), 5)
    assert (plan.sizes.tolist(), plan.seconds.tolist()) == ([4, 1], [4.0, 2.0])
    assert plan.status is Status.BALANCED


def test_arguments_left_out_bound_nothing_cost_nothing_and_spare_nobody():
    curves = Curves(np.zeros(2), np.array([1.0, 3.0]), np.array([0.0, 1.0]), np.full(2, np.inf))
    for batch in (1, 2, 3, 8):
        plan = split(curves, batch)
        told = split(
            curves, batch, lower=0, upper=None, batch_multiple=1, spread=[0.1, 0.9], risk=0.0, comm=0.0, overlap=1.0
        )
        for name in ("sizes", "seconds", "makespan", "status"):
            assert np.array_equal(getattr(plan, name), getattr(told, name))
    assert split(curves, 1).sizes.tolist() == [1, 0]


@pytest.mark.parametrize("sizes", [[3, -1], [3, np.nan], [np.inf, 3], [1, 2, 3], -1])
def test_sizes_that_cannot_be_are_not_evaluated(sizes):
    with pytest.raises(ValueError, match="sizes must"):
        evaluate(Curves.from_speed(np.array([10.0, 20.0])), sizes)


def test_given_sizes_may_be_one_number_for_all_and_exceed_memory():
    curves = Curves(np.array([0.5, 0.0]), np.array([0.1, 0.05]), np.zeros(2), np.array([2.0, 2.0]))
    told = evaluate(curves, 4)
    assert (told.sizes.tolist(), told.seconds.tolist()) == ([4, 4], [0.5, 0.2])
    assert told.weights.tolist() == [0.5, 0.5]
    assert evaluate(curves, [0, 4]).seconds.tolist() == [0.0, 0.2]
    assert evaluate(curves, 0).makespan == 0.0


def test_the_largest_batch_is_one_whose_sums_a_float_holds_exactly():
    largest = 2**53
    assert split(Curves.from_speed(np.array([5.0])), largest).sizes.tolist() == [largest]
    assert split(Curves.from_speed(np.array([1.0, 1.0])), largest // 2).sizes.tolist() == [largest // 4] * 2
    assert split(Curves.from_speed(np.array([1.0, 1.0])), largest, batch_multiple=2).sizes.sum() == largest
    with pytest.raises(ValueError, match=r"at most 2\*\*53 multiples divided by the 2 workers.* got 4503599627370497"):
        split(Curves.from_speed(np.array([1.0, 1.0])), largest // 2 + 1)
    with pytest.raises(ValueError, match=rf"at most 2\*\*53 samples, got {largest + 1}"):
        split(Curves.from_speed(np.array([5.0])), largest + 1)


def test_bounds_that_leave_exactly_one_split_are_taken():
    curves = Curves.from_speed(np.array([1.0, 100.0, 100.0]))
    for bounds in ({"lower": [10, 4, 2]}, {"upper": [10, 4, 2]}, {"lower": [10, 4, 2], "upper": [10, 4, 2]}):
        assert split(curves, 16, **bounds).sizes.tolist() == [10, 4, 2]
    for bounds, says in (
        ({"lower": [10, 4, 3]}, r"lower bounds sum to 17, more than the global_batch 16: lower them$"),
        ({"upper": [10, 4, 1]}, r"upper bounds and memory limits sum to 15, less than the global_batch 16: raise"),
        ({"lower": [0, 5, 0], "upper": [16, 4, 2]}, r"worker 1 .* at least 5 samples \(lower\) and at most 4 \(upper"),
    ):
        with pytest.raises(ValueError, match=says):
            split(curves, 16, **bounds)


def test_one_plain_number_may_stand_for_all_workers_but_never_for_curves():
    curves = {"floor": np.zeros(2), "slope": np.ones(2), "intercept": np.zeros(2), "limit": np.full(2, 9.0)}
    assert split(SimpleNamespace(**curves), 4, lower=1, upper=3, comm=np.array(2.0)).seconds.tolist() == [4.0, 4.0]
    for name in ("floor", "intercept", "limit"):
        with pytest.raises(ValueError, match=rf"curves\.{name} must hold one number for each of the 2 workers, got"):
            split(SimpleNamespace(**{**curves, name: 1.0}), 4)
