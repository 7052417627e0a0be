"""Speed derived from usage: marked, bounded, and never instead of a measured one."""

import numpy as np
import pytest

from paceline.datasets import Trace, speed_from_usage

NAN = float("nan")


def usage(values):
    values = np.asarray(values, dtype=float)
    none = np.full(values.shape, NAN)
    return Trace(none, none, covariates=values[:, :, None], covariate_names=["cpu"], meta={"source": "made"})


def test_more_usage_by_others_never_speeds_up():
    trace = speed_from_usage(usage(np.linspace(-10, 120, 50)[:, None]), "cpu")
    assert (np.diff(trace.speed[:, 0]) <= 0).all()
    assert trace.speed.max() == pytest.approx(100)
    assert trace.speed.min() == pytest.approx(10)


def test_measured_speeds_are_not_replaced():
    with pytest.raises(ValueError, match="has measured speeds"):
        speed_from_usage(Trace([[1]], [[1]], covariates=[[[1]]], covariate_names=["cpu"]), "cpu")
    one = Trace([[1.0], [NAN]], [[1.0], [NAN]], covariates=[[[1]], [[1]]], covariate_names=["cpu"])
    with pytest.raises(ValueError, match="has measured speeds"):
        speed_from_usage(one, "cpu")


def test_speed_is_share_left_by_others():
    trace = speed_from_usage(usage([[0, 50, 50.5, 75, 95, 96, 200]]), "cpu")
    np.testing.assert_allclose(trace.speed, [[100, 100, 99, 50, 10, 10, 10]])
    np.testing.assert_array_equal(trace.samples, np.full((1, 7), 64.0))
    assert trace.meta["derived"] == "speed = 100 samples/s x min(1, max(100 - cpu, 5) / 50)"
    other = speed_from_usage(usage([[1.0, NAN]]), "cpu", capacity=4, needed=4, minimum=2)
    np.testing.assert_allclose(other.speed, [[75, NAN]])
    np.testing.assert_array_equal(other.samples, [[64, NAN]])


@pytest.mark.parametrize(
    "wrong",
    [{"minimum": 51}, {"capacity": 49}, {"capacity": np.inf}, {"minimum": -1}, {"minimum": 0}, {"needed": NAN}],
)
def test_every_number_has_its_range(wrong):
    with pytest.raises(ValueError, match=r"minimum, needed and capacity must be .* in ascending order"):
        speed_from_usage(usage([[50.0]]), "cpu", **wrong)
    with pytest.raises(ValueError, match="has no covariate 'cpu'; it has "):
        speed_from_usage(Trace([[NAN]], [[NAN]]), "cpu")
