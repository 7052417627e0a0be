"""Doubts about speeds that are far above the forecast, and warnings of floating point."""

import warnings

import numpy as np
import pytest

from paceline.predictors import EWMA, LastValue, Report


@pytest.mark.parametrize("kind", [EWMA, LastValue])
def test_doubt_about_a_worker_says_nothing_of_another(kind):
    model = kind()
    model.reset(["a", "b"])
    for seconds in ([1.0, 1.0], [1.0, 1.0], [1e-6, 1.0], [1.0, 1e-6]):  # both jump once, one after the other
        model.observe(Report(samples=[8, 8], seconds=seconds))
    np.testing.assert_allclose(model.predict().speed, 8.0)
    model.observe(Report(samples=[8, 8], seconds=[1.0, 1e-6]))
    assert model.predict().speed[1] > 100.0, "the second in a row is accepted"


class Loud(EWMA):
    """Divides by zero in each forecast."""

    def _forecast(self, covariates_WD, horizon):
        np.log(np.zeros(1))
        return super()._forecast(covariates_WD, horizon)


def test_forecasts_are_silent_until_every_worker_has_been_compared():
    model = Loud()
    model.reset(["a", "b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict()
        model.observe(Report(samples=[8, 8], seconds=[1.0, 1.0]))
        model.predict()
