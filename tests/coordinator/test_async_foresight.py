"""Foresight: sizes beside a slow search for them, stragglers at the bound, and what is forecast before any push."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator.asynchronous import Calibration, stragglers
from paceline.coordinator.asynchronous.rules import (
    BalancedBatches,
    ByForecast,
    ByVersions,
    Full,
    Outlook,
    _affordable,
)
from paceline.coordinator.asynchronous.staleness import Lookahead, Speeds, staleness_reports, straggler_bound
from paceline.coordinator.asynchronous.workers import Member, Workers
from paceline.predictors import LastValue

NAN, INF = math.nan, math.inf


def outlook_of(batch, speed, known=None, overhead=0.0, spread=0.0, sizes=None, staleness=NAN):
    rows = np.zeros(len(speed))
    return Outlook(
        batch,
        np.full(len(speed), batch) if sizes is None else np.array(sizes),
        rows + staleness,
        np.array(speed, dtype=float),
        rows == 0 if known is None else np.array(known),
        rows + overhead,
        rows + spread,
    )


# -- sizes ---------------------------------------------------------------------------------------------------------


def parts_at(stretch, speed, spread):
    """Return the share of a full batch of each where all times are stretched so: no longer than the fastest's."""
    first = speed.index(max(speed))
    return [
        min(1.0, v / speed[first] * math.exp(math.hypot(s, spread[first])) * stretch)
        for v, s in zip(speed, spread, strict=True)
    ]


def shares_of(speed, spread, wire, batch):
    """Return them at the least stretch at which 95 % of the samples a second are left, by a fine search."""
    spread = [0.0 if s == INF else s for s in spread]
    full = [batch / v for v in speed]
    least = 0.95 * sum(1 / (w + f) for w, f in zip(wire, full, strict=True))

    def keeps(stretch):
        parts = parts_at(stretch, speed, spread)
        return sum(p / (w + f * p) for p, w, f in zip(parts, wire, full, strict=True)) >= least

    low, high = 1.0, max(speed) / min(speed) * 1.001
    if keeps(low):
        return parts_at(low, speed, spread)
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return parts_at(high, speed, spread)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.floats(1.0, 50.0), st.sampled_from([0.0, 0.2, INF]), st.sampled_from([0.0, 0.1, 3.0]), st.booleans()
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([32, 1000]),
)
def test_by_forecast_takes_the_shortest_steps_that_keep_nineteen_samples_of_twenty(rows, batch):
    speed, spread, wire, known = map(list, zip(*rows, strict=True))
    found = ByForecast(0.25).sizes(outlook_of(batch, speed, known, wire, spread))
    told = [k for k, is_known in enumerate(known) if is_known]
    shares = [0.25] * len(rows)
    if told:
        for k, share in zip(
            told, shares_of(*([one[k] for k in told] for one in (speed, spread, wire)), batch), strict=True
        ):
            shares[k] = share
    wanted = np.array(shares) * batch
    # The search ends within millionths of the least stretch, on the side that is affordable; parts of samples count.
    assert (found >= np.ceil(wanted * (1 - 1e-6))).all()
    assert (found <= np.ceil(np.minimum(wanted * (1 + 2e-5), batch))).all()
    assert found.dtype == np.int64


def test_the_search_for_the_shortest_steps_ends_on_the_affordable_side_after_twenty_halvings():
    slower, full, wire = np.array([1.0, 4.0, 4.0]), np.array([1.0, 4.0, 4.0]), np.array([1.0, 1.0, 1.0])
    found = _affordable(slower, full, wire)
    stretch = 4.0 / found[1]
    part = 1 / found

    def samples(parts):
        return float((parts / (wire + full * parts)).sum())

    assert samples(part) >= 0.95 * samples(np.ones(3)) > samples(1 / np.maximum(slower / (stretch * (1 - 4e-6)), 1.0))
    halvings = math.log(stretch) / math.log(4.0) * 2**20
    assert halvings == pytest.approx(round(halvings), abs=1e-3)


def test_a_worker_whose_speed_is_not_known_takes_an_eighth_unless_told_and_one_sample_at_least():
    known = [True, False, True]
    assert ByForecast().sizes(outlook_of(32, [10.0, 99.0, 5.0], known)).tolist() == [32, 4, 16]
    assert ByForecast(1.0).sizes(outlook_of(32, [10.0, 99.0, 5.0], known)).tolist() == [32, 32, 16]
    assert ByForecast().sizes(outlook_of(2, [10.0, 1.0, 1e-9], [False, False, True])).tolist() == [1, 1, 2]
    assert ByForecast().sizes(outlook_of(3, [10.0, 1e-3], [True, True])).tolist() == [3, 1]


def test_a_full_batch_is_everybodys_where_nobody_else_pushes():
    assert Full().sizes(outlook_of(7, [1.0, 2.0], sizes=[1, 2])).tolist() == [7, 7]
    assert ByVersions().sizes(outlook_of(7, [1.0], sizes=[1], staleness=9.0)).tolist() == [7]
    assert ByVersions().sizes(outlook_of(7, [1.0, 1.0], sizes=[4, 4], staleness=[0.0, 4.0])).tolist() == [7, 3]
    assert ByVersions().sizes(outlook_of(8, [1.0, 1.0], sizes=[8, 8], staleness=[1e-9, 1.0])).tolist() == [8, 1]


def test_balanced_batches_end_together_with_their_wires_and_nobody_gets_none():
    sizes = BalancedBatches().sizes(outlook_of(30, [20.0, 10.0], overhead=[0.0, 1.5]))
    assert sizes.tolist() == [50, 10]
    assert BalancedBatches().sizes(outlook_of(30, [20.0, 10.0], overhead=[0.0, 90.0])).tolist() == [59, 1]


# -- speeds and stragglers -----------------------------------------------------------------------------------------


def test_a_straggler_is_staler_than_the_bound_and_not_as_stale():
    at_bound = np.array([0.0, 0.0, 0.0, 1.0])
    assert straggler_bound(at_bound) == 1.0
    assert stragglers(at_bound).tolist() == [False] * 4
    assert stragglers(np.array([0.0, 0.0, NAN, np.nextafter(1.0, 2.0)])).tolist() == [False, False, False, True]
    told = staleness_reports("abcd", np.arange(4), 8, at_bound, np.array([0.0, 0.0, NAN, 1.5]))
    assert [one.is_straggler for one in told] == [False, False, False, True]
    assert [(one.worker, one.size, one.batch, one.staleness) for one in told[2:]] == [
        ("c", 2, 8, 0.0),
        ("d", 3, 8, 1.0),
    ]
    assert {(one.bound, one.expected_bound) for one in told} == {(1.0, 1.0)}


def test_the_bound_of_two_workers_is_one_of_theirs():
    assert straggler_bound(np.array([2.0, 4.0])) == 3.0 + 1.5
    assert straggler_bound(np.array([NAN, 4.0])) == INF


def test_a_calibration_has_seen_nothing_at_first_and_a_push_at_the_limit_is_within():
    seen = Calibration()
    assert (seen.pushes, seen.forecast, seen.actual, seen.absolute_error) == (0, 0.0, 0.0, 0.0)
    assert (seen.margin, seen.covered, seen.upper(3.0)) == (0.5, 0.0, 5.0)
    seen.note(3.0, 5)
    assert (seen.pushes, seen.covered, seen.margin) == (1, 1.0, pytest.approx(0.495))
    seen.note(3.0, 5)
    assert (seen.pushes, seen.covered, seen.margin) == (2, 0.5, pytest.approx(0.54))
    seen.margin = 0.004
    seen.note(3.0, 0)
    assert seen.margin == 0.0


def test_a_used_predictor_begins_anew_with_the_fleet_it_is_given():
    predictor = LastValue()
    predictor.reset(["x", "y"])
    assert Speeds(predictor).known.tolist() == []
    assert predictor.workers == ()
    speeds = Speeds(None)
    assert [each.tolist() for each in (*speeds.forecast(), speeds.known, speeds.overhead)] == [[], [], [], []]


# -- the steps to come ---------------------------------------------------------------------------------------------


def joined(ahead, fleet, *names):
    for name in names:
        fleet.members[name] = Member(name)
        ahead.join(name)


def left(ahead, fleet, name):
    del fleet.members[name]
    ahead.leave(name)


def test_the_steps_to_come_follow_the_fleet_as_it_comes_and_goes():
    fleet = Workers()
    ahead = Lookahead(fleet, ByForecast(), 32, LastValue(), least=3)
    assert (ahead.sizes.tolist(), ahead.sizes.dtype, ahead.staleness.tolist()) == ([], np.int64, [])
    joined(ahead, fleet, "a", "b")
    assert [ahead.size(name) for name in "ab"] == [4, 4], "an eighth"
    ahead.report("a", 4, 1.0, 0.0)
    assert [ahead.size(name) for name in "ab"] == [4, 4]
    ahead.report("b", 4, 4.0, 0.0)
    assert [ahead.size(name) for name in "ab"] == [32, 8]
    # Of equal steps each is as stale as the others push meanwhile.
    assert [ahead.expected(name) for name in "ab"] == pytest.approx([1.0, 1.0])
    joined(ahead, fleet, "c")
    assert [ahead.size(name) for name in "abc"] == [32, 8, 4]
    left(ahead, fleet, "a")
    assert [ahead.size(name) for name in "bc"] == [32, 4]
    for name in "bc":
        left(ahead, fleet, name)
    joined(ahead, fleet, "d")
    assert (ahead.size("d"), ahead.expected("d")) == (4, 0.0)
    assert ahead.sizes.tolist() == [4]


def test_without_a_predictor_no_staleness_is_forecast_and_one_sample_is_a_step():
    fleet = Workers()
    ahead = Lookahead(fleet, ByVersions(), 8, None)
    joined(ahead, fleet, "a", "b")
    assert ahead.least == 1
    assert np.isnan([ahead.expected(name) for name in "ab"]).all()
    fleet.members["b"].staleness, fleet.members["a"].staleness = 1e6, 1.0
    for name in "ab":
        ahead.report(name, 1, NAN, NAN)
    assert [ahead.size(name) for name in "ab"] == [8, 1]


def test_a_step_takes_the_wire_besides_computing():
    fleet = Workers()
    ahead = Lookahead(fleet, Full(), 8, LastValue())
    joined(ahead, fleet, "a", "b")
    for name, seconds, wire in (("a", 1.0, 5.0), ("b", 2.0, 0.0)):
        ahead.report(name, 8, seconds, wire)
    # A fifth of 5 s, the smoothing, and 1 s make 2 s, as long as the other computes.
    assert [ahead.expected(name) for name in "ab"] == pytest.approx([1.0, 1.0])
