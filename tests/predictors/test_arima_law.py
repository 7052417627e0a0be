"""What a fit of ARIMA is made of, beside loops over single numbers, and where its bounds lie."""

import math

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import ARIMA, Report
from paceline.predictors.arima import arima, estimate
from paceline.predictors.arima.estimate import Coefficients, _Panel, corrected_aic, fit_css, fit_css_groups
from paceline.predictors.arima.filter import state_space, states


def panel(seed, iterations=30, series=3):
    return np.random.default_rng(seed).normal(0.0, 1.0, (iterations, series))


@pytest.mark.parametrize("lags", [0, 1, 2, 3])
def test_past_values_are_taken_away_one_by_one(lags):
    value_TN, ar_NP = panel(1), panel(2, 3, lags)
    wanted = [
        [value_TN[t, n] - sum(ar_NP[n, i] * value_TN[t - 1 - i, n] for i in range(min(lags, t))) for n in range(3)]
        for t in range(30)
    ]
    np.testing.assert_allclose(estimate._whitened(value_TN, ar_NP), wanted)


def innovations(value_TN, ma_NQ):
    found = np.zeros_like(value_TN)
    for t, n in np.ndindex(*value_TN.shape):
        past = (ma_NQ[n, j] * found[t - 1 - j, n] for j in range(min(ma_NQ.shape[1], t)))
        found[t, n] = value_TN[t, n] - sum(past)
    return found


@pytest.mark.parametrize(
    "ma", [[], [-0.7], [0.9], [0.0], [-0.9, 0.5], [0.5, 0.06], [0.3, -0.2, 0.4]], ids=lambda ma: str(ma)
)
def test_innovations_are_those_that_a_moving_average_makes_the_values_of(ma):
    value_TN, ma_NQ = panel(3), np.array([ma, ma, [0.5 * one for one in ma]])
    before = value_TN.copy()
    np.testing.assert_allclose(estimate._forgotten(value_TN, ma_NQ), innovations(value_TN, ma_NQ), atol=1e-10)
    np.testing.assert_array_equal(value_TN, before)


@pytest.mark.parametrize(
    "roots", [[0.5], [0.5, -0.3], [0.4 + 0.3j, 0.4 - 0.3j], [0.9, 0.1 + 0.2j, 0.1 - 0.2j]], ids=str
)
@pytest.mark.parametrize("largest", [0.4, 0.95])
def test_coefficients_are_bounded_by_their_largest_root_alone(roots, largest):
    coefficients_K = np.real(np.poly(roots))[1:]
    found = np.sort_complex(estimate._inverse_roots(coefficients_K[None])[0])
    np.testing.assert_allclose(found, np.sort_complex(np.array(roots)), atol=1e-12)
    shrunk = min(1.0, largest / max(abs(root) for root in roots))
    bounded = estimate._bounded(np.stack([coefficients_K, 0.0 * coefficients_K]), largest)
    np.testing.assert_allclose(bounded[0], np.real(np.poly([shrunk * root for root in roots]))[1:], atol=1e-12)
    assert not bounded[1].any()


def test_without_coefficients_there_is_nothing_to_bound():
    assert estimate._bounded(np.empty((2, 0)), 0.9).shape == (2, 0)


def test_lags_are_the_panel_one_iteration_later_each():
    value_TN = panel(4, 5, 2)
    lags = estimate._lags(value_TN, 3)
    assert len(lags) == 3
    for lag, found in enumerate(lags, 1):
        np.testing.assert_array_equal(found[:lag], 0.0)
        np.testing.assert_array_equal(found[lag:], value_TN[:-lag])


def test_a_gap_is_bridged_by_the_last_value_and_the_first_stands_for_those_before_it():
    missing_TN = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1]], dtype=bool)
    given = np.arange(30.0).reshape(5, 3, 2)
    found = estimate._bridged(given, missing_TN)
    np.testing.assert_array_equal(found[:, 0], given[[1, 1, 1, 1, 4], 0])
    np.testing.assert_array_equal(found[:, 1], given[:, 1])
    assert not found[:, 2].any()


def test_normal_equations_are_summed_over_the_values_that_count_of_each_group_and_damped():
    rng, group_N = np.random.default_rng(5), np.array([0, 1, 0])
    counts_TN, value_TN = rng.random((20, 3)) < 0.8, panel(6, 20)
    one = _Panel(value_TN, np.empty((20, 3, 0)), counts_TN, group_N, 1, 1)
    columns, target_TN = [panel(7, 20), panel(8, 20)], panel(9, 20)
    curvature_GKK, slope_GK = one.products(columns, target_TN)
    damping_G = np.array([0.5, 0.0])
    solved_GK = estimate._solved(curvature_GKK, slope_GK, damping_G)
    for group in (0, 1):
        counted = counts_TN & (group_N == group)
        inputs_MK = np.stack([column_TN[counted] for column_TN in columns], axis=1)
        square_KK, product_K = inputs_MK.T @ inputs_MK, inputs_MK.T @ target_TN[counted]
        np.testing.assert_allclose(curvature_GKK[group], square_KK)
        np.testing.assert_allclose(slope_GK[group], product_K)
        damped_KK = square_KK + damping_G[group] * np.diag(np.diag(square_KK))
        np.testing.assert_allclose(solved_GK[group], np.linalg.solve(damped_KK, product_K), rtol=1e-9)
        loss = np.square(value_TN[counted]).mean()
        assert one.loss(value_TN)[group] == pytest.approx(loss)


def test_an_input_that_never_differs_from_zero_gets_no_weight():
    curvature, slope = np.array([[[4.0, 0.0], [0.0, 0.0]]]), np.array([[2.0, 0.0]])
    assert estimate._solved(curvature, slope, np.zeros(1)) == pytest.approx(np.array([[0.5, 0.0]]))
    assert estimate._solved(0.0 * curvature, 0.0 * slope, np.zeros(1)) == pytest.approx(np.zeros((1, 2)))


def test_a_part_of_the_groups_is_numbered_anew():
    covariates_TND = panel(10, 12, 8).reshape(12, 4, 2)
    whole = _Panel(panel(11, 12, 4), covariates_TND, np.ones((12, 4), dtype=bool), np.array([2, 0, 1, 2]), 1, 2)
    part = whole.only(np.array([0, 2]))
    assert part.group_N.tolist() == [1, 0, 1]
    np.testing.assert_array_equal(part.value_TN, whole.value_TN[:, [0, 1, 3]])
    np.testing.assert_array_equal(part.covariates_TND, covariates_TND[:, [0, 1, 3]])
    assert (part.p, part.q, part.counts_TN.shape) == (1, 2, (12, 3))
    at_GK = np.arange(15.0).reshape(3, 5)
    covariates_ND, ar_NP, ma_NQ = whole.split(at_GK)
    assert covariates_ND.tolist() == [[10.0, 11.0], [0.0, 1.0], [5.0, 6.0], [10.0, 11.0]]
    assert ar_NP[:, 0].tolist() == [12.0, 2.0, 7.0, 12.0]
    assert ma_NQ.tolist() == [[13.0, 14.0], [3.0, 4.0], [8.0, 9.0], [13.0, 14.0]]
    error_TN = whole.value_TN - (covariates_ND * covariates_TND).sum(axis=2)
    np.testing.assert_allclose(whole.errors(covariates_ND), error_TN)


def test_what_explodes_or_was_differenced_too_often_is_fitted_at_the_bound_of_its_root():
    growing_TN = 1.05 ** np.arange(80.0)[:, None]
    assert fit_css(growing_TN, np.empty((80, 1, 0)), (1, 0, 0))[0].ar == pytest.approx([0.99])
    assert fit_css(panel(12, 400, 2), np.empty((400, 2, 0)), (0, 1, 1))[0].ma == pytest.approx([-0.95])


@pytest.mark.parametrize(("order", "first"), [((1, 0, 0), 8), ((0, 1, 1), 9), ((9, 0, 0), 9)])
def test_a_fit_needs_one_speed_more_than_it_has_coefficients_after_those_it_leaves_out(order, first):
    wanted = order[0] + order[2]
    value_TN = panel(13, first + wanted + 1, 1)
    fit_css(value_TN, np.empty((len(value_TN), 1, 0)), order)
    sentence = rf"needs more than {wanted} speeds after the first {first} to be fitted, got {wanted}"
    with pytest.raises(ValueError, match=sentence):
        fit_css(value_TN[1:], np.empty((len(value_TN) - 1, 1, 0)), order)


def test_the_loss_of_a_fit_is_the_mean_square_of_its_innovations_after_the_first_eight():
    value_TN, covariates_TND = panel(14, 60, 2), panel(15, 60, 2)[..., None]
    value_TN[20, 0] = np.nan
    fits, loss_G = fit_css_groups(value_TN, covariates_TND, (1, 0, 1), np.array([0, 1]))
    for n, fit in enumerate(fits):
        bridged_T = value_TN[:, n].copy()
        covariate_T = covariates_TND[:, n, 0].copy()
        if n == 0:
            bridged_T[20], covariate_T[20] = bridged_T[19], covariate_T[19]
        error_T1 = (bridged_T - fit.covariates[0] * covariate_T)[:, None]
        innovation_T1 = innovations(estimate._whitened(error_T1, fit.ar[None]), fit.ma[None])
        counted_T = np.isfinite(value_TN[:, n]) & (np.arange(60) >= 8)
        assert loss_G[n] == pytest.approx(np.square(innovation_T1[counted_T, 0]).mean())
        assert fit.vector.tolist() == [*fit.covariates, *fit.ar, *fit.ma]


@pytest.mark.parametrize(("loss", "values", "coefficients"), [(0.5, 40, 2), (0.5, 5, 3), (0.5, 6, 3), (0.0, 40, 0)])
def test_the_criterion_of_an_order_is_akaikes_for_few_values(loss, values, coefficients):
    k = coefficients + 1
    wanted = values * math.log(loss or 1e-300) + 2 * k + 2 * k * (k + 1) / max(values - k - 1, 1)
    assert corrected_aic(loss, values, coefficients) == pytest.approx(wanted)


@pytest.mark.parametrize("order", [(1, 0, 0), (0, 1, 1), (2, 1, 2), (1, 2, 0), (0, 0, 2)], ids=str)
def test_a_state_space_makes_the_values_that_its_innovations_do(order):
    p, d, q = order
    ar, ma = np.array([0.5, -0.2])[:p], np.array([0.4, 0.3])[:q]
    space = state_space(ar[None], ma[None], d)
    assert space.transition_WSS.shape[1] == states(order) == d + max(p, q + 1)
    noise_T, state = panel(16, 25, 1)[:, 0], np.zeros(states(order))
    shocks = np.concatenate([noise_T[1:], [0.0]])
    state = state + space.selection_WS[0] * noise_T[0]
    found = []
    for shock in shocks:
        found.append(space.design_S @ state)
        state = space.transition_WSS[0] @ state + space.selection_WS[0] * shock
    wanted = np.zeros(25)
    for t in range(25):
        past = sum(ar[i] * wanted[t - 1 - i] for i in range(min(p, t)))
        wanted[t] = past + noise_T[t] + sum(ma[j] * noise_T[t - 1 - j] for j in range(min(q, t)))
    for _ in range(d):
        wanted = np.cumsum(wanted)
    np.testing.assert_allclose(found, wanted, atol=1e-9)
    lasting_SS = space.start_WSS[0, d:, d:]
    moved_SS = space.transition_WSS[0, d:, d:] @ lasting_SS @ space.transition_WSS[0, d:, d:].T
    noise_S = space.selection_WS[0, d:]
    np.testing.assert_allclose(moved_SS + np.outer(noise_S, noise_S), lasting_SS, atol=1e-9)
    assert np.diag(space.start_WSS[0])[:d].tolist() == [1e6] * d
    assert np.count_nonzero(space.start_WSS[0, :d]) == d


def test_the_likelihood_is_that_of_a_workers_longest_trace(monkeypatch):
    asked = []

    def spread(fit, series):
        asked.extend(int(np.isfinite(value_T).sum()) for value_T, _, _ in series)
        return [Coefficients(np.zeros(0), np.zeros(0), np.array([-0.5]))] * len(series)

    monkeypatch.setattr(arima, "spread", spread)
    rng = np.random.default_rng(17)
    traces = [Trace(np.ones((n, 1)), np.exp(rng.normal(0.0, 0.1, (n, 1))), workers=["a"]) for n in (40, 70, 50)]
    model = ARIMA(order=(0, 1, 1), method="likelihood").fit(traces)
    assert asked == [70]
    assert model.coefficients_["a"].ma.tolist() == [-0.5]


def test_a_worker_under_another_name_keeps_its_model_and_a_stranger_the_common_one():
    trace = Trace(np.ones((60, 1)), np.exp(panel(18, 60, 1)), workers=["a"])
    model = ARIMA(order=(0, 1, 1)).fit([trace])
    model.reset(["a", "stranger"])
    model.observe(Report([1.0, 1.0], [1.0, 2.0]))
    model.rename("a", "b")
    model.rename("stranger", "other")
    for learnt in (model.coefficients_, model.constants_, model.ranges_):
        assert learnt["b"] is learnt["a"]
        assert learnt["other"] is learnt[""]
