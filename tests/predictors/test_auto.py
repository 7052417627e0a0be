"""Auto: good from the first report on, on fleets it never saw, and light to load."""

import os
import subprocess
import sys

import numpy as np
import pytest

from paceline.datasets import Trace, synthetic_fleet
from paceline.predictors import Auto, LastValue, Report


def served(model, trace):
    """Log errors one step ahead and whether the 90% interval held, ``[T, W]`` each."""
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    errors, inside = [], []
    for k, speed_W in enumerate(trace.speed):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        forecast = model.predict(covariates=covariates_WD)
        errors.append(np.log(speed_W / forecast.speed))
        inside.append((forecast.quantile(0.05) <= speed_W) & (speed_W <= forecast.quantile(0.95)))
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return np.array(errors), np.array(inside)


def rms(errors):
    return float(np.sqrt(np.nanmean(np.square(errors))))


@pytest.fixture(scope="module")
def unseen():
    return synthetic_fleet("mixed", workers=20, iterations=600, seed=9)


@pytest.fixture(scope="module")
def found(unseen):
    return served(Auto(), unseen)


@pytest.mark.slow
def test_unfitted_beats_last_value_on_unseen(found, unseen):
    assert rms(found[0][100:]) < 0.83 * rms(served(LastValue(), unseen)[0][100:])


@pytest.mark.slow
def test_unfitted_good_within_fifty_iterations(found, unseen):
    assert rms(found[0][5:50]) < 0.93 * rms(served(LastValue(), unseen)[0][5:50])


def test_its_intervals_hold_as_often_as_they_say(found):
    assert 0.87 < found[1][100:].mean() < 0.93


@pytest.mark.slow
def test_unknown_covariate_is_learned():
    rng = np.random.default_rng(1)
    heat_TW = rng.normal(0.0, 1.0, (300, 4))
    seconds = np.exp(0.3 * heat_TW + rng.normal(0.0, 0.02, heat_TW.shape))
    trace = Trace(np.ones_like(seconds), seconds, covariates=heat_TW[:, :, None], covariate_names=("heat",))
    with_heat, without = (served(Auto(covariates=names), trace)[0][150:] for names in (("heat",), ()))
    assert rms(with_heat) < 0.5 * rms(without)


def test_serving_imports_no_heavy_library():
    code = """
import sys
from paceline.predictors import Auto, Report
model = Auto()
model.reset(["a"])
model.observe(Report([64], [0.5]))
model.predict()
print([name for name in ("torch", "pandas", "pyarrow", "scipy", "statsmodels", "sklearn") if name in sys.modules])
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_slow_first_iteration_is_forgotten():
    rng = np.random.default_rng(3)
    seconds = np.exp(rng.normal(0.0, 0.02, (60, 6)))
    seconds[0] *= 15.0
    trace = Trace(np.ones_like(seconds), seconds)
    steady = Trace(np.ones_like(seconds[1:]), seconds[1:])
    late, never = rms(served(Auto(), trace)[0][6:]), rms(served(Auto(), steady)[0][5:])
    assert late == pytest.approx(never, rel=1e-6)


def jumping(seconds_T):
    """A worker that jumps to ten times its speed at iteration 100, with 2% of noise."""
    rng = np.random.default_rng(7)
    level_T = np.where(np.arange(130) < 100, 1.0, 0.1)
    return seconds_T * level_T * np.exp(rng.normal(0.0, 0.02, 130))


def shown(seconds_T):
    model = Auto()
    errors, _ = served(model, Trace(np.ones((len(seconds_T), 1)), seconds_T[:, None]))
    return model, errors[:, 0]


@pytest.mark.slow
def test_a_lasting_jump_is_followed_after_two_reports():
    _, error_T = shown(jumping(np.ones(130)))
    assert np.abs(error_T[102:]).max() < 0.1


def test_early_jump_followed_after_two_reports():
    """The first error after the jump is large and must not make the second one look usual."""
    deviation = 0.02
    noise_TW = np.exp(np.random.default_rng(9).normal(0.0, deviation, (22, 12)))
    seconds_TW = noise_TW * np.where(np.arange(22) < 10, 1.0, 3.0)[:, None]
    errors_TW, _ = served(Auto(), Trace(np.ones_like(seconds_TW), seconds_TW))
    assert np.sqrt(np.mean(np.square(errors_TW[12:]))) < 2.0 * deviation


@pytest.mark.slow
def test_a_single_stall_is_not_taken_for_a_jump():
    rng = np.random.default_rng(8)
    seconds_T = np.exp(rng.normal(0.0, 0.02, 130))
    seconds_T[100] *= 10.0
    _, error_T = shown(seconds_T)
    assert np.abs(error_T[101:]).max() < 0.1


@pytest.mark.parametrize("factor", [10.0, 60.0])
def test_single_report_far_too_fast_ignored(factor):
    seconds_T = np.exp(np.random.default_rng(8).normal(0.0, 0.02, 60))
    seconds_T[50] /= factor
    _, error_T = shown(seconds_T)
    assert np.abs(error_T[51:]).max() < 0.1


@pytest.mark.slow
def test_slow_every_twentieth_is_foreseen():
    rng = np.random.default_rng(5)
    log_TW = rng.normal(0.0, 0.03, (400, 4)) + 0.7 * (np.arange(400) % 20 == 0)[:, None]
    trace = Trace(np.ones_like(log_TW), np.exp(log_TW))
    errors = served(Auto(), trace)[0]
    assert rms(errors[200::20]) < 0.3


@pytest.mark.slow
def test_too_fast_first_reports_forgotten():
    """A host clock ahead of its device: the first step seems to take a twelfth of the time."""
    rng = np.random.default_rng(9)
    seconds = np.exp(rng.normal(0.0, 0.03, (50, 12)))
    seconds[0] /= np.linspace(1.6, 12.0, 12)
    trace = Trace(np.ones_like(seconds), seconds)
    ours_TW, last_TW = (served(model, trace)[0][5:] for model in (Auto(), LastValue()))
    assert (np.square(ours_TW).mean(axis=0) < np.square(last_TW).mean(axis=0)).all()
