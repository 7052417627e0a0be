"""What each kind of network minimises, and what it starts from, against its formula in numpy."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.predictors.fitting import Fitting
from paceline.predictors.networks.neural import (
    BarrierExamples,
    Examples,
    GateExamples,
    Sequences,
    Training,
    gated_layer,
    hidden_layer,
    tanh_layer,
)
from paceline.predictors.networks.training_windows import grouped, windows_of

torch = pytest.importorskip("torch", reason="needs the torch extra")

from paceline.predictors.networks import descent, torch_fit, torch_recurrent  # noqa: E402 - they import torch

ONCE = Training(epochs=1, batch_size=100, learning_rate=1e-12, weight_decay=0.0, seed=3)
VALIDATES = np.arange(12) % 3 == 0
RNG = np.random.default_rng(0)


def huber(errors, delta):
    small = np.abs(errors) <= delta
    return np.where(small, 0.5 * errors**2, delta * (np.abs(errors) - 0.5 * delta))


def windows(examples):
    return windows_of([("a", [examples])], len(examples.targets), memory=10**6, seed=0)


@pytest.fixture
def told(monkeypatch):
    """Return moments of a training of one step: its loss and that on what validates, before anything changed."""
    monkeypatch.setattr(descent, "TOLD_EVERY", 0.0)
    return []


def require_losses(told, loss_N):
    expected = loss_N[~VALIDATES].mean(), loss_N[VALIDATES].mean()
    assert (told[-1].loss, told[-1].held_out) == pytest.approx(expected, rel=1e-4)


def random(**shapes):
    return {name: RNG.normal(size=shape) for name, shape in shapes.items()}


@pytest.mark.slow
def test_narx_sees_deviations_beside_their_arcsinh_and_counts_large_errors_linearly(told):
    inputs, past = RNG.normal(size=(12, 5)), 2
    targets = 3.0 * RNG.normal(size=12)
    weights = random(w1=(7, 3), b1=3, w2=3, b2=(), direct=7)
    fitted = torch_fit.fit_tanh_layer(
        windows(Examples(inputs, targets, VALIDATES)), past, 3, ONCE, Fitting(tell=told.append), weights
    )
    seen = np.concatenate([inputs, np.sinh(inputs[:, :past])], axis=1)
    errors = tanh_layer(weights, seen) - targets
    assert (np.abs(errors) > 1.0).any()
    assert (np.abs(errors) < 1.0).any()
    require_losses(told, huber(errors, 1.0))
    for name, value in weights.items():
        np.testing.assert_allclose(fitted[name], value, rtol=1e-5, atol=1e-6)


def test_narx_starts_as_a_network_that_forecasts_no_change(told):
    targets = RNG.normal(size=12)
    made = windows(Examples(RNG.normal(size=(12, 5)), targets, VALIDATES))
    fitted = torch_fit.fit_tanh_layer(made, 2, 4, ONCE, Fitting(tell=told.append))
    require_losses(told, huber(targets, 1.0))
    first = torch.randn(7, 4, generator=torch.Generator().manual_seed(3)).numpy() / 7**0.5
    np.testing.assert_allclose(fitted["w1"], first, rtol=1e-5)
    assert {name: value.shape for name, value in fitted.items()} == {
        "w1": (7, 4),
        "b1": (4,),
        "w2": (4,),
        "b2": (),
        "direct": (7,),
    }
    assert max(np.abs(fitted[name]).max() for name in ("b1", "w2", "b2", "direct")) < 1e-9


def test_a_network_of_an_earlier_version_is_fitted_on_with_weights_of_zero_for_the_deviations(told):
    inputs, targets = RNG.normal(size=(12, 5)), RNG.normal(size=12)
    weights = random(w1=(5, 3), b1=3, w2=3, b2=(), direct=5)
    made = windows(Examples(inputs, targets, VALIDATES))
    fitted = torch_fit.fit_tanh_layer(made, 2, 3, ONCE, Fitting(tell=told.append), weights)
    require_losses(told, huber(tanh_layer(weights, inputs) - targets, 1.0))
    np.testing.assert_allclose(fitted["w1"], np.concatenate([weights["w1"], np.zeros((2, 3))]), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(fitted["direct"], [*weights["direct"], 0.0, 0.0], rtol=1e-5, atol=1e-9)


def gates(covariates=0):
    """Return examples of a gated network with three references, and which of its seven inputs are of covariates."""
    examples = GateExamples(
        RNG.normal(size=(12, 7)), 4.0 * RNG.normal(size=12), VALIDATES, RNG.normal(size=(12, 3)), RNG.random(12)
    )
    columns = np.zeros((covariates, 7))
    for d in range(covariates):
        columns[d, 3 + d :: covariates] = 1.0
    return examples, columns, random(w1=(7, 4), b1=4, w2=(4, 5), b2=5)


def changes(weights, inputs, references, unit):
    return gated_layer(weights, hidden_layer(weights, inputs), references, unit)


def test_a_gated_network_counts_errors_beyond_two_scales_linearly(told):
    examples, columns, weights = gates()
    torch_fit.fit_gates(windows(examples), columns, 9, ONCE, Fitting(tell=told.append), weights)
    errors = changes(weights, examples.inputs, examples.references, examples.unit) - examples.targets
    assert (np.abs(errors) > 2.0).any()
    assert (np.abs(errors) < 2.0).any()
    require_losses(told, huber(errors, 2.0))


def test_the_change_of_a_gated_network_is_a_choice_of_references_and_two_heads():
    examples, _, weights = gates()
    output = np.tanh(examples.inputs @ weights["w1"] + weights["b1"]) @ weights["w2"] + weights["b2"]
    raw = np.exp(np.concatenate([np.zeros((12, 1)), output[:, :3]], axis=1))
    chosen = raw[:, 1:] / raw.sum(axis=1, keepdims=True)
    expected = (chosen * examples.references).sum(axis=1) + output[:, 3] + examples.unit * output[:, 4]
    columns = examples.inputs, examples.references, examples.unit
    np.testing.assert_allclose(changes(weights, *columns), expected, rtol=1e-12)
    given = {name: torch.tensor(value) for name, value in weights.items()}
    np.testing.assert_allclose(torch_fit.gated_change(given, *map(torch.tensor, columns)), expected, rtol=1e-12)


def test_a_gated_network_starts_as_one_that_takes_all_references_alike(told):
    examples, columns, _ = gates()
    fitted = torch_fit.fit_gates(windows(examples), columns, 6, ONCE, Fitting(tell=told.append))
    require_losses(told, huber(examples.references.sum(axis=1) / 4.0 - examples.targets, 2.0))
    first = torch.randn(7, 6, generator=torch.Generator().manual_seed(3)).numpy() / 7**0.5
    np.testing.assert_allclose(fitted["w1"], first, rtol=1e-5)
    assert [fitted[name].shape for name in ("b1", "w2", "b2")] == [(6,), (6, 5), (5,)]
    assert max(np.abs(fitted[name]).max() for name in ("b1", "w2", "b2")) < 1e-9


def test_covariates_are_hidden_alone_and_together_as_the_generator_draws():
    """Each one in a tenth of the examples, all in three of twenty: the draws are those of the same generator."""
    _, columns, _ = gates(covariates=2)
    inputs = torch.ones(5000, 7)
    given = torch.tensor(columns, dtype=torch.float32)
    seen, other = torch_fit._hider(given, torch.Generator().manual_seed(1))((inputs, inputs[:, 0]))
    assert torch.equal(other, inputs[:, 0])
    generator = torch.Generator().manual_seed(1)
    each = torch.rand(5000, 2, generator=generator) < 0.1
    hidden = (each | (torch.rand(5000, 1, generator=generator) < 0.15)).numpy()
    expected = np.ones((5000, 7))
    for d in range(2):
        expected[np.ix_(hidden[:, d], columns[d] == 1.0)] = 0.0
    np.testing.assert_array_equal(seen.numpy(), expected)
    assert expected.min() == 0.0 < expected.mean() < 1.0
    batch = (inputs,)
    assert torch_fit._hider(given[:0], generator)(batch) is batch


def test_covariates_are_hidden_in_what_is_fitted_and_not_in_what_validates(told, monkeypatch):
    monkeypatch.setattr(torch_fit, "HIDDEN_ALL", 1.0)
    examples, columns, weights = gates(covariates=2)
    torch_fit.fit_gates(windows(examples), columns, 9, ONCE, Fitting(tell=told.append), weights)
    shown = examples.inputs * (columns.sum(axis=0) == 0)
    fitted, judged = (
        huber(changes(weights, inputs, examples.references, examples.unit) - examples.targets, 2.0)
        for inputs in (shown, examples.inputs)
    )
    require_losses(told, np.where(VALIDATES, judged, fitted))


def barrier(count=4):
    """Return groups of two or more workers' windows, of which some validate."""
    examples, _, weights = gates()
    more = BarrierExamples(
        examples.inputs,
        examples.targets / 4.0,
        VALIDATES,
        examples.references,
        examples.unit,
        scale=0.1 + RNG.random(12),
        level=RNG.normal(size=12),
    )
    rows = np.concatenate([np.flatnonzero(VALIDATES).reshape(-1, count), np.flatnonzero(~VALIDATES).reshape(-1, count)])
    return more, rows, weights


def test_a_barrier_head_minimises_how_long_a_group_waits_for_its_slowest(told):
    examples, rows_NG, weights = barrier()
    groups = windows(examples).mapped(lambda records: grouped(records, rows_NG))
    no_covariates = np.zeros((0, 7))
    torch_fit.fit_barrier(groups, no_covariates, ONCE, Fitting(tell=told.append), weights)
    change = changes(weights, examples.inputs, examples.references, examples.unit)
    p, v = (np.exp(examples.level + examples.scale * of)[rows_NG] for of in (change, examples.targets))
    loss_N = np.log(((p / v) ** 40.0).sum(axis=1)) / 40.0 + np.log(v.sum(axis=1)) - np.log(p.sum(axis=1))
    assert told[-1].held_out == pytest.approx(loss_N[0], rel=1e-4)
    assert told[-1].loss == pytest.approx(loss_N[1:].mean(), rel=1e-4)


def test_a_barrier_head_is_tuned_at_a_share_of_the_rate_in_batches_of_as_many_windows(monkeypatch):
    examples, rows_NG, weights = barrier()
    asked = []

    def descend(weights, loss, columns, windows, training, fitting, generator, augment):
        asked.append((columns, training, augment((torch.ones(2, 4, 7),))[0].mean().item()))

    monkeypatch.setattr(torch_fit, "descend", descend)
    monkeypatch.setattr(torch_fit, "HIDDEN_ALL", 1.0)
    groups = windows(examples).mapped(lambda records: grouped(records, rows_NG))
    for size, expected in ((100, 25), (11, 2), (3, 1), (None, 64)):
        training = Training(batch_size=size, learning_rate=0.5, epochs=7, patience=2, seed=9)
        torch_fit.fit_barrier(groups, np.ones((1, 7)), training, Fitting(), weights)
        columns, tuning, shown = asked.pop()
        assert columns == ("inputs", "references", "unit", "targets", "scale", "level")
        assert tuning == replace(training, learning_rate=0.15, batch_size=expected)
        assert shown == 0.0


# -- recurrent networks --------------------------------------------------------------------------------------------


def sequences(steps=5):
    """Return sequences of two inputs with gaps in their targets; the last of them has none."""
    inputs, targets = RNG.normal(size=(6, steps, 2)), 3.0 * RNG.normal(size=(6, steps))
    targets[RNG.random(targets.shape) < 0.3] = np.nan
    targets[4, 1:] = np.nan
    return Sequences(inputs, targets, np.arange(6) % 3 == 0)


@pytest.mark.parametrize("kind", ["SimpleRNN", "LSTM", "GRU"])
def test_a_recurrent_network_counts_every_known_step_and_errors_beyond_two_scales_linearly(told, kind):
    made, hidden = sequences(), 3
    layer = {"SimpleRNN": torch.nn.RNN, "LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}[kind](2, hidden, batch_first=True)
    weights = {n.removesuffix("_l0"): w.detach().numpy().T.astype(float) for n, w in layer.named_parameters()}
    weights |= random(out=hidden, out_bias=())
    fitted = torch_recurrent.fit_recurrent(kind, windows(made), hidden, ONCE, Fitting(tell=told.append), weights)
    state = layer(torch.tensor(made.inputs, dtype=torch.float32))[0].detach().numpy()
    loss = huber(state @ weights["out"] + weights["out_bias"] - made.targets, 2.0)
    expected = np.nanmean(loss[~made.validates]), np.nanmean(loss[made.validates])
    assert (told[-1].loss, told[-1].held_out) == pytest.approx(expected, rel=1e-4)
    assert list(fitted) == list(weights)
    for name, value in weights.items():
        assert fitted[name].shape == np.shape(value)
        assert fitted[name].flags.c_contiguous
        np.testing.assert_allclose(fitted[name], value, rtol=1e-4, atol=1e-6)


def test_a_recurrent_network_starts_from_uniform_weights_and_an_output_of_zero(told):
    made, hidden = sequences(), 4
    fitted = torch_recurrent.fit_recurrent("GRU", windows(made), hidden, ONCE, Fitting(tell=told.append))
    loss = huber(made.targets, 2.0)
    assert told[-1].loss == pytest.approx(np.nanmean(loss[~made.validates]), rel=1e-5)
    generator = torch.Generator().manual_seed(3)
    for name, shape in (("weight_ih", (12, 2)), ("weight_hh", (12, 4)), ("bias_ih", 12), ("bias_hh", 12)):
        drawn = torch.empty(shape).uniform_(-0.5, 0.5, generator=generator).numpy()
        np.testing.assert_allclose(fitted[name], drawn.T, rtol=1e-5)
    assert np.abs([*fitted["out"], fitted["out_bias"]]).max() < 1e-9


def test_a_batch_of_gaps_alone_has_no_loss_and_counts_nothing(told):
    """Its mean would be one of nothing: NaN, which ends a training."""
    made = sequences()
    made.targets[~made.validates] = np.nan
    torch_recurrent.fit_recurrent("GRU", windows(made), 2, ONCE, Fitting(tell=told.append))
    assert told[-1].loss == 0.0
    made = sequences()
    made.targets[made.validates] = np.nan
    torch_recurrent.fit_recurrent("GRU", windows(made), 2, ONCE, Fitting(tell=told.append))
    assert told[-1].held_out == np.inf
