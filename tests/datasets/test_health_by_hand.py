"""Numbers of a report of health against slow definitions: one worker and one value at a time."""

from statistics import median

import numpy as np
import pytest
from scipy.stats import chi2

from paceline.datasets import Trace
from paceline.datasets.health import Health, Series, autocorrelations, health, ljung_box

NAN = float("nan")


def mean(numbers):
    return float(np.mean(list(numbers)))


def known(values):
    return [value for value in values if np.isfinite(value)]


def middle(numbers):
    found = known(numbers)
    return median(found) if found else NAN


def of_itself(values, lag):
    """The correlation of a series with itself some values ago."""
    if not known(values):
        return NAN
    centre = mean(known(values))
    pairs = [(one - centre) * (other - centre) for one, other in zip(values[lag:], values[:-lag], strict=True)]
    square = sum((value - centre) ** 2 for value in known(values))
    return sum(known(pairs)) / square if known(pairs) and square else NAN


def noise(values, lags=10):
    """The probability that white noise is as far from it as this series."""
    n = len(known(values))
    if n < max(20, 2 * lags):
        return NAN
    return chi2.sf(n * (n + 2) * sum(of_itself(values, lag) ** 2 / (n - lag) for lag in range(1, lags + 1)), lags)


def far(values):
    """How many values are further than six robust deviations from the median of eleven around them."""
    if len(values) < 11:
        return 0
    last = len(values) - 1
    around = [middle([values[min(max(k + d, 0), last)] for d in range(-5, 6)]) for k in range(len(values))]
    away = [abs(value - other) for value, other in zip(values, around, strict=True)]
    scale = 1.4826 * middle(away)
    return sum(one > 6 * scale for one in away if scale > 0)


def gap(values):
    """The longest run of values that are missing."""
    return max(map(len, "".join("x" if np.isnan(value) else " " for value in values).split()), default=0)


def together(values, log_speed):
    both = [(x, y) for x, y in zip(values, log_speed, strict=True) if np.isfinite(x) and np.isfinite(y)]
    if len(both) < 20:
        return NAN
    x, y = np.array(both).T
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x**2).sum() * (y**2).sum())
    return (x * y).sum() / scale if scale else NAN


def slow_series(name, panel_TW, speed_TW):
    workers = [list(values) for values in panel_TW.T]
    long = [values for values in workers if len(known(values)) >= 20]
    moving = [values for values in workers if len(set(known(values))) > 1]
    pairs = [[p for p in zip(v[1:], v[:-1], strict=True) if np.isfinite(p).all()] for v in long]
    judged = [noise(values) for values in moving if np.isfinite(noise(values))]
    count = sum(len(known(values)) for values in workers)
    with np.errstate(all="ignore"):
        shown = [[np.log(value) for value in values] if name == "speed" else values for values in workers]
        log_TW = np.log(speed_TW)
        return {
            "missing": 1 - count / panel_TW.size,
            "longest_gap": max(map(gap, workers)),
            "constant": sum(len(set(known(values))) == 1 for values in workers),
            "repeated": middle([mean(one == other for one, other in p) for p in pairs if p]),
            "outliers": sum(map(far, shown)) / max(count, 1),
            "variation": middle(
                [np.std(known(v)) / abs(mean(known(v))) if mean(known(v)) else np.inf * np.std(known(v)) for v in long]
            ),
            "lag_one": middle([of_itself(values, 1) for values in moving if len(known(values)) >= 20]),
            "predictable": mean(p < 0.01 for p in judged) if judged else NAN,
            "with_speed": NAN
            if name == "speed" or np.isnan(speed_TW).all()
            else middle([together(values, log) for values, log in zip(workers, log_TW.T, strict=True)]),
        }


def made(seed):
    """A trace of random length with values of few sizes, random walks, gaps, constants and silent workers."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.choice([1, 2, 10, 11, 12, 19, 20, 21, 25, 40, 60])), int(rng.integers(1, 5)))

    def panel():
        walk = rng.random(shape[1]) < 0.4
        values = np.where(walk, np.cumsum(rng.integers(-1, 2, shape), axis=0) + 30, rng.integers(1, 9, shape))
        values = np.where(rng.random(shape[1]) < 0.2, 5.0, values.astype(float))
        values[rng.random(shape) < 0.03] *= 50
        values[rng.random(shape) < rng.choice([0, 0.05, 0.4])] = NAN
        values[:, rng.random(shape[1]) < 0.15] = NAN
        return values

    covariates = np.stack([panel() - 4, panel()], axis=-1)
    speed = panel() * (NAN if rng.random() < 0.1 else 1)
    return Trace(np.ones(shape), 1.0 / speed, covariates=covariates, covariate_names=["x", "y"])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_every_number_of_a_report_is_that_of_the_slow_definition(first):
    for seed in range(first, first + 20):
        trace = made(seed)
        speed_TW = trace.speed
        measured = np.isfinite(speed_TW).any()
        found = {one.name: vars(one) for one in health(trace).series}
        assert list(found) == (["speed"] if measured else []) + ["x", "y"]
        for name, about in found.items():
            panel = speed_TW if name == "speed" else trace.covariates_named([name])[:, :, 0]
            expected = slow_series(name, panel, speed_TW)
            got = {key: value for key, value in about.items() if key != "name"}
            assert got == pytest.approx(expected, nan_ok=True, rel=1e-6, abs=1e-9), (seed, name)


def test_correlations_with_itself_and_noise_are_those_of_the_slow_definition():
    rng = np.random.default_rng(0)
    panel_TW = np.where(rng.random((30, 6)) < [0, 0.1, 0.3, 0.34, 0.9, 1], NAN, rng.normal(size=(30, 6)))
    panel_TW[::2, 1] = NAN
    found = autocorrelations(panel_TW, 4)
    assert found.shape == (4, 6)
    expected = [[of_itself(list(values), lag) for values in panel_TW.T] for lag in range(1, 5)]
    np.testing.assert_allclose(found, expected)
    assert len(autocorrelations(panel_TW)) == 10
    for lags in (1, 10, 11):
        np.testing.assert_allclose(
            ljung_box(panel_TW, lags), [noise(list(values), lags) for values in panel_TW.T], rtol=1e-9
        )


@pytest.mark.parametrize(("rows", "judged"), [(19, False), (20, True)])
def test_a_series_is_judged_from_twenty_values_on(rows, judged):
    values = np.random.default_rng(1).uniform(1, 2, (rows, 2))
    trace = Trace(np.ones((rows, 2)), values, covariates=values[..., None], covariate_names=["x"])
    for one in health(trace).series:
        numbers = [one.repeated, one.variation, one.lag_one, one.predictable]
        assert np.isfinite(numbers).tolist() == [judged] * 4
        assert np.isfinite(one.with_speed) == (judged and one.name == "x")


@pytest.mark.parametrize("lags", [9, 10, 11, 15])
def test_a_test_of_more_lags_needs_twice_as_many_values(lags):
    values = np.random.default_rng(2).normal(size=(40, 1))
    least = max(20, 2 * lags)
    assert np.isfinite(ljung_box(values[:least], lags)).all()
    assert np.isnan(ljung_box(values[: least - 1], lags)).all()


def test_a_report_tells_all_that_is_wrong_in_one_order():
    rng = np.random.default_rng(3)
    start = np.arange(60.0)[:, None] * np.ones(2)
    start[30:, 0] += 100
    start[40, 1] = 0
    load = np.append(rng.normal(size=30), np.full(30, 4.0))[:, None] * np.ones(2)
    about = {"derived": "a model", "absent": "1 of 2 iterations", "restarts": "3", "dropped": "9 resumed totals"}
    trace = Trace(
        np.ones((60, 2)), np.full((60, 2), 0.5), start=start, covariates=load[..., None], covariate_names=["load"],
        meta={"job": "j", **about},
    )  # fmt: skip
    found = health(trace)
    assert list(found.concerns[:7]) == [
        "speeds are derived, not measured: a model",
        "no worker reported 1 of 2 iterations",
        "the job, or what recorded it, was started again 3 times",
        "counters were resumed: 9 resumed totals",
        "the clock goes backwards 1 times",
        "the clock jumps over 10 or more usual intervals 2 times",
        "all covariates stand still for 30 iterations of 0, 30 iterations of 1, and change otherwise: what measured "
        "them may have stopped",
    ]
    assert found.concerns[7] == "speed is constant in all workers"
    head = "j: 60 iterations of 2 workers; dropped in reading: 9 resumed totals\nclock: 2 gaps, 1 backwards\n- speeds"
    assert str(found).startswith(head)


def test_a_report_without_concerns_says_so_and_hides_what_is_not_known():
    one = Series(
        name="x", missing=0.0, longest_gap=0, constant=0, repeated=NAN, outliers=0.0, variation=0.5, lag_one=0.5,
        predictable=1.0,
    )  # fmt: skip
    report = Health(job="j", iterations=1, workers=2, series=(one,), clock_backwards=0, clock_gaps=0, dropped="nothing")
    assert str(report).splitlines()[1:] == ["clock: 0 gaps, 0 backwards", "- nothing of concern"]
    plain = report.to_dict()
    assert (plain["series"][0]["repeated"], plain["series"][0]["with_speed"]) == (None, None)
    assert (plain["series"][0]["variation"], plain["concerns"], plain["clock_gaps"]) == (0.5, (), 0)
