"""How many speeds a fit of ARIMA needs at least."""

import numpy as np
import pytest

from paceline.predictors.arima.estimate import LONG_AUTOREGRESSION, fit_css_groups


@pytest.mark.parametrize("order", [(2, 0, 1), (1, 1, 0), (0, 0, 2)])
@pytest.mark.parametrize("columns", [0, 2])
def test_as_many_speeds_as_coefficients_are_too_few(order, columns):
    p, d, q = order
    wanted, unmeasured = columns + p + q, d + max(p, LONG_AUTOREGRESSION)
    rng, group_N = np.random.default_rng(0), np.zeros(1, dtype=int)
    length = unmeasured + wanted
    given = rng.normal(size=(length, 1)), rng.normal(size=(length, 1, columns))
    said = f"needs more than {wanted} speeds after the first {unmeasured} to be fitted, got {wanted};"
    with pytest.raises(ValueError, match=said):
        fit_css_groups(*given, order, group_N)
    given = rng.normal(size=(length + 1, 1)), rng.normal(size=(length + 1, 1, columns))
    coefficients, _ = fit_css_groups(*given, order, group_N)
    assert len(coefficients) == 1


@pytest.mark.parametrize("differences", [0, 1])
def test_series_that_share_coefficients_keep_their_own_levels_apart(differences):
    from paceline.predictors.arima.arima import _centred

    rng = np.random.default_rng(0)
    value_TN, covariates_TND = rng.normal(5.0, 1.0, (9, 3)), rng.normal(-4.0, 1.0, (9, 3, 2))
    value_TN[2:5, 1] = np.nan
    value_TN[:, 2] = np.nan
    found, beside = _centred(value_TN, covariates_TND, differences)
    for n in range(3):
        known = [one for one in value_TN[:, n] if one == one]
        level = 0.0 if differences or not known else sum(known) / len(known)
        np.testing.assert_allclose(found[:, n], value_TN[:, n] - level)
        for d in range(2):
            middle = 0.0 if differences else sum(covariates_TND[:, n, d]) / 9
            np.testing.assert_allclose(beside[:, n, d], covariates_TND[:, n, d] - middle)
