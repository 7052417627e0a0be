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
