"""The rules of asynchronous schemes, each beside a slow account of what it says."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous.optimizer import flaw, is_finite
from paceline.coordinator.asynchronous.rules import (
    Adaptive,
    ByVersions,
    Mean,
    Outlook,
    Paced,
    Ranged,
    _certainly_slower,
)
from paceline.coordinator.asynchronous.staleness import (
    Calibration,
    Speeds,
    StalenessReport,
    expected_staleness,
    straggler_bound,
)
from paceline.coordinator.asynchronous.workers import Member, Stamp, Workers, WorkerStep
from paceline.predictors import EWMA, LastValue, Report

LAWS = settings(max_examples=60)
TIMES = st.integers(0, 40).map(lambda quarter: quarter / 4)


def fleet_of(*members, **more):
    return Workers(members={member.name: member for member in members}, **more)


def at_step(name, version, **more):
    return Member(name, step=WorkerStep(Stamp(version, 0), None), **more)


# -- gates -------------------------------------------------------------------------------------------------------


@LAWS
@given(st.lists(TIMES, max_size=2).map(sorted), st.lists(TIMES, max_size=2).map(sorted), st.integers(0, 3), st.data())
def test_dssp_grants_the_fewest_extra_steps_after_which_the_wait_is_shortest(fast, slow, low, data):
    """Only when the fastest passes the lower bound; whoever has extra steps uses one up with each push."""
    high, ahead, extra = data.draw(st.integers(low, 8)), data.draw(st.integers(0, 5)), data.draw(st.integers(0, 2))
    other = data.draw(st.integers(0, 6))
    one = Member("fast", clock=ahead, pushed=tuple(fast), extra=extra)
    fleet = fleet_of(one, Member("slow", clock=0, pushed=tuple(slow)), Member("other", clock=other))
    Ranged(low, high).pushed(one, fleet)
    waits = {0: 0.0}
    if len(fast) == len(slow) == 2 and fast[1] > fast[0] and slow[1] > slow[0]:
        for steps in range(high - low + 1):
            ready, next_push = fast[1] + steps * (fast[1] - fast[0]), 2 * slow[1] - slow[0]
            while next_push < ready - 1e-9:
                next_push += slow[1] - slow[0]
            waits[steps] = next_push - ready
    best = min(steps for steps, wait in waits.items() if wait <= min(waits.values()) + 1e-6)
    passes = ahead == low + 1 and ahead >= other
    assert one.extra == (extra - 1 if extra else best if passes else 0)
    assert Ranged(low, high).may_start(one, fleet) == (one.extra > 0 or ahead <= low)


@LAWS
@given(st.integers(-6, 9), st.integers(1, 8), st.integers(1, 5))
def test_a_mean_is_ready_with_so_many_pushes_or_with_all_but_so_many(wanted, pushes, count):
    fleet = fleet_of(*(Member(str(k)) for k in range(count)))
    enough = max(1, min(wanted, count) if wanted > 0 else count + wanted)
    assert Mean(wanted).ready(pushes, fleet, None) == (pushes >= enough)


@LAWS
@given(
    st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=4),
    st.none() | st.integers(0, 5),
    st.integers(1, 6),
    st.sampled_from([0.0, 2.4, 2.5, 2.6]),
)
def test_a_paced_update_waits_only_for_steps_at_the_bound_and_for_one_push_of_each_unless_much_is_lost(
    versions, bound, pushes, lost
):
    members = [Member(str(k)) if v is None else at_step(str(k), v) for k, v in enumerate(versions)]
    fleet = fleet_of(*members, version=9, pushes=100, lost=lost)
    at_bound = bound is not None and any(v is not None and 9 - v >= bound for v in versions)
    gives_up = pushes >= len(versions) and lost <= 2.5
    assert Paced().ready(pushes, fleet, bound) == (not at_bound or gives_up)


# -- batches -----------------------------------------------------------------------------------------------------


@LAWS
@given(st.lists(st.tuples(st.floats(0, 30) | st.just(math.nan), st.integers(1, 32)), min_size=2, max_size=6))
def test_by_versions_sizes_move_half_the_way_in_the_log_towards_the_staleness_of_equals(rows):
    staleness, sizes = zip(*rows, strict=True)
    wanted = [n * math.sqrt((len(rows) - 1) / max(s, 1e-6) if s > 0 else 1.0) for s, n in rows]
    scaled = [32 * one / max(wanted) for one in wanted]
    nothing = np.zeros(len(rows))
    outlook = Outlook(32, np.array(sizes), np.array(staleness), nothing + 1, nothing > 0, nothing, nothing)
    found = ByVersions().sizes(outlook)
    assert found.tolist() == [max(1, math.floor(one * (1 + 1e-9))) for one in scaled]


@LAWS
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 2)), min_size=1, max_size=6))
def test_a_worker_is_certainly_slower_by_the_ratio_of_speeds_less_one_deviation_of_it(rows):
    speed, spread = map(np.array, zip(*rows, strict=True))
    fastest = int(np.argmax(speed))
    wanted = [
        max(1.0, speed[fastest] / v * math.exp(-math.sqrt(s**2 + spread[fastest] ** 2)))
        for v, s in zip(speed, spread, strict=True)
    ]
    assert _certainly_slower(speed, spread) == pytest.approx(wanted)


# -- foresight ---------------------------------------------------------------------------------------------------


@LAWS
@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_a_step_is_as_stale_as_others_push_in_its_time(seconds):
    wanted = [sum(own / other for k, other in enumerate(seconds) if k != w) for w, own in enumerate(seconds)]
    assert expected_staleness(np.array(seconds)) == pytest.approx(wanted, abs=1e-9)


@LAWS
@given(st.lists(st.floats(0, 50) | st.just(math.nan), max_size=8))
def test_a_straggler_is_beyond_three_deviations_of_the_fresher_half_and_half_the_median_and_one(staleness):
    known = [one for one in staleness if one == one]
    found = straggler_bound(np.array(staleness))
    if len(known) < 2:
        assert found == math.inf
        return
    median = np.median(known)
    fresher = [one for one in known if one <= median]
    deviation = 1.4826 * np.median([abs(one - np.median(fresher)) for one in fresher])
    assert found == pytest.approx(median + max(3 * deviation, 0.5 * median, 1.0))


@LAWS
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 40)), min_size=1, max_size=30))
def test_a_calibration_holds_means_and_moves_its_limit_in_the_ratio_of_nine_to_one(pushes):
    seen, margin, within = Calibration(), 0.5, []
    for forecast, actual in pushes:
        assert seen.upper(forecast) == pytest.approx(forecast + margin * (forecast + 1))
        within.append(actual <= seen.upper(forecast))
        seen.note(forecast, actual)
        margin = max(margin - 0.005 if within[-1] else margin + 0.045, 0.0)
    forecasts, actuals = map(np.array, zip(*pushes, strict=True))
    assert seen.pushes == len(pushes)
    wanted = [forecasts.mean(), actuals.mean(), abs(forecasts - actuals).mean(), np.mean(within), margin]
    assert [seen.forecast, seen.actual, seen.absolute_error, seen.covered, seen.margin] == pytest.approx(wanted)


MAYBE = st.sampled_from([math.nan, 2.0, 9.0])


@given(MAYBE, MAYBE, st.sampled_from([math.inf, 4.6, 9.0]), st.sampled_from([math.inf, 4.6, 9.0]))
def test_a_staleness_report_says_what_is_known_and_calls_a_straggler_who_is_beyond_either_bound(
    staleness, expected, bound, expected_bound
):
    told = StalenessReport(
        worker="a",
        size=4,
        batch=8,
        staleness=staleness,
        expected=expected,
        bound=bound,
        expected_bound=expected_bound,
    )
    is_one = staleness > bound or expected > expected_bound
    limit = "" if bound == math.inf else f", where {bound:.2g} are the limit of the usual"
    seen = "" if staleness != staleness else f"its pushes have been {staleness:.0f} versions stale{limit}; "
    ahead = "" if expected != expected else f"its next push is expected to be {expected:.0f} versions stale; "
    kind = "a straggler" if is_one else "no straggler"
    assert told.why == f"a is {kind}: {seen}{ahead}it takes 4 of 8 samples"


PUSHES = st.tuples(
    st.sampled_from("abc"),
    st.integers(1, 9),
    st.sampled_from([0.5, 2.0, 0.0, -1.0, math.nan, math.inf]),
    st.sampled_from([0.0, 0.3, -1.0, math.nan, math.inf]),
)


@LAWS
@given(st.lists(PUSHES | st.sampled_from(["join", "leave"]), max_size=25))
def test_a_round_is_as_many_pushes_as_workers_and_its_sums_are_what_the_predictor_learns(events):
    speeds, plain, workers = Speeds(LastValue()), LastValue(), ["a", "b", "c"]
    speeds.reset(workers)
    plain.reset(workers)
    overhead, known, sums, pushes = dict.fromkeys("abc", 0.0), set(), {}, 0
    for event in events:
        if event in ("join", "leave"):
            if (event == "join") == ("d" in workers):
                continue
            getattr(speeds, event)("d")
            getattr(plain, event)("d")
            workers = [*"abc", "d"] if event == "join" else [*"abc"]
            overhead["d"], sums, pushes = 0.0, {}, 0
            known.discard("d")
        else:
            worker, samples, seconds, comm = event
            pushes += 1
            if 0 < seconds < math.inf:
                before = sums.get(worker, (0, 0.0))
                sums[worker] = before[0] + samples, before[1] + seconds
            if 0 <= comm < math.inf:
                overhead[worker] = 0.8 * overhead[worker] + 0.2 * comm
            assert speeds.report(*event) == (pushes == len(workers))
            if pushes == len(workers):
                rows = [sums.get(name, (math.nan, math.nan)) for name in workers]
                plain.observe(Report(*map(list, zip(*rows, strict=True))))
                known |= set(sums)
                sums, pushes = {}, 0
        assert speeds.overhead == pytest.approx([overhead[name] for name in workers])
        assert speeds.known.tolist() == [name in known for name in workers]
        wanted = plain.predict()
        assert all(map(np.array_equal, speeds.forecast(), (wanted.speed, wanted.spread)))


def test_without_a_predictor_all_are_alike_and_known():
    speeds = Speeds(None)
    speeds.reset(["a", "b"])
    assert [each.tolist() for each in speeds.forecast()] == [[1.0, 1.0], [0.0, 0.0]]
    assert speeds.known.tolist() == [True, True]
    speeds.join("c")
    speeds.leave("a")
    assert [speeds.report(name, 4, 1.0, 0.5) for name in "bc"] == [False, True]
    assert speeds.overhead == pytest.approx([0.1, 0.1])


def test_a_new_fleet_is_told_to_the_predictor():
    predictor = EWMA()
    speeds = Speeds(predictor)
    speeds.reset(["a"])
    speeds.join("b")
    assert predictor.workers == ("a", "b")
    speeds.leave("a")
    assert predictor.workers == ("b",)


# -- gradients ---------------------------------------------------------------------------------------------------


@LAWS
@given(
    st.lists(st.sampled_from([0.0, 1.5, -3e38, 1e200, math.nan, math.inf, -math.inf]), max_size=6),
    st.sampled_from([np.float32, np.float64]),
)
def test_a_gradient_is_finite_if_all_its_numbers_are_and_its_flaw_counts_those_that_are_not(numbers, kind):
    with np.errstate(over="ignore"):
        values = np.array(numbers, dtype=kind)
    bad = int((~np.isfinite(values)).sum())
    assert is_finite(values) == (bad == 0)
    said = f"{bad} of its {len(numbers)} numbers {'is' if bad == 1 else 'are'} NaN or infinite" if bad else ""
    assert flaw(values, np.zeros(len(numbers), kind)) == said


@LAWS
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(-3, 3), st.booleans()), max_size=8))
def test_a_gradient_that_is_undone_leaves_the_mean_squares_as_they_were_and_states_are_snapshots(steps):
    rule, squares = Adaptive(strength=2.0, memory=0.9).start(), {}
    for worker, gradient, is_undone in steps:
        mean = 0.1 * gradient**2 + (0.9 * squares[worker] if worker in squares else 0.0)
        moved = rule.compensated(worker, np.array([gradient]), np.array([1.5]), np.array([1.0]))
        assert moved == pytest.approx([gradient + 2.0 / math.sqrt(mean + 1e-10) * gradient**2 * 0.5])
        if is_undone:
            rule.undo()
        else:
            squares[worker] = mean
        state = rule.state_dict()
        assert {name: value.item() for name, value in state.items()} == pytest.approx(squares)
        resumed = Adaptive(strength=2.0, memory=0.9).start()
        resumed.load_state_dict(state)
        for value in state.values():
            value[:] = 99.0
        for one in (rule, resumed):
            assert {name: value.item() for name, value in one.squares.items()} == pytest.approx(squares)
        resumed.undo()
        assert {name: value.item() for name, value in resumed.squares.items()} == pytest.approx(squares)
