"""What a check reads of arrays: one number of many that is wrong is enough, and unknown ones are no change."""

import numpy as np
import pytest
from broken_predictors import passes

from paceline.predictors import EWMA, LastValue, checks


class Unknown(LastValue):
    """Keeps a number of each worker that it never learns."""

    def _fresh(self, count):
        return super()._fresh(count) | {"unknown": np.full(count, np.nan)}


@pytest.mark.parametrize("name", ["state_is_a_snapshot", "a_missing_report_changes_nothing"])
def test_a_number_that_stays_unknown_does_not_change(name):
    assert passes(Unknown, name)


class WritesOne(EWMA):
    """Changes one number of what it is given."""

    into = ""
    covariate_names = ("load",)

    def observe(self, report):
        super().observe(report)
        if (values := getattr(report, self.into)) is not None:
            values[(0,) * values.ndim] = 7.0


@pytest.mark.parametrize("into", ["seconds", "covariates"])
def test_one_number_of_an_input_that_is_changed_is_said(into):
    with pytest.raises(checks.ContractBrokenError, match="an input array was changed"):
        checks.run(type("Writes", (WritesOne,), {"into": into}), ["inputs_are_left_alone"])


@pytest.mark.parametrize(
    ("quantile", "sentence"),
    [
        (lambda q: np.array([3 * q, 2 * q, q]), None),
        (lambda q: np.array([q, np.nan if q == 0.25 else q, q]), "a quantile is NaN or negative"),
        (lambda q: np.array([q, q - 0.1, q]), "a quantile is NaN or negative"),
        (lambda q: np.full(3, 1.0 - q), "a higher quantile is a lower speed"),
        (lambda q: np.full(3, q if q != 0.95 else 0.74), "a higher quantile is a lower speed"),
        (lambda q: np.full(3, q if q != 0.05 else 0.26), "a higher quantile is a lower speed"),
    ],
)
def test_quantiles_are_compared_worker_by_worker(quantile, sentence):
    class Says(EWMA):
        def predict(self, covariates=None, *, horizon=1):
            forecast = super().predict(covariates, horizon=horizon)
            object.__setattr__(forecast, "quantile", quantile)
            return forecast

    if sentence is None:
        assert passes(Says, "quantiles_are_ordered")
    else:
        with pytest.raises(checks.ContractBrokenError, match=sentence):
            checks.run(Says, ["quantiles_are_ordered"])
