import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.eval import backtest
from paceline.predictors import EWMA, NARX, LastValue, Report, Training, checks
from paceline.training import describe_model, fit, load_model, save_model

QUICK = Training(epochs=2)


@pytest.fixture(scope="module")
def narx():
    return fit(NARX(lags=3, hidden=4, training=QUICK), [checks.example_trace()])


@pytest.mark.parametrize("predictor", [LastValue(), EWMA(smoothing=0.7)])
def test_a_model_comes_back_with_its_configuration(tmp_path, predictor):
    again = load_model(save_model(predictor, tmp_path / "model.safetensors"))
    assert type(again) is type(predictor)
    assert repr(again) == repr(predictor)


@pytest.mark.slow
def test_fitted_model_round_trip_exact(tmp_path, narx):
    again = load_model(save_model(narx, tmp_path / "narx.safetensors", fitted_on="example"))
    assert again.covariate_names == narx.covariate_names == ("cpu_busy", "distractor")
    trace = checks.example_trace(seed=5)
    forecasts = []
    for model in (narx, again):
        model.reset(trace.workers)
        for k in range(20):
            model.observe(Report(trace.samples[k], trace.seconds[k], covariates=trace.covariates[k]))
        forecasts.append(model.predict(covariates=trace.covariates[20]).speed)
    np.testing.assert_array_equal(*forecasts)


def test_the_header_says_what_the_model_is(tmp_path, narx):
    about = describe_model(save_model(narx, tmp_path / "narx.safetensors", fitted_on="example"))
    assert (about["kind"], about["fitted_on"], about["configuration"]["lags"]) == ("NARX", "example", 3)


def test_a_model_file_that_is_cut_off_is_named(tmp_path, narx):
    path = save_model(narx, tmp_path / "narx.safetensors")
    for share in (0.0, 0.5, 0.99):
        path.with_name("cut.safetensors").write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        with pytest.raises(ValueError, match=r"cut\.safetensors is not a complete model file"):
            load_model(path.with_name("cut.safetensors"))


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    from safetensors.numpy import save_file

    save_file({"w1": np.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="is a safetensors file that paceline did not write"):
        load_model(tmp_path / "other.safetensors")


class Homemade(EWMA):
    pass


def test_own_predictor_loaded_with_its_class(tmp_path):
    path = save_model(Homemade(smoothing=0.4), tmp_path / "homemade.safetensors")
    with pytest.raises(ValueError, match=r"holds a Homemade, not one of .* pass its class in kinds"):
        load_model(path)
    assert load_model(path, kinds=[Homemade]).smoothing == 0.4


@pytest.mark.slow
def test_fitting_leaves_the_predictor_given_as_it_was(narx):
    plain = NARX(training=QUICK)
    assert fit(plain, [checks.example_trace()]).weights_
    assert not plain.weights_


def test_measured_and_derived_speeds_are_never_mixed():
    measured = checks.example_trace()
    derived = Trace(measured.samples, measured.seconds, meta={"job": "usage", "derived": "1 / cpu"})
    with pytest.raises(ValueError, match=r"traces \['usage'\] have speeds derived from resource usage"):
        fit(EWMA(), [measured, derived])
    assert fit(EWMA(), [derived]).smoothing == 0.2


@pytest.mark.parametrize(
    ("traces", "sentence"),
    [([], "at least one trace"), ([Trace([[0.0]], [[1.0]], meta={"job": "idle"})], "trace 'idle' has no speed")],
)
def test_nothing_to_fit_is_said(traces, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit(NARX(), traces)


@pytest.mark.slow
def test_explaining_covariates_lower_error():
    fitting, unseen = checks.example_trace(600, seed=1), checks.example_trace(600, seed=2)
    brief = Training(epochs=15)

    def rmse(model):
        return backtest(fit(model, [fitting]), unseen).rmse.mean()

    with_covariates, without = rmse(NARX(training=brief)), rmse(NARX(covariates=(), training=brief))
    assert with_covariates < 0.7 * without
    assert with_covariates < 0.7 * rmse(LastValue())


@pytest.mark.slow
def test_a_spike_of_any_size_is_undone():
    rng = np.random.default_rng(0)
    shape = (600, 8)
    spikes_TW = (rng.random(shape) < 0.02) * rng.uniform(0.5, 3.0, shape)
    log_speed_TW = rng.normal(3.0, 1.0, shape[1]) + rng.normal(0.0, 0.05, shape) - spikes_TW
    model = fit(NARX(lags=4, training=Training(epochs=30)), [Trace(np.exp(log_speed_TW), np.ones(shape))])
    for size in (0.5, 1.5, 4.0):
        model.reset(["a"])
        for log_speed in [*rng.normal(2.0, 0.05, 100), 2.0 - size]:
            model.observe(Report([np.exp(log_speed)], [1.0]))
        assert np.log(model.predict().speed) == pytest.approx(2.0, abs=0.25)
