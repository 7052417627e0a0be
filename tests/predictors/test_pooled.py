"""Pooled: a correction of a predictor that the whole fleet teaches."""

import numpy as np
import pytest

from paceline.predictors import Report
from paceline.predictors.pooled import Pooled


def hot(iterations, workers, seed=6):
    """Log speeds that a covariate explains, and the covariate, ``[T, W]`` each."""
    rng = np.random.default_rng(seed)
    heat_TW = rng.normal(0.0, 1.0, (iterations, workers))
    return -0.3 * heat_TW + rng.normal(0.0, 0.02, heat_TW.shape), heat_TW


OWN, FLEET, PLAIN = 0, 1, 2
"""Columns: the forecast with both corrections, with that of the fleet alone, and with none."""


def served(model, log_TW, heat_TW, column=FLEET):
    """Errors of a forecast of a new fleet, ``[T, W]``."""
    model.reset([str(w) for w in range(log_TW.shape[1])])
    return going_on(model, log_TW, heat_TW, column)


def going_on(model, log_TW, heat_TW, column=FLEET):
    errors = []
    for log_W, heat_W in zip(log_TW, heat_TW, strict=True):
        errors.append(log_W - np.log(model.forecast_speed(heat_W[:, None], 1)[:, column]))
        report = Report(np.ones_like(log_W), np.exp(-log_W))
        model.update_from_report(report, report.speed, heat_W[:, None])
    return np.array(errors)


def rms(errors):
    return float(np.sqrt(np.mean(np.square(errors))))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_joining_worker_starts_with_fleet_effect():
    log_TW, heat_TW = hot(80, 9)
    fleet, alone = Pooled("last-value", ["heat"]), Pooled("last-value", ["heat"])
    served(fleet, log_TW[:60, :8], heat_TW[:60, :8])
    fleet.join("new")
    joined = going_on(fleet, log_TW[60:72], heat_TW[60:72])[3:, -1]
    new = served(alone, log_TW[60:72, 8:], heat_TW[60:72, 8:])[3:]
    assert rms(joined) < 0.6 * rms(new)


def test_without_reports_forecast_is_uncorrected():
    model = Pooled("last-value")
    model.reset(["a"])
    model.update_from_report(Report([2.0], [1.0]), np.array([2.0]), np.zeros((1, 0)))
    assert model.forecast_speed(np.zeros((1, 0)), 1) == pytest.approx(np.array([[2.0, 2.0, 2.0]]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_worker_effect_learned_alone():
    log_TW, heat_TW = hot(300, 6)
    log_TW[:, 3:] *= -1.0  # on half of the workers the covariate acts the other way round: none of it is in common
    common, own = (served(Pooled("last-value", ["heat"]), log_TW, heat_TW, column)[150:] for column in (FLEET, OWN))
    assert rms(own) < 0.4 * rms(common)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_without_covariate_no_own_effect():
    log_TW, heat_TW = hot(60, 3)
    model = Pooled("last-value", ["heat"])
    own, plain = (served(model, log_TW, np.full_like(heat_TW, np.nan), column) for column in (OWN, PLAIN))
    np.testing.assert_array_equal(own, plain)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_fleet_follows_changed_covariate_effect():
    log_TW, heat_TW = hot(900, 8)
    log_TW[150:] -= 2 * (log_TW[150:] + 0.0)
    errors = served(Pooled("last-value", ["heat"]), log_TW, heat_TW)
    assert rms(errors[850:]) < 0.5 * rms(np.diff(log_TW[850:], axis=0))
