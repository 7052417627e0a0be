"""Seasonal: it finds periods, and does no harm where there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import Report, checks
from paceline.predictors.averages.seasonal import LONGEST, SHORTEST, Seasonal


def served(seconds_T):
    model = Seasonal()
    model.reset(["a"])
    found = []
    for seconds in seconds_T:
        found.append(model.predict().speed[0])
        model.observe(Report([1.0], [seconds]))
    return np.array(found)


@pytest.mark.slow
@settings(derandomize=True, max_examples=15, deadline=None)
@given(st.integers(SHORTEST, LONGEST), st.floats(1.5, 5.0), st.integers(0, 60))
def test_event_of_any_period_is_foreseen(period, cost, phase):
    iterations = np.arange(8 * period + 60)
    slow_T = (iterations + phase) % period == 0
    found = served(np.where(slow_T, cost, 1.0))
    late = slice(-period, None)
    assert found[late][slow_T[late]].max() < 1.0 / cost + 0.7 * (1.0 - 1.0 / cost)
    assert found[late][~slow_T[late]].min() > 0.6


@pytest.mark.slow
def test_noise_without_period_near_level():
    rng = np.random.default_rng(0)
    log_T = rng.normal(0.0, 0.1, 1500)
    error = np.std(np.log(served(np.exp(log_T)))[200:] + log_T[200:])
    assert error < 1.12 * 0.1


@pytest.mark.slow
def test_it_keeps_the_contract_of_every_predictor():
    assert "survives_gaps" in checks.run(Seasonal)
