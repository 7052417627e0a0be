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


CORRECTED, PLAIN = 0, 1
"""Columns: the forecast with the correction, and without."""


def served(model, log_TW, heat_TW, column=CORRECTED):
    """Errors of a forecast of a new fleet, ``[T, W]``."""
    model.reset([str(w) for w in range(log_TW.shape[1])])
    return going_on(model, log_TW, heat_TW, column)


def going_on(model, log_TW, heat_TW, column=CORRECTED):
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
    assert model.forecast_speed(np.zeros((1, 0)), 1) == pytest.approx(np.array([[2.0, 2.0]]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_fleet_follows_changed_covariate_effect():
    log_TW, heat_TW = hot(900, 8)
    log_TW[150:] -= 2 * (log_TW[150:] + 0.0)
    errors = served(Pooled("last-value", ["heat"]), log_TW, heat_TW)
    assert rms(errors[850:]) < 0.5 * rms(np.diff(log_TW[850:], axis=0))
