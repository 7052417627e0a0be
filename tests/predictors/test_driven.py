"""CorrectedEWMAs: an average that knows which share of the speed a covariate takes."""

import numpy as np
import pytest

from paceline.predictors.driven import CorrectedEWMAs

pytestmark = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")

PLAIN, DRIVEN = 0, 1


def model(covariates=("load",)):
    return CorrectedEWMAs((0.1, 0.1), 2.0, DRIVEN, covariates)


def loaded(iterations, workers, effect=-0.4, seed=3):
    """Log speeds of workers of any level that a load slows down, and the load, ``[T, W]`` each."""
    rng = np.random.default_rng(seed)
    load_TW = (rng.random((iterations, workers)) < 0.3).astype(float)
    log_TW = rng.normal(0.0, 1.0, workers) + effect * load_TW + rng.normal(0.0, 0.02, load_TW.shape)
    return log_TW, load_TW


def errors(average, log_TW, load_TW, begin=True):
    """Errors of the plain and the driven average, ``[T, W, 2]``."""
    if begin:
        average.reset([str(w) for w in range(log_TW.shape[1])])
    found = []
    for log_W, load_W in zip(log_TW, load_TW, strict=True):
        found.append(log_W[:, None] - average.forecast_log_speed(load_W[:, None], 1))
        average.update(np.exp(log_W), load_W[:, None])
    return np.array(found)


def rms(error):
    return float(np.sqrt(np.nanmean(np.square(error))))


def test_share_of_speed_is_learned():
    error = errors(model(), *loaded(100, 6))[30:]
    assert rms(error[..., DRIVEN]) < 0.15 * rms(error[..., PLAIN])


def test_unit_of_a_covariate_does_not_matter():
    log_TW, load_TW = loaded(60, 4)
    small, large = (errors(model(), log_TW, unit * load_TW) for unit in (1e-6, 1e9))
    np.testing.assert_allclose(small, large, atol=1e-6)


def test_joining_worker_starts_with_the_effect():
    log_TW, load_TW = loaded(90, 7)
    average = model()
    errors(average, log_TW[:60, :6], load_TW[:60, :6])
    average.join("new")
    error = errors(average, log_TW[60:], load_TW[60:], begin=False)[5:, -1]
    assert rms(error[:, DRIVEN]) < 0.3 * rms(error[:, PLAIN])


@pytest.mark.parametrize("load", [np.nan, 7e11], ids=["missing", "constant"])
def test_no_change_without_a_moving_covariate(load):
    log_TW, load_TW = loaded(40, 3)
    error = errors(model(), log_TW, np.full_like(load_TW, load))
    np.testing.assert_allclose(error[..., DRIVEN], error[..., PLAIN], atol=1e-9)


def test_distractor_does_little_harm():
    log_TW, _ = loaded(200, 6)
    noise_TW = np.random.default_rng(8).normal(0.0, 1.0, log_TW.shape)
    error = errors(model(), log_TW, noise_TW)[50:]
    assert rms(error[..., DRIVEN]) < 1.02 * rms(error[..., PLAIN])


def test_gap_in_reports_and_covariates_is_bridged():
    log_TW, load_TW = loaded(100, 4)
    load_TW[40:45, 0], log_TW[50:53, 1], load_TW[:, 2] = np.nan, np.nan, np.nan
    error = errors(model(), log_TW, load_TW)[60:]
    assert rms(error[:, :2, DRIVEN]) < 0.2 * rms(error[:, :2, PLAIN])
    np.testing.assert_array_equal(error[:, 2, DRIVEN], error[:, 2, PLAIN])
