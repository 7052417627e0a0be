"""SimpleRNN and LSTM: numpy serves what torch trained, and a worker's state is its own."""

import numpy as np
import pytest

from paceline.datasets import Trace, synthetic_fleet
from paceline.predictors import LSTM, LastValue, Report, SimpleRNN, Training

torch = pytest.importorskip("torch")

KINDS = {SimpleRNN: torch.nn.RNN, LSTM: torch.nn.LSTM}


def rms(model, trace, skip):
    model.reset(trace.workers)
    covariates_TWD = trace.covariates_named(model.covariate_names)
    errors = []
    for k, speed_W in enumerate(trace.speed):
        covariates_WD = None if covariates_TWD is None else covariates_TWD[k]
        errors.append(np.log(speed_W / model.predict(covariates=covariates_WD).speed))
        model.observe(Report(trace.samples[k], trace.seconds[k], covariates=covariates_WD))
    return float(np.sqrt(np.mean(np.square(errors[skip:]))))


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_computes_the_cell_that_torch_computes(kind):
    layer = KINDS[kind](3, 5, batch_first=True)
    model = kind(hidden=5)
    model.weights_ = {n.removesuffix("_l0"): w.detach().numpy().T.astype(float) for n, w in layer.named_parameters()}
    inputs = np.random.default_rng(0).normal(size=(4, 7, 3))
    state = np.zeros((4, model.cells * 5))
    for step in range(7):
        state = model.step_cell(inputs[:, step], state)
    expected = layer(torch.tensor(inputs, dtype=torch.float32))[0][:, -1].detach().numpy()
    assert state[:, :5] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_fit_beats_last_value_later(kind):
    trace = synthetic_fleet("mixed", workers=10, iterations=800, seed=3)
    model = kind(training=Training(epochs=15, batch_size=16, learning_rate=1e-2, weight_decay=1e-2))
    model.fit([trace.select(slice(0, 400))])
    assert rms(model, trace, 400) < 0.9 * rms(LastValue(), trace, 400)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_weights_torch_untouched(kind):
    trace = synthetic_fleet("mixed", workers=3, iterations=200)
    training = Training(epochs=2, batch_size=4)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other = (kind(training=training).fit([trace]) for _ in range(2))
    assert torch.rand(1) == expected
    assert all(np.array_equal(one.weights_[name], other.weights_[name]) for name in one.weights_)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gap_leaves_worker_and_others_alone(kind):
    trace = synthetic_fleet("noexog", workers=2, iterations=200)
    model = kind(covariates=(), training=Training(epochs=2, batch_size=4)).fit([trace])
    model.reset(["a", "b"])
    for k in range(50):
        model.observe(Report(trace.samples[k], trace.seconds[k]))
    before = model.predict().speed
    model.observe(Report([64, 64], [np.nan, 0.5]))
    after = model.predict().speed
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.slow
def test_gap_skipped_in_training_as_in_serving():
    trace = synthetic_fleet("noexog", workers=1, iterations=300)
    seconds = trace.seconds.copy()
    seconds[100:110] = np.nan
    gappy = Trace(trace.samples, seconds)
    closed = Trace(np.delete(trace.samples, range(100, 110), 0), np.delete(trace.seconds, range(100, 110), 0))
    training = Training(epochs=1, batch_size=4)
    one, other = (LSTM(training=training).fit([chosen]) for chosen in (gappy, closed))
    assert all(np.array_equal(one.weights_[name], other.weights_[name]) for name in one.weights_)


@pytest.mark.parametrize("kind", KINDS)
def test_traces_too_short_to_learn_from_are_refused(kind):
    with pytest.raises(ValueError, match="too short to fit"):
        kind().fit([Trace(samples=[[8], [8]], seconds=[[1], [1]])])
