"""Fleets that change: state kept under a worker's name follows it to a new name."""

import numpy as np
import pytest

from paceline.predictors import ARIMA, BatchTime, Mixture, Report, checks

TRACE = checks.example_trace(400)


@pytest.mark.parametrize("kind", [ARIMA, BatchTime, Mixture])
@pytest.mark.slow
def test_fitted_state_follows_rename(kind):
    fitted = kind().fit([TRACE])
    renamed, untouched = kind(), kind()
    for model in (renamed, untouched):
        model.load_state_dict(fitted.state_dict())
        model.reset(TRACE.workers)
        model.observe(Report(TRACE.samples[0], TRACE.seconds[0]))
    renamed.rename("b", "spare")
    resumed = kind()
    resumed.load_state_dict(renamed.state_dict())
    for k in range(1, 50):
        report = Report(TRACE.samples[k], TRACE.seconds[k])
        for model in (renamed, resumed, untouched):
            model.observe(report)
        assert np.array_equal(renamed.predict().speed, untouched.predict().speed)
        assert np.array_equal(resumed.predict().speed, untouched.predict().speed)


def test_renamed_worker_leaves_by_new_name():
    model = Mixture(["ewma", "arima"])
    model.reset(["a", "b"])
    model.rename("a", "c")
    with pytest.raises(ValueError, match="worker 'a' is not in the fleet"):
        model.leave("a")
    model.leave("c")
    model.join("a")
    assert model.workers == ("b", "a")


def test_arima_resumes_state_without_fit():
    fitted = ARIMA(order=(1, 0, 0)).fit([TRACE])
    fitted.reset(["a"])
    rows = {name: value for name, value in fitted.state_dict().items() if not name.startswith("learnt/")}
    other = ARIMA(order=(1, 0, 0)).fit([TRACE])
    other.load_state_dict(rows)
    assert other.workers == ("a",)
    assert other.coefficients_["a"].ar == pytest.approx(fitted.coefficients_["a"].ar)
