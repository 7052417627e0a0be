"""Drift of a live job: the share of late reports that is unlike what the predictor was fitted on, told once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator import LoadBalancer
from paceline.coordinator.balanced import reasons as why
from paceline.coordinator.balanced.fitted_range import FittedRange
from paceline.predictors import LastValue, Report
from paceline.predictors.reference import Reference, Spread

CHANGE, LOAD = Spread(1000, 0.0, 0.1), Spread(1000, 0.5, 10.0)
"""Deviations of 0.01 in the log, and of 0.1: five of them are far."""

jumps = st.sampled_from([0.0, 0.0, 0.02, 0.4, np.nan])
loads = st.sampled_from([0.5, 0.6, 1.5, np.nan])
iterations = st.lists(st.tuples(jumps, jumps, st.booleans(), loads, loads), min_size=1, max_size=12)


def told(log_speed, iteration, before):
    """Return the report of an iteration, and which changes and covariates of it are known, and far."""
    *jump, is_told, one, other = iteration
    log_speed = log_speed + np.nan_to_num(jump)
    speed = np.where(np.isnan(jump), np.nan, np.exp(log_speed))
    report = Report([64.0, 64.0], 64.0 / speed, covariates=[[one], [other]] if is_told else None)
    compared = [] if before is None else [abs(np.log(b / a)) for a, b in zip(before, speed, strict=True)]
    covariates = [abs(load - 0.5) for load in (one, other)] if is_told else []
    return log_speed, report, ([c > 0.05 for c in compared if c == c], [c > 0.5 for c in covariates if c == c])


def mirrored(events, fleet_changes_after, repeats):
    """Feed reports to a tracker and to a plain account of the same; yield both after each."""
    tracked, shares, lasts = FittedRange(Reference(CHANGE, (LOAD,))), [0.0, 0.0], False
    log_speed, before = np.log([100.0, 50.0]), None
    for k, iteration in enumerate(events * repeats):
        log_speed, report, far = told(log_speed, iteration, before)
        before = report.speed
        tracked.follow(report)
        for place, each in enumerate(far):
            if each:
                shares[place] += 0.01 * (np.mean(each) - shares[place])
        began = bool(not lasts and max(shares) > 0.05)
        lasts = max(shares) > (0.025 if lasts else 0.05)
        if k % fleet_changes_after == fleet_changes_after - 1:
            tracked.start()
            before = None
        yield tracked, shares, lasts, began


@settings(max_examples=25)
@given(iterations, st.integers(3, 50), st.integers(1, 12))
def test_drift_is_the_fading_share_of_what_is_far_and_is_told_when_it_begins(events, fleet_changes_after, repeats):
    for tracked, shares, lasts, began in mirrored(events, fleet_changes_after, repeats):
        assert tracked.share == pytest.approx(max(shares), abs=1e-12)
        assert tracked.lasts == lasts
        news = tracked.news()
        assert [words for words, _ in news] == [why.left_fitted] * began
        assert [facts for _, facts in news] == [pytest.approx((*shares, 0.05))] * began
        assert tracked.news() == (), "it is told once"


@settings(max_examples=10)
@given(iterations, iterations)
def test_a_comparison_that_is_resumed_goes_on_exactly(before, after):
    first, second = (FittedRange(Reference(CHANGE, (LOAD,))) for _ in range(2))
    log_speed = np.log([100.0, 50.0])
    for k, iteration in enumerate(before * 8 + after):
        log_speed, report, _ = told(log_speed, iteration, None)
        first.follow(report)
        if k >= len(before) * 8:
            second.follow(report)
            assert (second.share, second.lasts, second.news()) == (first.share, first.lasts, first.news())
        if k == len(before) * 8 - 1:
            second.load_state_dict({name: value.copy() for name, value in first.state_dict().items()})


def test_drift_that_began_before_a_resume_is_still_told():
    first, second = (FittedRange(Reference(CHANGE, ())) for _ in range(2))
    for k in range(12):
        first.follow(Report([64.0], [1.0 + k % 2]))
    state = first.state_dict()
    first.follow(Report([64.0], [1.0]))
    second.load_state_dict(state)
    assert second.share < first.share, "a state is a snapshot"
    assert len(second.news()) == 1
    second.load_state_dict({})
    assert (second.share, second.lasts, second.news()) == (0.0, False, ())


def test_a_balancer_compares_every_report_whether_it_plans_or_only_learns():
    predictor, tracked = LastValue(), FittedRange(Reference(CHANGE, ()))
    predictor.reference_ = Reference(CHANGE, ())
    balancer = LoadBalancer(predictor, workers=["a", "b"], global_batch=128)
    for k, speed in enumerate([100.0, 300.0, 301.0, 90.0, 200.0, 400.0, 100.0]):
        report = Report([64.0, 64.0], [64.0 / speed, 0.64])
        tracked.follow(report)
        if k % 3:
            balancer.observe(report)
        else:
            assert balancer.step(report).drift == pytest.approx(tracked.share)
    assert tracked.share > 0
