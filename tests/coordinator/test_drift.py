"""Drift: known changes are found, and a refit is recommended where it measurably helps."""

import json

import numpy as np
import pytest
from fit_cases import wavy
from typer.testing import CliRunner

from paceline.cli import main as cli
from paceline.datasets import Trace
from paceline.eval.model_drift import check_drift
from paceline.predictors import EWMA, RLS, LastValue
from paceline.training import fit, save_model


def alternating(seed, pattern, iterations=300):
    rng = np.random.default_rng(seed)
    speed_TW = 50.0 * np.resize(pattern, iterations)[:, None] * np.exp(rng.normal(0, 0.05, (iterations, 4)))
    return Trace(np.full(speed_TW.shape, 32.0), 32.0 / speed_TW, meta={"job": f"day{seed}"})


@pytest.mark.slow
def test_a_refit_is_recommended_where_it_lowers_the_error():
    steady = fit(EWMA(smoothing=None), [alternating(0, [1.0])])
    walk = np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.2, 300)))
    moved = check_drift(steady, alternating(1, walk))
    assert steady.smoothing_ < 0.2
    assert moved.late > 1.0
    assert moved.sentence.startswith("the model is worse than the last value")
    assert moved.refitted <= moved.late


@pytest.mark.slow
def test_no_refit_is_recommended_on_more_of_the_same():
    model = fit(EWMA(smoothing=None), [alternating(0, [1.0])])
    same = check_drift(model, alternating(1, [1.0]))
    assert same.late < 1.0
    assert abs(same.refitted / same.late - 1.0) < 0.02
    assert "a refit would not help" in same.sentence


@pytest.mark.slow
def test_covariates_far_from_the_fitted_ones_are_counted():
    from paceline.predictors import NARX, Training

    narx = fit(NARX(lags=2, covariate_lags=1, hidden=2, training=Training(epochs=1)), [wavy(0)])
    near, one = check_drift(narx, wavy(1)), wavy(1)
    far = Trace(one.samples, one.seconds, covariates=one.covariates + 5.0, covariate_names=one.covariate_names)
    assert near.unknown_covariates == 0.0
    assert check_drift(narx, far).unknown_covariates == 1.0
    assert "100% of the covariates' samples are far" in check_drift(narx, far).sentence


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="at least 40 iterations"):
        check_drift(LastValue(), wavy(0, iterations=20))
    with pytest.raises(ValueError, match="no worker whose speed changes"):
        check_drift(RLS(), Trace(np.ones((50, 2)), np.ones((50, 2))))


@pytest.mark.slow
def test_a_trace_that_is_too_short_does_not_hide_what_the_others_show(tmp_path):
    folder = tmp_path / "days"
    folder.mkdir()
    for seed, iterations in ((1, 20), (2, 80)):
        wavy(seed, iterations=iterations).save(folder / f"{seed}.parquet")
    model = save_model(fit(EWMA(smoothing=None), [wavy(0)]), tmp_path / "m.safetensors")
    done = CliRunner().invoke(cli.app, ["models", "check", str(model), str(folder)])
    assert done.exit_code == 0
    assert "job2: the model" in done.output
    assert "left out: trace 'job1' must have at least 40 iterations" in done.output


@pytest.mark.slow
def test_the_command_says_it_for_every_trace(tmp_path):
    model = save_model(fit(EWMA(smoothing=None), [wavy(0)]), tmp_path / "m.safetensors")
    for seed in (1, 2):
        wavy(seed).save(tmp_path / f"{seed}.parquet")
    command = ["models", "check", str(model), str(tmp_path / "1.parquet"), str(tmp_path / "2.parquet"), "--json"]
    rows = json.loads(CliRunner().invoke(cli.app, command).output)
    assert [row["trace"] for row in rows] == ["job1", "job2"]
    assert all(np.isfinite(row["refitted"]) for row in rows)
