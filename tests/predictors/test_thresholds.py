"""How much is enough: numbers of speeds and of examples from which a fit does one thing and not another."""

import logging
from inspect import signature

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import (
    ARIMA,
    EWMA,
    KINDS,
    RLS,
    BatchTime,
    Boosting,
    ChangePoint,
    Holt,
    HuberEWMA,
    LeaderSearch,
    LocalLevel,
    Training,
    checks,
)
from paceline.predictors.arima.arima import _are_sparse
from paceline.predictors.trees import boosting


def walk(speeds, seed=0):
    """A trace of one worker for each number of speeds that it reported first."""
    rng = np.random.default_rng(seed)
    seconds_TW = np.exp(np.cumsum(rng.normal(0.0, 0.1, (max(speeds), len(speeds))), axis=0))
    seconds_TW[np.arange(max(speeds))[:, None] >= np.array(speeds)] = np.nan
    return Trace(np.ones_like(seconds_TW), seconds_TW, workers=[f"with {count}" for count in speeds])


@pytest.mark.parametrize(("order", "least"), [((0, 1, 1), 20), ((1, 1, 1), 30), ((1, 0, 0), 20)])
def test_a_worker_gets_coefficients_of_its_own_from_ten_speeds_for_each_and_one_more(order, least):
    fitted = ARIMA(order=order).fit([walk([least - 1, least, 90])])
    assert list(fitted.coefficients_) == ["", f"with {least}", "with 90"]


@pytest.mark.parametrize(("follow", "sparse"), [(4, False), (3, True)])
def test_speeds_are_sparse_where_less_than_half_of_them_follow_another(follow, sparse):
    """Of nine speeds of a worker the first follows none; of two workers the first of each."""
    gaps = [follow >= k for k in range(1, 9)]
    place = np.cumsum([0, *(1 if near else 2 for near in gaps)])
    value_TN = np.full((place[-1] + 1, 2), np.nan)
    value_TN[place] = 1.0
    value_TN = value_TN if follow % 2 else value_TN[:, :1]
    if sparse:
        with pytest.warns(UserWarning, match=f"only {2 * follow} of 16 speeds follow one of the iteration before"):
            assert _are_sparse(value_TN)
    else:
        assert not _are_sparse(value_TN)


@pytest.mark.slow
def test_boosting_is_fitted_to_a_random_part_of_too_many_speeds_and_says_so(monkeypatch, caplog):
    pytest.importorskip("sklearn", reason="needs the boosting extra")
    trace = walk([500, 300])
    whole = Boosting(trees=1).fit([trace])
    for most, told in ((800, False), (799, True), (300, True)):
        monkeypatch.setattr(boosting, "MOST_EXAMPLES", most)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="paceline"):
            fitted = Boosting(trees=1).fit([trace])
        assert [record.getMessage() for record in caplog.records] == [
            f"Boosting is fitted to a random {most / 800:.3g} of the 800 speeds"
        ] * told
        assert np.array_equal(fitted.trees_.value_N, whole.trees_.value_N) == (not told)


def test_a_random_part_keeps_each_target_beside_its_inputs():
    inputs_NF = np.arange(4000.0).reshape(2000, 2)
    kept_NF, target_N = boosting._sampled((inputs_NF, inputs_NF[:, 1]), 0.25, np.random.default_rng(0))
    np.testing.assert_array_equal(kept_NF[:, 1], target_N)
    assert 400 < len(target_N) < 600
    assert boosting._sampled((inputs_NF, inputs_NF[:, 1]), 1.0, np.random.default_rng(0))[1] is not None


@pytest.mark.parametrize(("changes", "enough"), [(49, False), (50, True)])
def test_boosting_needs_fifty_changes_of_speed(changes, enough):
    pytest.importorskip("sklearn", reason="needs the boosting extra")
    model, trace = Boosting(trees=1), walk([changes + 2])  # the second speed gives the scale to measure the first by
    if enough:
        assert model.fit([trace]) is model
    else:
        with pytest.raises(ValueError, match="at least 50 changes of speed to fit, got 49"):
            model.fit([trace])


RANGES = [
    (lambda value: EWMA(smoothing=value), r"smoothing must lie in \(0, 1\]", "(]"),
    (lambda value: HuberEWMA(smoothing=value), r"smoothing must lie in \(0, 1\]", "(]"),
    (lambda value: ChangePoint(smoothing=value), r"smoothing must lie in \(0, 1\]", "(]"),
    (lambda value: LocalLevel(smoothing=value), r"smoothing must lie in \(0, 1\]", "(]"),
    (lambda value: Holt(level_smoothing=value), r"level_smoothing must lie in \(0, 1\]", "(]"),
    (lambda value: Holt(trend_smoothing=value), r"trend_smoothing must lie in \[0, 1\]", "[]"),
    (lambda value: Holt(damping=value), r"damping must lie in \[0, 1\]", "[]"),
    (lambda value: RLS(forgetting=0.9 + 0.1 * value), r"forgetting must lie in \(0.9, 1\]", "(]"),
    (lambda value: BatchTime(probing=value), r"probing must lie in \[0, 1\)", "[)"),
    (lambda value: BatchTime(overlap=1.0 + value), "overlap must be at least 1", "["),
    (lambda value: BatchTime(near=value), "near must be a batch size above 0", "("),
    (lambda value: Boosting(learning_rate=value), r"learning_rate must lie in \(0, 1\]", "(]"),
    (lambda value: HuberEWMA(threshold=value), "threshold must be above 0", "("),
    (lambda value: ChangePoint(threshold=value), "threshold must be above 0 scales", "("),
    (lambda value: LeaderSearch(step=value), r"step must lie in \(0, 1\)", "()"),
    (lambda value: LeaderSearch(tolerance=value), r"tolerance in \[0, 1\)", "[)"),
    (lambda value: LeaderSearch(window=1 + value), "window be at least 1 iteration", "["),
]


@pytest.mark.parametrize(("make", "sentence", "ends"), RANGES, ids=[sentence for _, sentence, _ in RANGES])
def test_an_argument_may_lie_in_its_range_and_nowhere_else(make, sentence, ends):
    """The ends of a range belong to it or not as its sentence says; nobody knows of NaN where it lies."""
    allowed = [0.001, 0.5, 0.999, *([0.0] if "[" in ends else []), *([1.0] if "]" in ends else [])]
    refused = [-0.001, np.nan, *([0.0] if "(" in ends else [])]
    if len(ends) == 2:
        refused += [1.001, *([1.0] if ")" in ends else [])]
    for value in allowed:
        make(value)
    for value in refused:
        with pytest.raises(ValueError, match=sentence):
            make(value)


def test_a_smoothed_fit_of_a_model_file_lies_in_its_range_too():
    for smoothing, allowed in ((0.0, False), (0.01, True), (1.0, True), (1.01, False)):
        model = EWMA(smoothing=None)
        if allowed:
            model.load_state_dict({"learnt/smoothing": np.array(smoothing)})
            assert model.smoothing_ == smoothing
        else:
            with pytest.raises(ValueError, match=r"smoothing must lie in \(0, 1\], got"):
                model.load_state_dict({"learnt/smoothing": np.array(smoothing)})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_whole_numbers_of_a_predictor_are_whole_and_no_truth_values(kind):
    """Every window, lag, unit, tree and leaf: what is no number of any is refused by name."""
    for name, parameter in signature(kind).parameters.items():
        if isinstance(parameter.default, int) and not isinstance(parameter.default, bool) and kind is not LeaderSearch:
            for value in (-1, 2.5, True, 10_001, "8"):
                with pytest.raises(ValueError, match=f"{name} must be a whole number from"):
                    kind(**{name: value})


@pytest.mark.parametrize("patience", [1, 2, 3])
@pytest.mark.slow
def test_training_stops_after_so_many_passes_without_a_better_loss(patience):
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    from paceline.predictors.fitting import Fitting
    from paceline.predictors.networks.descent import descend
    from paceline.predictors.networks.neural import Examples
    from paceline.predictors.networks.training_windows import windows_of

    def loss(inputs, targets):
        judged.append(not torch.is_grad_enabled())
        return (weight * 0.0 + 1.0).sum()

    examples = Examples(np.zeros((8, 1)), np.zeros(8), np.arange(8) > 5)
    windows = windows_of([("a", [examples])], 8, memory=10**6, seed=0)
    for epochs, passes in ((9, patience), (1, 1)):
        judged, weight = [], torch.ones(1)
        options = Training(epochs=epochs, patience=patience)
        found = descend({"weight": weight}, loss, ("inputs", "targets"), windows, options, Fitting(), torch.Generator())
        assert sum(judged) == 1 + passes  # the start, and the end of each pass
        assert found["weight"].tolist() == [1.0]  # the start is kept: nothing was better


def test_what_no_worker_reports_is_told_alone_or_with_the_number_of_others():
    pytest.importorskip("sklearn", reason="needs the boosting extra")
    trace = checks.example_trace(100)
    covariates = trace.covariates.copy()
    covariates[..., 1] = np.nan
    unknown = Trace(trace.samples, trace.seconds, covariates=covariates, covariate_names=trace.covariate_names)
    for lags, told in ((0, "distractor now: take"), (2, "distractor now nor 2 other inputs: take")):
        with pytest.raises(ValueError, match=told):
            Boosting(covariate_lags=lags).fit([unknown])
