"""Drift in a live run: reported when speeds or covariates leave what the served model was fitted on, and only then."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline.cli.watch_view import view
from paceline.coordinator import LoadBalancer
from paceline.datasets import Trace
from paceline.predictors import EWMA, NARX, LastValue, Mixture, Report, Training
from paceline.predictors.reference import FAR, MANY, Reference, Spread, changes
from paceline.recording import read_run, sinks
from paceline.recording.records import Iteration
from paceline.report import render, run_page
from paceline.training import fit, load_model, save_model

FLEET = ["a", "b", "c"]
SAID = "speeds have left what the model was fitted on"


def noisy(noise, iterations=300, seed=0):
    """Speeds around 100 samples/s, each multiplied by a lognormal number of this deviation."""
    return 100.0 * np.exp(np.random.default_rng(seed).normal(0.0, noise, (iterations, len(FLEET))))


def trace(noise, **options):
    speed_TW = noisy(noise, **options)
    return Trace(np.full(speed_TW.shape, 32.0), 32.0 / speed_TW, workers=FLEET)


def served(predictor, speed_TW, covariates_TWD=None, balancer=None):
    """Balance a run with these speeds, and return the record of every iteration."""
    balancer = balancer or LoadBalancer(predictor, workers=FLEET, global_batch=96)
    records = []
    for k, speed_W in enumerate(speed_TW):
        used = balancer.plan
        covariates = None if covariates_TWD is None else covariates_TWD[k]
        report = Report(samples=used.sizes, seconds=used.sizes / speed_W, covariates=covariates)
        records.append(Iteration.of(used, report, balancer.step(report)))
    return records


@pytest.fixture(scope="module")
def fitted():
    return fit(EWMA(smoothing=None), [trace(0.02)])


@pytest.mark.slow
def test_speeds_like_the_fitted_ones_are_no_drift(fitted):
    records = served(fitted, noisy(0.02, seed=1))
    assert all(record.plan.drift < 0.01 for record in records)
    assert not any(record.plan.drift_began or SAID in record.plan.why for record in records)


@pytest.mark.slow
def test_speeds_that_leave_are_reported_once_in_the_reason_and_as_a_share_in_every_iteration(fitted):
    records = served(fitted, np.concatenate([noisy(0.02, seed=1), noisy(0.5, seed=2)]))
    said = [record.index for record in records if SAID in record.plan.why]
    assert len(said) == 1
    assert 300 <= said[0] < 330
    assert [record.index for record in records if record.plan.drift_began] == said
    assert records[-1].plan.drift > 0.3


@pytest.mark.slow
def test_drift_that_ends_and_begins_again_is_reported_again(fitted):
    quiet = noisy(0.02, seed=1, iterations=600)
    records = served(fitted, np.concatenate([noisy(0.5, seed=2), quiet, noisy(0.5, seed=3)]))
    assert sum(record.plan.drift_began for record in records) == 2


@pytest.mark.slow
def test_covariates_that_leave_are_reported_too():
    def driven(shift, seed):
        cpu_TWD = shift + np.random.default_rng(seed).uniform(0.0, 1.0, (200, 3, 1))
        return noisy(0.02, iterations=200, seed=seed), cpu_TWD

    speed_TW, cpu_TWD = driven(0.0, 0)
    one = Trace(
        np.full((200, 3), 32.0), 32.0 / speed_TW, workers=FLEET, covariates=cpu_TWD, covariate_names=["cpu_share"]
    )
    narx = fit(NARX(lags=2, covariate_lags=0, hidden=2, training=Training(epochs=1)), [one])
    assert served(narx, *driven(0.0, 1))[-1].plan.drift == 0.0
    last = served(narx, *driven(5.0, 1))
    assert last[-1].plan.drift > 0.5
    assert any("of the latest covariates are far from those" in record.plan.why for record in last)


@pytest.mark.slow
@pytest.mark.parametrize("predictor", [LastValue(), EWMA(smoothing=None), fit(LastValue(), [trace(0.02)])])
def test_a_predictor_without_a_reference_reports_nothing(predictor):
    records = served(predictor, np.concatenate([noisy(0.02), noisy(0.5)]))
    assert all(np.isnan(record.plan.drift) and not record.plan.drift_began for record in records)


def test_the_reference_is_kept_in_the_models_file_and_an_older_file_has_none(fitted, tmp_path):
    loaded = load_model(save_model(fitted, tmp_path / "model.safetensors"))
    assert loaded.reference_ == fitted.reference_
    state = {name: value for name, value in fitted.state_dict().items() if name != "learnt/reference"}
    older = EWMA(smoothing=None)
    older.load_state_dict(state)
    assert older.reference_ is None


def test_a_refit_knows_both_days(fitted):
    both = fit(EWMA(smoothing=None), [trace(0.5)], start=fitted).reference_.change
    joined = np.concatenate([changes(trace(0.02).speed), changes(trace(0.5).speed)])
    assert both.count == joined.size
    assert both.deviation == pytest.approx(joined.std())


def test_what_held_out_workers_did_is_not_what_was_fitted():
    speed_TW = noisy(0.02)
    speed_TW[:, 0] = noisy(0.5)[:, 0]
    mixed = Trace(np.full(speed_TW.shape, 32.0), 32.0 / speed_TW, workers=FLEET)
    model = fit(EWMA(smoothing=None), [mixed], hold_out=["a"])
    assert model.reference_.change.deviation == pytest.approx(changes(speed_TW[:, 1:]).std())


@pytest.mark.slow
def test_a_mixture_of_fitted_predictors_knows_what_it_was_fitted_on():
    mixture = fit(Mixture([EWMA(smoothing=None), LastValue()]), [trace(0.02)])
    assert served(mixture, noisy(0.5))[-1].plan.drift > 0.3


@pytest.mark.slow
def test_a_resumed_run_goes_on_exactly_and_does_not_report_again(fitted):
    speed_TW = np.concatenate([noisy(0.02, seed=1), noisy(0.5, seed=2)])
    first = LoadBalancer(fitted, workers=FLEET, global_batch=96)
    served(None, speed_TW[:350], balancer=first)
    second = LoadBalancer(EWMA(smoothing=None), workers=FLEET, global_batch=96)
    second.load_state_dict(first.state_dict())
    went_on, resumed = (served(None, speed_TW[350:], balancer=one) for one in (first, second))
    assert [one.plan.drift for one in went_on] == [one.plan.drift for one in resumed]
    assert not any(one.plan.drift_began for one in resumed)


@pytest.mark.slow
def test_a_worker_that_takes_anothers_place_is_not_compared_with_it(fitted):
    balancer = LoadBalancer(fitted, workers=FLEET, global_batch=96)
    for k, speed_W in enumerate(noisy(0.02)):
        speed_W[2] *= 30.0 if k % 2 else 1.0  # every newcomer is thirty times as fast as who left, or slow again
        served(None, speed_W[None], balancer=balancer)
        balancer.leave(balancer.workers[2])
        balancer.join(f"worker {k}")
    assert balancer.plan.drift == 0.0


@pytest.mark.slow
def test_every_sink_tells_of_it(fitted, tmp_path, caplog):
    prometheus = pytest.importorskip("prometheus_client")
    from paceline.recording import Prometheus

    registry = prometheus.CollectorRegistry()
    outputs = [*sinks(str(tmp_path / "run.jsonl"), "log"), Prometheus(registry=registry)]
    records = served(fitted, np.concatenate([noisy(0.02, seed=1), noisy(0.5, seed=2)]))
    with caplog.at_level("WARNING", "paceline.metrics"):
        for record in records:
            for sink in outputs:
                sink(record)
    outputs[0].close()
    assert len(caplog.messages) == 1
    assert SAID in caplog.messages[0]
    assert registry.get_sample_value("paceline_drifts_total") == 1.0
    assert registry.get_sample_value("paceline_drift") == records[-1].plan.drift
    run = read_run(tmp_path / "run.jsonl")
    assert run.of_fleet["drift"] == pytest.approx([record.plan.drift for record in records], abs=1e-6)
    with (console := Console(width=120)).capture() as shown:
        console.print(view(run, done=len(run)))
    assert "of the latest speeds or covariates are far from what the model was fitted on" in shown.get()
    page = render(run_page(run))
    assert "far from what the model was fitted on, the most at a time" in page


def test_lines_of_a_run_without_drift_lack_it(tmp_path):
    (sink,) = sinks(str(tmp_path / "run.jsonl"))
    for record in served(LastValue(), noisy(0.02, iterations=5)):
        sink(record)
    sink.close()
    assert all("drift" not in json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines())
    assert np.isnan(read_run(tmp_path / "run.jsonl").of_fleet["drift"]).all()


@given(st.lists(st.floats(-50.0, 50.0), min_size=2, max_size=200))
@settings(derandomize=True, max_examples=200, deadline=None)
def test_whatever_was_fitted_more_of_the_same_is_never_drift(values):
    change = np.array(values)
    reference = Reference(Spread.of(change), ())
    assert reference.unknown_changes(change).mean() <= 1 / FAR**2 < MANY


@pytest.mark.parametrize("stored", [np.zeros((0, 3)), np.zeros(3), np.zeros((2, 3)), np.full((1, 3), np.nan)])
def test_a_damaged_reference_is_refused(fitted, stored):
    state = fitted.state_dict() | {"learnt/reference": stored}
    with pytest.raises(ValueError, match="reference must hold"):
        EWMA(smoothing=None).load_state_dict(state)
