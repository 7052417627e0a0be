"""Fitting to traces wherever they are: the same weights from memory, files and iterators."""

import numpy as np
import pytest
from fit_cases import QUICK, folder_of, learned, networks, wavy
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.predictors import ARIMA, EWMA, NARX, RLS, Calibrated, LastValue, Mixture, SimpleRNN, Training
from paceline.training import Source, fit, save_model

NETWORKS = pytest.mark.parametrize("predictor", networks(), ids=lambda p: type(p).__name__)


@NETWORKS
@pytest.mark.slow
def test_sources_give_the_same_weights(tmp_path, predictor):
    folder = folder_of(tmp_path / "jobs", 3)
    traces = [wavy(seed) for seed in range(3)]
    from_memory = learned(fit(predictor, traces))
    assert learned(fit(predictor, folder)) == from_memory
    assert learned(fit(predictor, (trace for trace in traces))) == from_memory
    assert learned(fit(predictor, sorted(folder.iterdir()))) == from_memory


@pytest.mark.slow
def test_long_traces_fitted_by_random_sample():
    seconds_TW = np.random.default_rng(0).uniform(1.0, 2.0, (5000, 500))  # 2.5 million speeds
    model, seen = SimpleRNN(hidden=1, training=Training(epochs=1, batch_size=10_000)), []
    fit(model, Trace(np.ones_like(seconds_TW), seconds_TW), progress=seen.append)
    # of the 63 sequences of 64 speeds in the first 4,000 iterations of each worker, those of two million speeds
    assert max(one.total for one in seen if one.stage == "training") == pytest.approx(500 * 63 * 2.0 / 2.5, rel=0.02)


# -- splits ------------------------------------------------------------------------------------------------------


@NETWORKS
def test_held_out_early_speeds_change_nothing(predictor):
    one, other = wavy(0), wavy(0)
    seconds, covariates = np.array(one.seconds), np.array(one.covariates)
    seconds[:40, 1] *= 3.0
    covariates[:, 1] = 0.1
    other = Trace(
        one.samples,
        seconds,
        covariates=covariates,
        covariate_names=one.covariate_names,
        workers=one.workers,
        meta=dict(one.meta),
    )
    # With one epoch that always beats the start, the held-out windows cannot choose between other weights.
    a, b = (fit(predictor, [trace], hold_out=["b"]) for trace in (one, other))
    np.testing.assert_array_equal(a.covariate_mean_, b.covariate_mean_)


@given(st.lists(st.integers(10, 40), min_size=1, max_size=4))
@settings(max_examples=10)
def test_covariates_scaled_by_those_of_all_traces(lengths):
    traces = [wavy(seed, iterations=iterations) for seed, iterations in enumerate(lengths)]
    model = fit(NARX(lags=2, covariate_lags=1, hidden=1, training=Training(epochs=1)), traces, hold_out=["b"])
    fitted = np.concatenate([trace.covariates[:, [0, 2], 0].ravel() for trace in traces])
    np.testing.assert_allclose(model.covariate_mean_, fitted.mean(), rtol=1e-9)
    np.testing.assert_allclose(model.covariate_scale_, fitted.std(), rtol=1e-9)


@pytest.mark.parametrize("predictor", [EWMA(smoothing=None), RLS(), ARIMA()], ids=lambda p: type(p).__name__)
def test_held_out_workers_are_not_fitted(predictor):
    trace = wavy(0)
    others = fit(predictor, [trace.select(workers=[name for name in trace.workers if name != "b"])])
    held_out, all_of_them = fit(predictor, [trace], hold_out=["b"]), fit(predictor, [trace])
    assert learned(held_out) == learned(others)
    assert learned(held_out) != learned(all_of_them)


def test_the_same_names_are_held_out_on_every_day():
    names = [f"worker {w}" for w in range(200)]
    told = []
    for day in (0, 1):

        class Watched(EWMA):
            def fit(self, traces):
                told.append({worker for trace in traces for worker in trace.workers})
                return self

        fit(Watched(), [wavy(day, workers=names, iterations=5)], hold_out=0.2, seed=3)
    assert told[0] == told[1]
    assert 120 < len(told[0]) < 190


def test_ignored_options_are_warned_about():
    with pytest.warns(UserWarning, match=r"hold_out names workers \['nobody'\], which are in none of the traces"):
        fit(EWMA(smoothing=None), [wavy(0)], hold_out=["a", "nobody"])


def test_one_trace_is_a_list_of_one():
    assert learned(fit(EWMA(None), wavy(0))) == learned(fit(EWMA(None), [wavy(0)]))


@pytest.mark.parametrize("wrap", [lambda frame: frame, lambda frame: [frame], lambda frame: 7])
def test_non_trace_refused_with_hint(wrap):
    with pytest.raises(TypeError, match=r"traces must be a Trace, .* convert a frame with Trace\.from_frame"):
        fit(EWMA(None), wrap(wavy(0).to_frame()))


@pytest.mark.parametrize("no_predictor", ["ewma", EWMA, None])
def test_non_predictor_refused_with_hint(no_predictor):
    with pytest.raises(TypeError, match="predictor must be an instance such as EWMA"):
        fit(no_predictor, [wavy(0)])


def test_holding_out_nobody_is_refused():
    with pytest.raises(ValueError, match=r"holds out 0 of the 1 workers.*name those to hold out"):
        fit(EWMA(), [wavy(0).select(workers=wavy(0).workers[:1])], hold_out=0.3)
    with pytest.raises(ValueError, match="hold_out must be a share"):
        fit(EWMA(), [wavy(0)], hold_out=1.0)


@pytest.mark.parametrize("share", [1e-9, 0.3, 0.999])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_share_of_few_workers_holds_out_some(share, workers):
    job = wavy(0).select(workers=wavy(0).workers[:workers])
    for seed in range(4):
        fit(EWMA(smoothing=None), [job], hold_out=share, seed=seed)


# -- going on from yesterday ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "predictor",
    [*networks(), EWMA(smoothing=None), RLS(), ARIMA(order=(1, 0, 0)), Mixture(["rls", "narx"])],
    ids=lambda p: type(p).__name__,
)
def test_a_refit_starts_from_the_earlier_model(tmp_path, predictor):
    if isinstance(predictor, Mixture):
        predictor = Mixture(["rls", "ewma:smoothing=None"])
    yesterday = fit(predictor, [wavy(0)])
    model = save_model(yesterday, tmp_path / "yesterday.safetensors")
    today, afresh = (fit(predictor, [wavy(1)], start=start) for start in (model, None))
    assert learned(today) != learned(afresh)
    assert learned(today) == learned(fit(predictor, [wavy(1)], start=yesterday))
    assert learned(yesterday) != learned(today)


@pytest.mark.slow
def test_refit_without_steps_keeps_weights():
    still = Training(epochs=1, learning_rate=1e-12, weight_decay=0.0)
    first = fit(NARX(lags=3, hidden=4, training=QUICK), [wavy(0)])
    again = fit(NARX(lags=3, hidden=4, training=still), [wavy(1)], start=first)
    for name, weight in first.weights_.items():
        np.testing.assert_allclose(again.weights_[name], weight, atol=1e-6)


def test_refitted_errors_of_an_average_add_up():
    both = fit(EWMA(smoothing=None), [wavy(0), wavy(1)])
    after = fit(EWMA(smoothing=None), [wavy(1)], start=fit(EWMA(smoothing=None), [wavy(0)]))
    np.testing.assert_allclose(after.errors_G_, both.errors_G_)


def test_a_start_of_another_kind_or_shape_is_refused():
    narx = fit(NARX(lags=3, hidden=4, training=QUICK), [wavy(0)])
    with pytest.raises(ValueError, match="predictor and start must be of one kind, got EWMA and "):
        fit(EWMA(), [wavy(0)], start=narx)
    with pytest.raises(ValueError, match="has lags=3 instead of 5"):
        fit(NARX(lags=5, hidden=4, training=QUICK), [wavy(0)], start=narx)
    with pytest.raises(ValueError, match=r"has predictor='ewma' instead of EWMA\(\)"):
        fit(Calibrated(EWMA()), [wavy(0)], start=Calibrated("ewma"))

    class Own(EWMA):
        def fit(self, traces):
            return self

    with pytest.raises(ValueError, match="Own implements only fit"):
        fit(Own(), [wavy(0)], start=Own())


def test_subclass_fit_is_used():
    class Own(NARX):
        def fit(self, traces):
            self.seen = [trace.name for trace in traces]
            return self

    assert fit(Own(), iter([wavy(0), wavy(1)])).seen == ["job0", "job1"]


# -- what cannot be fitted -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_unreadable_files_named(tmp_path):
    folder = folder_of(tmp_path / "jobs", 3)
    good = learned(fit(EWMA(smoothing=None), folder))
    whole = (folder / "job00.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.parquet").touch()
    Trace([[8.0]], [[0.0]]).save(folder / "silent.parquet")
    source = Source(folder)
    with pytest.warns(UserWarning, match="3 files were left out of the fit"):
        assert learned(fit(EWMA(smoothing=None), source)) == good
    said = {file.rsplit("/", 1)[1]: why for file, why in source.left_out.items()}
    assert "not a complete Parquet file" in said["cut.parquet"]
    assert "empty" in said["empty.parquet"]
    assert "no speed" in said["silent.parquet"]
    for name in said:
        with pytest.raises(ValueError, match=r"\.parquet"):
            fit(EWMA(), folder, strict=True)
        (folder / name).unlink()
    fit(EWMA(), folder, strict=True)


def test_a_folder_with_nothing_to_fit_says_why(tmp_path):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ValueError, match=r"at least one trace to fit, got none; .*broken\.parquet"):
        fit(EWMA(), tmp_path)


@pytest.mark.slow
def test_nonfinite_loss_names_batch_and_file(tmp_path):
    folder = folder_of(tmp_path / "jobs", 2)
    wild = Training(epochs=3, learning_rate=1e30, batch_size=64)
    with pytest.raises(ValueError, match=r"batch \d of epoch 1.*job0\d\.parquet.*lower the learning rate"):
        fit(NARX(lags=3, hidden=4, training=wild), folder)


@pytest.mark.slow
def test_progress_has_rate_and_time_left():
    moments = []
    fit(networks()[0], [wavy(seed) for seed in range(2)], progress=moments.append)
    stages = list(dict.fromkeys(moment.stage for moment in moments))
    assert stages == ["read", "windows", "training"]
    training = [moment for moment in moments if moment.stage == "training"]
    begins = [moment for moment in training if not moment.done]
    assert len(begins) == 2, "with and without a linear path"
    assert begins[0] is training[0]
    later = [moment for moment in training if moment.done]
    assert later
    assert all(moment.done <= moment.total and np.isfinite(moment.loss) for moment in later)


def test_progress_bar_on_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, standard error is a terminal then
    monkeypatch.setenv("TERM", "xterm")
    fit(EWMA(smoothing=None), [wavy(seed) for seed in range(2)], progress=True)
    assert "read" in capsys.readouterr().err


def test_a_device_that_is_not_there_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="torch finds no such CUDA device"):
        fit(LastValue(), [wavy(0)], device="cuda")
