"""What counts as a report, at every limit of samples and seconds; and what records cannot be changed."""

import itertools
import math
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest

from paceline.predictors import Forecast, Report
from paceline.predictors.arima.arima import _Served
from paceline.predictors.arima.estimate import Coefficients, _Panel
from paceline.predictors.arima.filter import StateSpace
from paceline.predictors.linear.per_worker import Own
from paceline.predictors.mixture import _Answer
from paceline.predictors.reference import Reference, Spread

JUST_BELOW, JUST_ABOVE = (lambda of, to=to: float(np.nextafter(of, to)) for to in (-np.inf, np.inf))
SAMPLES = [np.nan, -1.0, 0.0, 5e-10, 1e-9, 1.0, 64.0, 1e12, 2e12, JUST_BELOW(1e18), 1e18, np.inf]
SECONDS = [np.nan, -1.0, 0.0, JUST_BELOW(1e-6), 1e-6, 0.5, 1.0, 1e6, 1e300, np.inf]


def known(samples, seconds):
    """Return the speed that this worker's report tells, and whether it is told without a bound that it meets."""
    if math.isnan(samples) or math.isnan(seconds) or seconds < 1e-6 or samples <= 0 or seconds == math.inf:
        return math.nan, False
    speed = samples / seconds
    return (min(max(speed, 1e-9), 1e12) if speed > 0 else math.nan), samples < 1e18 and 1e-9 <= speed <= 1e12


@pytest.mark.parametrize("beside", [(), (64.0,)])
def test_a_speed_is_samples_in_a_second_where_both_can_be_and_a_report_is_complete_where_all_are(beside):
    for samples, seconds in itertools.product(SAMPLES, SECONDS):
        speed, usual = known(samples, seconds)
        report = Report([*beside, samples], [*(0.5 for _ in beside), seconds])
        np.testing.assert_array_equal(report.speed, [*(128.0 for _ in beside), speed], err_msg=f"{samples}, {seconds}")
        assert report.speed is report.speed
        assert report.complete == usual, (samples, seconds)
        asked_first = Report(report.samples, report.seconds)
        assert asked_first.complete == usual


def test_a_report_of_nobody_is_complete():
    assert Report([], []).speed.tolist() == []
    assert Report([], []).complete


def test_a_report_that_tells_of_memory_is_not_complete_whatever_it_tells():
    for full in ([False], [True]):
        assert not Report([64], [0.5], out_of_memory=full).complete
        assert Report([64], [0.5], out_of_memory=full).speed.tolist() == [128.0]


@pytest.mark.parametrize(("one", "field"), [(Spread(), "count"), (Reference(Spread(), ()), "change")])
def test_a_reference_is_not_changed_by_whom_it_is_handed_to(one, field):
    with pytest.raises(FrozenInstanceError):
        setattr(one, field, 7.0)
    assert len({one, one}) == 1


@pytest.mark.parametrize(
    "kind",
    [Report, Forecast, Own, Coefficients, StateSpace, _Panel, _Served, _Answer],
    ids=lambda kind: kind.__name__,
)
def test_a_record_of_arrays_is_not_changed_and_equal_to_itself_alone(kind):
    values = [1.0 for field in fields(kind)]
    one = kind(*values)
    with pytest.raises(FrozenInstanceError):
        setattr(one, fields(kind)[0].name, 7.0)
    assert one == one
    assert one != kind(*values)


def test_a_spread_of_nothing_is_of_nothing():
    assert (Spread().count, Spread().mean, Spread().squares) == (0, 0.0, 0.0)
    assert Spread() == Spread.of(np.array([np.nan])) == Spread() + Spread()
    assert Spread.of(np.array([3.0, np.inf, 5.0])) == Spread(2, 4.0, 2.0)
    assert Spread(2, 4.0, 2.0) + Spread() == Spread() + Spread(2, 4.0, 2.0) == Spread(2, 4.0, 2.0)
    assert Spread(1, 2.0, 0.0) + Spread(3, 6.0, 8.0) == Spread(4, 5.0, 20.0)
    assert Spread(4, 1.0, 36.0).deviation == 3.0
    assert (Spread(1, 0.0, 1e-24).deviation, Spread(1, 0.0, 4e-24).deviation) == (1.0, pytest.approx(2e-12))


def test_a_forecast_that_knows_no_curves_or_quantiles_says_so():
    forecast = Forecast(np.array([50.0]), np.array([0.1]))
    assert (forecast.batch_time, forecast.levels, forecast.quantiles) == (None, (), None)
    assert forecast.curves.seconds(np.array([100.0])) == pytest.approx([2.0])
