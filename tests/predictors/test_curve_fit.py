import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.predictors import Curves
from paceline.predictors.curve_fit import curve_seconds, fit_curve
from paceline.solver import split

SIZES = np.array([8, 16, 32, 64, 128, 256, 512], dtype=float)
UNITS = st.sampled_from([1e-6, 1.0, 1e3])


@settings(deadline=None, max_examples=50)
@given(
    sizes=st.lists(st.integers(1, 4096), min_size=2, max_size=15, unique=True),
    slope=st.floats(1e-3, 1.0),
    intercept=st.floats(0.0, 100.0),
    unit=UNITS,
)
def test_straight_line_recovered_without_floor(sizes, slope, intercept, unit):
    size_N = np.array(sizes, dtype=float)
    got = fit_curve(size_N, unit * (intercept + slope * size_N))
    np.testing.assert_allclose(got[1:], [unit * slope, unit * intercept], rtol=1e-6, atol=1e-9 * unit)
    assert got[0] == 0.0


@settings(deadline=None, max_examples=50)
@given(knee=st.floats(20.0, 100.0), slope=st.floats(1e-3, 1.0), share=st.floats(0.0, 0.9), unit=UNITS)
def test_floor_recovered_exactly(knee, slope, share, unit):
    floor = slope * knee / (1.0 - share)
    truth = np.array([floor, slope, floor - slope * knee]) * unit
    got = fit_curve(SIZES, curve_seconds(tuple(truth), SIZES))
    np.testing.assert_allclose(curve_seconds(got, SIZES), curve_seconds(tuple(truth), SIZES), rtol=1e-6)
    np.testing.assert_allclose(got[1], truth[1], rtol=1e-6)


@pytest.mark.parametrize("wild", range(7))
@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_one_wild_measurement_moves_nothing(wild, factor):
    seconds = 0.5 + 0.01 * SIZES
    seconds[wild] *= factor
    floor, slope, intercept = fit_curve(SIZES, seconds)
    np.testing.assert_allclose([floor, slope, intercept], [0.0, 0.01, 0.5], rtol=1e-6)


@settings(deadline=None, max_examples=100)
@given(
    seconds=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=7),
    weights=st.lists(st.floats(0.1, 10.0), min_size=7, max_size=7),
)
def test_curve_is_monotone_and_positive(seconds, weights):
    count = len(seconds)
    fit = fit_curve(SIZES[:count], seconds, weights[:count])
    assert np.isfinite(fit).all()
    assert fit[1] >= 0
    times = curve_seconds(fit, np.linspace(1, 1000, 200))
    assert (times > 0).all()
    assert (np.diff(times) >= 0).all()


def test_weights_decide_between_measurements():
    sizes, seconds = [10, 10, 20, 20], [1.0, 3.0, 2.0, 6.0]
    assert fit_curve(sizes, seconds, [9, 1, 9, 1])[1] == pytest.approx(0.1, rel=0.05)
    assert fit_curve(sizes, seconds, [1, 9, 1, 9])[1] == pytest.approx(0.3, rel=0.05)


def test_thousands_of_measurements_fit():
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 150, 5000).astype(float)
    seconds = (0.5 + 0.01 * sizes) * np.exp(rng.normal(0.0, 0.1, 5000))
    np.testing.assert_allclose(curve_seconds(fit_curve(sizes, seconds), [60, 140]), [1.1, 1.9], rtol=0.03)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([8, 8], [1.0, 1.1]), "sizes must hold at least two different batch sizes"),
        (([8, 16], [1.0]), "seconds must hold one number for each measurement"),
        (([8, 16], [1.0, 0.0]), "seconds must be positive and finite, got 0.0"),
        (([8, np.nan], [1.0, 2.0]), "sizes must be positive and finite, got nan"),
        (([8, 16], [1.0, 2.0], [1.0, -1.0]), "weights must be positive and finite, got -1.0"),
    ],
)
def test_invalid_measurements_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        fit_curve(*arguments)


def test_published_three_gpu_case_is_solved():
    """LB-BSP's ResNet-32: batches of 512 on K520, K80 and M60, tuned to 512, 901 and 1264 by x + idle * v."""
    speed, idle, tuned = np.array([429.0, 628.0, 917.0]), np.array([0.0, 0.62, 0.82]), np.array([512, 901, 1264])
    sizes = np.array([256.0, 512.0, 1024.0, 2048.0])
    barrier = 2.0  # when the slowest ends; the table does not tell, and any time gives the same batches
    fits = [fit_curve(sizes, barrier - idle[w] + (sizes - 512) / speed[w]) for w in range(3)]
    floor, slope, intercept = np.array(fits).T
    plan = split(Curves(floor, slope, intercept, np.full(3, np.inf)), int(tuned.sum()))
    assert np.abs(plan.sizes - tuned).max() <= 1
    assert plan.makespan == pytest.approx(barrier, rel=1e-3)
    proportional = split(Curves.from_speed(speed), int(tuned.sum())).sizes
    assert np.abs(proportional - tuned).max() > 40, "sizes in proportion to speed are not the published ones"


def test_an_outlier_on_the_floor_hardly_moves_it():
    rng = np.random.default_rng(4)
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 8, 100, 150, 200, 300, 400])
    for outlier in range(8):
        seconds = np.maximum(1.0, 0.02 * sizes) * np.exp(rng.normal(0.0, 1e-3, len(sizes)))
        seconds[outlier] *= 1.5
        assert fit_curve(sizes, seconds)[0] == pytest.approx(1.0, abs=4e-3)
