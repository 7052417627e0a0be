"""Boosting: trees fitted by scikit-learn, saved as arrays, and served without it."""

import numpy as np
import pytest

from paceline.datasets import Trace, synthetic_fleet
from paceline.eval import backtest
from paceline.predictors import Boosting, LastValue, checks
from paceline.predictors.trees.forest import Trees
from paceline.training import load_model, save_model

sklearn = pytest.importorskip("sklearn.ensemble", reason="needs the boosting extra")


@pytest.fixture(scope="module")
def fitted():
    return Boosting(trees=80).fit([synthetic_fleet("mixed", workers=10, iterations=300)])


@pytest.mark.slow
def test_trees_equal_sklearn_with_gaps():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(500, 6))
    inputs[rng.random(inputs.shape) < 0.2] = np.nan
    model = sklearn.HistGradientBoostingRegressor(max_iter=30, random_state=0)
    model.fit(inputs, np.nan_to_num(inputs[:, 0] * inputs[:, 1]) + np.isnan(inputs[:, 2]))
    trees = Trees.of(model)
    unseen = np.vstack([rng.normal(scale=3.0, size=(200, 6)), np.full((1, 6), np.nan), inputs])
    for rows in (unseen, np.nan_to_num(unseen)):
        np.testing.assert_allclose(trees(rows), model.predict(rows), rtol=1e-12, atol=1e-14)


def test_a_model_of_one_leaf_says_the_mean():
    model = sklearn.HistGradientBoostingRegressor(max_iter=3).fit(np.zeros((50, 1)), np.arange(50.0))
    np.testing.assert_allclose(Trees.of(model)(np.zeros((2, 1))), [24.5, 24.5])


@pytest.mark.slow
def test_unseen_fleet_beats_last_value(fitted):
    trace = synthetic_fleet("mixed", workers=5, iterations=300, seed=1)
    ratio = backtest(fitted, trace).rmse / backtest(LastValue(), trace).rmse
    assert ratio.mean() < 0.93


@pytest.mark.slow
def test_covariates_that_explain_the_speed_help():
    trace, unseen = checks.example_trace(400), checks.example_trace(400, seed=5)
    with_covariates, without = (Boosting(trees=60, covariates=names).fit([trace]) for names in (None, ()))
    assert with_covariates.covariate_names == ("cpu_busy", "distractor")
    assert backtest(with_covariates, unseen).rmse.mean() < 0.8 * backtest(without, unseen).rmse.mean()


@pytest.mark.slow
def test_sparse_covariate_lag_refused():
    trace = checks.example_trace(200)
    seconds, covariates = trace.seconds.copy(), trace.covariates.copy()
    seconds[1::2], covariates[1::2] = np.nan, np.nan
    sparse = Trace(trace.samples, seconds, covariates=covariates, covariate_names=trace.covariate_names)
    with pytest.raises(ValueError, match="no worker's reports hold cpu_busy with a lag of 1"):
        Boosting().fit([sparse])
    assert Boosting(covariate_lags=0).fit([sparse]).trees_ is not None


@pytest.mark.slow
def test_the_unit_of_speed_does_not_matter(fitted):
    trace = synthetic_fleet("mixed", workers=2, iterations=100, seed=2)
    other = Trace(trace.samples, trace.seconds / 8, covariates=trace.covariates, covariate_names=trace.covariate_names)
    slow, fast = backtest(fitted, trace), backtest(fitted, other)
    np.testing.assert_allclose(8 * slow.forecast_TW[1:], fast.forecast_TW[1:], rtol=1e-6)


@pytest.mark.slow
def test_it_is_served_from_a_model_file_bit_for_bit(fitted, tmp_path):
    loaded = load_model(save_model(fitted, tmp_path / "boosting.safetensors"))
    trace = synthetic_fleet("mixed", workers=3, iterations=60, seed=3)
    assert np.array_equal(backtest(loaded, trace).forecast_TW, backtest(fitted, trace).forecast_TW)


def test_serving_needs_no_scikit_learn(fitted, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn", None)
    resumed = Boosting(trees=80)
    resumed.load_state_dict(fitted.state_dict())
    resumed.reset(["a"])
    assert resumed.predict().speed == pytest.approx([1.0])


def test_what_cannot_be_fitted_is_refused():
    for arguments, sentence in [
        ({"lags": 1}, "lags must be a whole number from 2 to 10000, got 1"),
        ({"covariate_lags": -1}, "covariate_lags must be a whole number from 0 to 10000, got -1"),
        ({"leaves": 1}, "leaves must be a whole number from 2 to 1000, got 1"),
        ({"learning_rate": 0.0}, r"learning_rate must lie in \(0, 1\]"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            Boosting(**arguments)
    with pytest.raises(ValueError, match="at least one trace"):
        Boosting().fit([])
    with pytest.raises(ValueError, match="at least 50 changes of speed to fit, got 8"):
        Boosting().fit([Trace(np.ones((10, 1)), np.ones((10, 1)))])
    with pytest.raises(ValueError, match=r"covariates \['gpu'\] are not in every trace"):
        Boosting(covariates=["gpu"]).fit([checks.example_trace()])


@pytest.mark.slow
def test_fit_is_deterministic_with_sampled_bins():
    """scikit-learn draws 200,000 examples to place its bins."""
    seconds_TW = np.exp(np.random.default_rng(0).normal(0.0, 0.2, (120, 2000)))
    trace = Trace(np.ones_like(seconds_TW), seconds_TW)
    one, other = (Boosting(lags=2, covariate_lags=0, trees=1, leaves=8).fit([trace]).trees_ for _ in range(2))
    np.testing.assert_array_equal(one.threshold_N, other.threshold_N)
