"""PeriodicEvents: events that return are foreseen and do not mislead the next forecast; accidents change nothing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import Auto, BatchTime, PeriodicEvents, Report, named


def served(model, seconds_T, horizon=1):
    """Return the speeds forecast for each iteration, ``horizon`` iterations before it."""
    model.reset(["a"])
    found = [np.nan] * (horizon - 1)
    for seconds in seconds_T:
        found.append(model.predict(horizon=horizon).speed[0])
        model.observe(Report([1.0], [seconds]))
    return np.array(found[: len(seconds_T)])


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    st.integers(16, 150),
    st.floats(1.8, 20.0),
    st.integers(0, 150),
    st.sampled_from(["ewma", "last-value", "huber-ewma"]),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_periodic_event_is_foreseen(period, cost, phase, name, horizon, seed):
    noise_T = np.exp(np.random.default_rng(seed).normal(0.0, 0.02, 6 * period + 100))
    event_T = (np.arange(len(noise_T)) + phase) % period == 0
    found_T = served(PeriodicEvents(name), noise_T * np.where(event_T, cost, 1.0), horizon)
    late_T = np.arange(len(noise_T)) >= len(noise_T) - period
    assert found_T[late_T & event_T] == pytest.approx(1.0 / cost, rel=0.15)
    assert found_T[late_T & ~event_T] == pytest.approx(1.0, rel=0.15)


@pytest.mark.parametrize("period", [24, 125])
def test_auto_foresees_evaluations_among_accidents(period):
    rng = np.random.default_rng(period)
    seconds_T = np.exp(rng.normal(0.0, 0.05, 8 * period))
    event_T = np.arange(len(seconds_T)) % period == period - 1
    seconds_T[event_T] *= 4.0
    accident_T = (rng.random(len(seconds_T)) < 0.004) & ~event_T
    seconds_T[accident_T] *= 6.0
    error_T = np.abs(np.log(served(Auto(), seconds_T) * seconds_T))
    late_T = np.arange(len(seconds_T)) >= 5 * period
    assert np.median(error_T[late_T & event_T]) < 0.15
    assert error_T[late_T & np.roll(event_T, 1) & ~accident_T].max() < 0.25


def test_an_event_that_stays_away_ends_the_schedule():
    seconds_T = np.where((np.arange(400) % 20 == 0) & (np.arange(400) < 205), 3.0, 1.0)
    found_T = served(PeriodicEvents("ewma"), seconds_T)
    assert found_T[[180, 220]] == pytest.approx(1 / 3, rel=0.01)
    assert found_T[221:] == pytest.approx(1.0, rel=0.01)


def test_random_events_cost_next_to_nothing():
    rng = np.random.default_rng(3)
    rate_W = np.repeat([0.01, 0.03, 0.1], 4)
    shape = (1500, len(rate_W))
    seconds_TW = np.exp(rng.normal(0.0, 0.05, shape)) * np.where(rng.random(shape) < rate_W, 3.0, 1.0)
    errors = []
    for model in (PeriodicEvents("huber-ewma"), named("huber-ewma")):
        model.reset([str(w) for w in range(len(rate_W))])
        errors.append([])
        for seconds_W in seconds_TW:
            errors[-1].append(np.log(model.predict().speed * seconds_W))
            model.observe(Report(np.ones(len(rate_W)), seconds_W))
    with_events, alone = np.std(errors, axis=1)
    assert np.mean(with_events / alone) < 1.002


def test_missing_reports_and_a_fleet_that_changes():
    model = PeriodicEvents("ewma")
    model.reset(["a", "b"])
    for k in range(200):
        slow = 3.0 if k % 20 == 10 else 1.0
        if k % 3 == 1:  # nothing from b
            model.observe(Report([1.0, np.nan], [slow, np.nan]))
        model.observe(Report([np.nan, 1.0], [np.nan, 1.0])) if k % 3 == 2 else None
        if k % 3 != 1:
            model.observe(Report([1.0, np.nan], [slow, np.nan]))
    model.leave("b")
    model.join("c")
    for _ in range(10):
        model.observe(Report([1.0, 1.0], [1.0, 1.0]))
    assert model.predict().speed == pytest.approx([1 / 3, 1.0])


def test_batch_time_curves_take_longer_in_an_event():
    model = PeriodicEvents(BatchTime())
    model.reset(["a"])
    for k in range(1, 100):
        size = 40 + 20 * (k % 2)
        model.observe(Report([size], [(0.2 + 0.01 * size) * (3.0 if k % 20 == 0 else 1.0)]))
    event, after = (model.predict(horizon=h).curves.seconds(np.array([50]))[0] for h in (1, 2))
    assert event == pytest.approx(3.0 * after, rel=0.05)
    assert after == pytest.approx(0.7, rel=0.05)
