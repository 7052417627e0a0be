"""Calibration: positions of speeds in their forecast distributions, and what errors still tell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.eval.residuals import Residuals, position, residuals
from paceline.predictors import Forecast

SPREADS = st.floats(0.01, 2.0)


@given(st.floats(0.02, 0.98), st.floats(1e-3, 1e3), SPREADS)
def test_position_inverts_normal_quantiles(chance, speed, spread):
    forecast = Forecast(speed=np.array([speed]), spread=np.array([spread]))
    assert position(forecast, forecast.quantile(chance)) == pytest.approx([chance], abs=1e-6)


@given(st.floats(0.02, 0.98), st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5))
def test_position_inverts_tracked_quantiles(chance, steps):
    levels, speeds = (0.05, 0.25, 0.5, 0.75, 0.95), np.exp(np.cumsum(steps))
    untracked = np.full(5, np.nan)
    forecast = Forecast(
        speed=speeds[[2, 2]], spread=np.array([0.1, 0.1]), levels=levels, quantiles=np.stack([speeds, untracked])
    )
    assert position(forecast, forecast.quantile(chance)) == pytest.approx([chance] * 2, abs=1e-6)


def test_position_missing_and_exact():
    forecast = Forecast(speed=np.array([2.0, 2.0, 2.0]), spread=np.array([0.1, 0.0, np.inf]))
    np.testing.assert_array_equal(position(forecast, np.array([np.nan, 2.0, 5.0])), [np.nan, 0.5, 0.5])


@pytest.mark.parametrize(
    ("spread", "shift", "words"),
    [
        (0.1, 1.0, "right"),
        (0.05, 1.0, "too narrow"),
        (0.2, 1.0, "too wide"),
        (0.1, 1.1, "too high"),
        (0.1, 0.9, "too low"),
    ],
)
def test_residuals_name_interval_misfit(spread, shift, words):
    rng = np.random.default_rng(0)
    speed_TW = 100 * np.exp(0.1 * rng.normal(size=(500, 2)))
    forecast = Forecast(speed=np.full(2, 100.0 * shift), spread=np.full(2, spread))
    left = residuals(forecast.speed - speed_TW, np.stack([position(forecast, speed_W) for speed_W in speed_TW]))
    said = Residuals.joined({"job": left}, {"job": 2})
    assert said["intervals"] == words
    assert said["predictable"] == 0.0, "white noise"


def test_errors_that_follow_each_other_are_counted():
    rng = np.random.default_rng(0)
    errors_TW = rng.normal(size=(300, 2))
    errors_TW[:, 1] = np.cumsum(errors_TW[:, 1])
    left = residuals(errors_TW, np.full((300, 2), 0.5))
    assert Residuals.joined({"job": left}, {"job": 2})["predictable"] == 0.5
