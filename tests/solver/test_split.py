"""The laws of `split`, over mixed curves, bounds and multiples. Axis: W workers."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from paceline.predictors import Curves
from paceline.solver import Split, SplitStatus, split

# Quarters make many times equal; the second choice makes curves of very different size.
QUARTERS = st.integers(0, 12).map(lambda n: n / 4)
SECONDS = st.one_of(QUARTERS, st.floats(1e-6, 1e3))
SLOPES = st.one_of(QUARTERS, st.floats(1e-9, 1e2), st.floats(1e-20, 1e-14))


@dataclass(frozen=True)
class Problem:
    """Arguments of one call of `split`."""

    curves: Curves
    global_batch: int
    bounds: dict[str, Any]

    def solve(self) -> Split:
        return split(self.curves, self.global_batch, **self.bounds)

    def seconds(self, i: int, size: int) -> float:
        """One worker's time, computed apart from the solver but with the same operations."""
        c = self.curves
        line = float(c.intercept[i]) + float(c.slope[i]) * size
        return 0.0 if size == 0 else max(float(c.floor[i]), line) + float(self.bounds["comm"][i])

    def allowed(self, i: int) -> list[int]:
        low, high = self.bounds["lower"][i], min(self.bounds["upper"][i], self.curves.limit[i])
        return [x for x in range(0, self.global_batch + 1, self.bounds["batch_multiple"]) if low <= x <= high]


@st.composite
def problems(draw: st.DrawFn, workers: int = 4, multiples: int = 12) -> Problem:
    count = draw(st.integers(1, workers))
    batch_multiple = draw(st.sampled_from([1, 1, 2, 8]))
    batch = batch_multiple * draw(st.integers(1, multiples))

    def column(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.float64)

    maybe = st.one_of(st.just(np.inf), st.integers(0, batch).map(float))
    curves = Curves(column(SECONDS), column(SLOPES), column(st.one_of(SECONDS, st.floats(-2, 0))), column(maybe))
    lower = column(st.one_of(st.just(0), st.integers(0, batch // count)))
    comm = column(st.one_of(st.just(0.0), QUARTERS))
    bounds = {"lower": lower, "upper": column(maybe), "batch_multiple": batch_multiple, "comm": comm}
    return Problem(curves, batch, bounds)


def solved(problem: Problem) -> Split:
    try:
        return problem.solve()
    except ValueError:
        assume(False)
        raise


def brute_force(problem: Problem) -> float:
    """Return the shortest makespan over every split there is; infinite if there is none."""
    best = {0: 0.0}
    for i in range(len(problem.curves.slope)):
        longer: dict[int, float] = {}
        for done, makespan in best.items():
            for x in problem.allowed(i):
                longest = max(makespan, problem.seconds(i, x))
                longer[done + x] = min(longest, longer.get(done + x, np.inf))
        best = longer
    return best.get(problem.global_batch, np.inf)


def greedy(problem: Problem) -> float:
    """Return the makespan of giving one batch multiple after the other to whoever would end first: exact, and slow."""
    batch_multiple, allowed = (
        problem.bounds["batch_multiple"],
        [problem.allowed(i) for i in range(len(problem.curves.slope))],
    )
    taken = [choice[0] for choice in allowed]
    times = [problem.seconds(i, x) for i, x in enumerate(taken)]
    queue = [(problem.seconds(i, choice[1]), i) for i, choice in enumerate(allowed) if len(choice) > 1]
    heapq.heapify(queue)
    for _ in range((problem.global_batch - sum(taken)) // batch_multiple):
        times_i, i = heapq.heappop(queue)
        times.append(times_i)
        taken[i] += batch_multiple
        if taken[i] < allowed[i][-1]:
            heapq.heappush(queue, (problem.seconds(i, taken[i] + batch_multiple), i))
    return max(times)


@pytest.mark.slow
@given(problems())
def test_split_is_optimal(problem: Problem) -> None:
    best = brute_force(problem)
    if best == np.inf:
        with pytest.raises(ValueError, match=r"bounds|at least"):
            problem.solve()
    else:
        assert problem.solve().makespan == best


@pytest.mark.slow
@settings(max_examples=60)
@given(problems(workers=20, multiples=2000))
def test_large_split_equals_greedy(problem: Problem) -> None:
    assert solved(problem).makespan == greedy(problem)


@pytest.mark.slow
@given(problems(workers=10, multiples=60))
def test_sizes_keep_sum_bounds_and_multiple(problem: Problem) -> None:
    plan = solved(problem)
    assert plan.sizes.sum() == problem.global_batch
    assert plan.sizes.dtype == np.int64
    assert all(int(x) in problem.allowed(i) for i, x in enumerate(plan.sizes))
    assert plan.seconds.tolist() == [problem.seconds(i, int(x)) for i, x in enumerate(plan.sizes)]
    assert plan.makespan == plan.seconds.max()
    np.testing.assert_array_equal(plan.weights, plan.sizes / problem.global_batch)


@pytest.mark.slow
@given(problems(workers=8, multiples=60), st.randoms(use_true_random=False))
def test_order_of_workers_does_not_matter(problem: Problem, random: Any) -> None:
    plan = solved(problem)
    count = len(plan.sizes)
    order = np.array(random.sample(range(count), count))
    columns = {name: getattr(problem.curves, name)[order] for name in ("floor", "slope", "intercept", "limit")}
    bounds = {name: value[order] if np.ndim(value) else value for name, value in problem.bounds.items()}
    moved = split(Curves(**columns), problem.global_batch, **bounds)
    kind = np.stack([columns["floor"], columns["slope"], columns["intercept"], bounds["comm"]], axis=1)

    def described(sizes: np.ndarray) -> list[tuple[float, ...]]:
        return sorted((*row, float(size)) for row, size in zip(kind, sizes, strict=True))

    if len(np.unique(kind, axis=0)) == count:
        np.testing.assert_array_equal(moved.sizes, plan.sizes[order])
    else:
        assert moved.makespan == plan.makespan
        room = np.minimum(bounds["upper"], columns["limit"]) >= problem.global_batch
        if np.ptp(bounds["lower"]) == 0 and room.all():
            assert described(moved.sizes) == described(plan.sizes[order])


@pytest.mark.slow
@given(problems(workers=8, multiples=60), st.integers(-20, 20))
def test_only_relative_speed_matters(problem: Problem, power: int) -> None:
    assume((problem.curves.slope == 0).any() or problem.curves.slope.min() > 1e-12)
    scale, c = 2.0**power, problem.curves
    scaled = Curves(c.floor * scale, c.slope * scale, c.intercept * scale, c.limit)
    bounds = {**problem.bounds, "comm": problem.bounds["comm"] * scale}
    np.testing.assert_array_equal(split_sizes(scaled, problem, bounds), solved(problem).sizes)


def split_sizes(curves: Curves, problem: Problem, bounds: dict[str, Any]) -> np.ndarray:
    return solved(Problem(curves, problem.global_batch, bounds)).sizes


@pytest.mark.slow
@given(problems(workers=8, multiples=80), st.integers(0, 80))
def test_faster_worker_never_gets_less(problem: Problem, cap: int) -> None:
    count = len(problem.curves.slope)
    upper = max(
        cap * problem.bounds["batch_multiple"], -(-problem.global_batch // count) + problem.bounds["batch_multiple"]
    )
    curves = replace(problem.curves, limit=np.full(count, np.inf))
    comm = problem.bounds["comm"]
    sizes = split(
        curves, problem.global_batch, upper=upper, batch_multiple=problem.bounds["batch_multiple"], comm=comm
    ).sizes
    kind = np.stack([curves.floor, curves.slope, curves.intercept, comm], axis=1)
    no_slower = (kind[:, None] <= kind[None]).all(axis=-1)
    equal = no_slower & no_slower.T
    more = sizes[:, None] - sizes[None]
    assert (more[no_slower & ~equal] >= 0).all()
    assert (np.abs(more[equal]) <= problem.bounds["batch_multiple"]).all()


LEVEL = Curves(floor=[0.0, 1.0], slope=[0.0, 0.0], intercept=[0.0, 0.0], limit=[np.inf, 3.0])


@pytest.mark.slow
@settings(max_examples=60)
@given(problems(workers=5, multiples=30))
@example(Problem(LEVEL, 6, {"lower": [0, 0], "upper": [5, np.inf], "batch_multiple": 1, "comm": [0.0, 0.0]}))
def test_status_is_true(problem: Problem) -> None:
    plan, batch_multiple, count = solved(problem), problem.bounds["batch_multiple"], len(problem.curves.slope)
    unbound = replace(problem.curves, limit=np.full(count, np.inf))
    higher = split(unbound, problem.global_batch, **{**problem.bounds, "upper": None})
    lower = split(problem.curves, problem.global_batch, **{**problem.bounds, "lower": 0})
    with_one_more = np.array([problem.seconds(i, int(x) + batch_multiple) for i, x in enumerate(plan.sizes)])
    has_room = np.array([int(x) + batch_multiple in problem.allowed(i) for i, x in enumerate(plan.sizes)])
    at_lower = np.array([int(x) == problem.allowed(i)[0] for i, x in enumerate(plan.sizes)])
    fewer = [(i, int(x) - batch_multiple) for i, x in enumerate(plan.sizes)]
    level = [x > 0 and x in problem.allowed(i) and problem.seconds(i, x) >= plan.makespan for i, x in fewer]
    sooner, is_last = with_one_more < plan.makespan, plan.seconds == plan.makespan
    truth = {
        SplitStatus.BALANCED: min(higher.makespan, lower.makespan) == plan.makespan,
        SplitStatus.HELD_BY_UPPER: (sooner & ~has_room).any(),
        SplitStatus.HELD_BY_LOWER: at_lower[is_last].all() and (sooner & has_room).any(),
        SplitStatus.IDLE: ((plan.sizes == 0) & has_room).any(),
        SplitStatus.FLAT: ((with_one_more <= plan.makespan) & has_room | level)[is_last].any(),
    }
    assert truth[plan.status]
    if (with_one_more > plan.makespan).all() and (plan.sizes > 0).all():
        assert plan.status is SplitStatus.BALANCED


def test_flat_workers_share_evenly() -> None:
    flat = Curves(np.full(4, 1.0), np.full(4, 0.01), np.zeros(4), np.full(4, np.inf))
    plan = split(flat, 202)
    assert sorted(plan.sizes.tolist()) == [50, 50, 51, 51]
    assert plan.status is SplitStatus.FLAT


def test_flat_workers_are_used_in_proportion() -> None:
    flat = Curves(np.full(2, 1.0), np.array([0.01, 0.02]), np.zeros(2), np.full(2, np.inf))
    assert split(flat, 120).sizes.tolist() == [80, 40]


def test_worker_without_samples_takes_no_time() -> None:
    curves = Curves(np.array([0.1, 9.0]), np.full(2, 0.01), np.zeros(2), np.full(2, np.inf))
    plan = split(curves, 20, comm=0.5)
    assert plan.sizes.tolist() == [20, 0]
    assert plan.seconds.tolist() == [0.7, 0.0]
    assert plan.status is SplitStatus.IDLE


def test_late_lower_bound_delays_no_other_worker() -> None:
    plan = split(Curves.from_speed(np.array([1.0, 100.0, 100.0])), 210, lower=[10, 0, 0])
    assert plan.sizes.tolist() == [10, 100, 100]
    assert plan.status is SplitStatus.HELD_BY_LOWER
