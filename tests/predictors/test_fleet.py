"""What all predictors inherit: each worker for itself, spreads, doubts, and a sentence for whoever asks wrongly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import (
    ARIMA,
    EWMA,
    RLS,
    BatchTime,
    Calibrated,
    GatedNARX,
    HuberEWMA,
    LastValue,
    LocalLevel,
    Mixture,
    Report,
)

APART = {
    "last": LastValue,
    "ewma": EWMA,
    "huber": HuberEWMA,
    "local": LocalLevel,
    "arima": lambda: ARIMA(covariates=["load"]),
    "rls": lambda: RLS(covariates=["load"]),
    "gated": lambda: GatedNARX(pretrained=True),
    "curves": BatchTime,
    "mixture": lambda: Mixture(["last-value", "ewma", "huber-ewma", RLS(covariates=["load"])]),
    "calibrated": lambda: Calibrated("huber-ewma"),
    "calibrated-curves": lambda: Calibrated("batch-time"),
}
"""Predictors that learn nothing about one worker from another."""


def reports(rng, workers, iterations):
    """Yield samples, seconds and a covariate of each worker, with gaps, stalls and jumps of any size."""
    seconds_TW = np.exp(rng.normal(0.0, 0.1, (iterations, workers)) + np.arange(workers))
    rare_TW = rng.random(seconds_TW.shape)
    seconds_TW[rare_TW < 0.1] = np.nan
    seconds_TW[rare_TW > 0.95] *= rng.choice([0.001, 0.1, 30.0])
    seconds_TW[iterations // 2 :, 1] *= 4.0
    for seconds_W in seconds_TW:
        yield rng.choice([32.0, 48.0], workers), seconds_W, np.where(rng.random(workers) < 0.1, np.nan, rng.random())


def step(model, samples_W, seconds_W, load_W):
    """Return what is forecast two iterations ahead and then the next one, and learn this iteration."""
    covariates_WD = np.stack([load_W] * len(model.covariate_names), axis=1) if model.covariate_names else None
    found = []
    for horizon in (2, 1):
        forecast = model.predict(covariates=covariates_WD, horizon=horizon)
        found += [forecast.speed, forecast.spread, forecast.quantile(0.1), forecast.curves.seconds(samples_W)]
    model.observe(Report(samples_W, seconds_W, covariates=covariates_WD))
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", APART)
def test_a_worker_is_forecast_in_a_fleet_as_alone(name, seed):
    """Shorter ways are taken where nobody is new or silent: they lead to the same numbers."""
    fleet, names = APART[name](), ["a", "b", "c", "d"]
    alone = {worker: APART[name]() for worker in names}
    fleet.reset(names[:3])
    for worker in names:
        alone[worker].reset([worker])
    seen = set()
    for k, (samples_W, seconds_W, load_W) in enumerate(reports(np.random.default_rng(seed), 4, 90)):
        if k == 20:
            fleet.join("d")
        if k == 60:
            fleet.leave("b")
        of = [names.index(worker) for worker in fleet.workers]
        found = step(fleet, samples_W[of], seconds_W[of], load_W[of])
        for place, w in enumerate(of):
            single = step(alone[names[w]], samples_W[[w]], seconds_W[[w]], load_W[[w]])
            if names[w] in seen:
                np.testing.assert_allclose(found[:, place], single[:, 0], rtol=1e-8)
        seen |= {worker for worker, w in zip(fleet.workers, of, strict=True) if seconds_W[w] > 0.002}


@settings(max_examples=30)
@given(st.lists(st.sampled_from([np.nan, 0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=12), st.integers(1, 5))
def test_spread_is_rms_error_of_log_speed(seconds, horizon):
    model, square, last = LastValue(), np.nan, np.nan
    model.reset(["a", "never"])
    for second in seconds:
        model.observe(Report([1.0, 1.0], [second, np.nan]))
        if not np.isnan(second):
            error = np.square(np.log(second / last))
            square = error if np.isnan(square) else square + 0.05 * (error - square)
            last = second
    expected = np.inf if np.isnan(square) else np.sqrt(square * horizon)
    assert model.predict(horizon=horizon).spread == pytest.approx([expected, np.inf])


@pytest.mark.parametrize(("factor", "accepted"), [(0.999, True), (1.001, False)])
def test_hundredfold_speed_needs_second_report(factor, accepted):
    model = LastValue()
    model.reset(["a", "b"])
    for _ in range(3):
        model.observe(Report([1.0, 1.0], [1.0, 1.0]))
    fast = factor * 100.0
    model.observe(Report([1.0, 1.0], [1.0 / fast, 0.5]))
    assert model.predict().speed == pytest.approx([fast if accepted else 1.0, 2.0])
    model.observe(Report([1.0, 1.0], [1.0 / fast, 0.5]))
    assert model.predict().speed == pytest.approx([fast, 2.0])
    model.observe(Report([1.0, 1.0], [1.0, 0.5]))
    assert model.predict().speed == pytest.approx([1.0, 2.0])


def test_out_of_memory_is_no_report():
    model = LastValue()
    model.reset(["a", "b"])
    model.observe(Report([1.0, 1.0], [1.0, 1.0]))
    model.observe(Report([1.0, 1.0], [0.5, 0.5], out_of_memory=[True, False]))
    assert model.predict().speed.tolist() == [1.0, 2.0]


def test_unreported_worker_gets_median_speed():
    model = LastValue()
    model.reset(["a", "b", "c", "new"])
    model.observe(Report([1.0] * 4, [1.0, 0.5, 0.1, np.nan]))
    assert model.predict().speed.tolist() == [1.0, 2.0, 10.0, 2.0]


def served(model=None):
    model = model or RLS(covariates=["load", "heat"])
    model.reset(["a", "b", "c"])
    return model


def test_get_params_set_params_and_clone():
    base = pytest.importorskip("sklearn.base")
    model = Calibrated(EWMA(smoothing=0.1))
    model.reset(["a"])
    copied = base.clone(model)
    assert repr(copied) == repr(model)
    assert copied.workers == ()
    copied.set_params(predictor__smoothing=0.5)
    assert copied.get_params()["predictor__smoothing"] == 0.5
    assert model.get_params()["predictor__smoothing"] == 0.1
    with pytest.raises(ValueError, match="EWMA has no parameter 'span'"):
        EWMA().set_params(span=3)


@pytest.mark.parametrize(
    ("asks", "sentence"),
    [
        (lambda: EWMA().predict(), r"there is no fleet yet: call reset\(workers\) with the workers' names first"),
        (lambda: EWMA().observe(Report([1], [1])), "there is no fleet yet"),
        (lambda: EWMA().reset(["a", "a"]), r"workers must not repeat a name, got \['a'\]"),
        (lambda: served().join("a"), "worker 'a' is already in the fleet"),
        (lambda: served().leave("z"), "worker 'z' is not in the fleet: a, b and c"),
        (lambda: served().predict(horizon=0), "horizon must be at least 1 iteration, got 0"),
        (lambda: served().observe(Report([1], [1])), "one entry for each of the 3 workers, got 1; call reset"),
        (
            lambda: served().predict(covariates=np.zeros((2, 3))),
            r"covariates must have the shape \[workers, covariates\] \(3, 2\), in the order \['load', 'heat'\], got "
            r"\(2, 3\)",
        ),
        (
            lambda: EWMA().load_state_dict(served(EWMA()).state_dict() | {"rows/level": np.zeros(2)}),
            r"state 'rows/level' must have the shape \(3,\), got \(2,\): it was saved by a EWMA with other arguments",
        ),
        (lambda: LastValue().load_state_dict({"learned/x": np.zeros(1)}), r"learns nothing from traces, .* \['x'\]"),
        (lambda: Report([1, 2], [1]).speed, r"one entry per worker, got the shapes \(2,\) and \(1,\)"),
        (lambda: Report(1.0, 1.0).speed, r"one entry per worker, got the shapes \(\) and \(\)"),
        (lambda: LocalLevel(0.0), r"smoothing must lie in \(0, 1\], got 0.0"),
        (lambda: LocalLevel(1.1), r"smoothing must lie in \(0, 1\], got 1.1"),
    ],
)
def test_invalid_calls_say_what_to_do(asks, sentence):
    with pytest.raises(ValueError, match=sentence):
        asks()


@settings(max_examples=30)
@given(st.floats(0.05, 1.0), st.lists(st.sampled_from([np.nan, np.nan, 0.5, 1.0, 3.0]), min_size=1, max_size=20))
def test_local_level_is_kalman_filter(smoothing, seconds):
    model, level, doubt = LocalLevel(smoothing), None, 4.0
    model.reset(["a"])
    for second in seconds:
        model.observe(Report([1.0], [second]))
        if level is not None:
            doubt += smoothing**2 / (1.0 - smoothing) if smoothing < 1 else np.inf
        if not np.isnan(second):
            gain = 1.0 if smoothing == 1 else doubt / (doubt + 1.0)
            if level is not None:
                level, doubt = level + gain * (-np.log(second) - level), gain
            else:
                level = -np.log(second)
    assert model.predict().speed == pytest.approx([1.0 if level is None else np.exp(level)])
