"""Quantiles of errors, moved one worker and one error at a time, as the formulae say."""

import math
from statistics import NormalDist, median

import numpy as np
import pytest

from paceline.predictors import Calibrated, Report, named
from paceline.predictors.calibrated import SETTLED, _track

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
NORMAL = [math.sqrt(math.pi / 2) * NormalDist().inv_cdf(level) for level in LEVELS]


class One:
    """The scale of one worker's errors, and the multiples of it that its quantiles are."""

    def __init__(self):
        self.scale, self.multiples, self.count, self.last = None, list(NORMAL), 0, []
        self.restarts = 0

    @property
    def quantiles(self):
        if self.scale is None:
            return [math.nan] * len(LEVELS)
        return [self.scale * (1 + 3 / (1 + self.count)) * multiple for multiple in self.multiples]

    def learn(self, error):
        if math.isnan(error):
            return
        size, stated, four = max(abs(error), 1e-4), self.quantiles, [error, *self.last]
        if self.scale is not None and size > 12 * self.scale:
            above, below = (sum(sign * one > 12 * self.scale for one in four) for sign in (1, -1))
            if above and below and above + below >= 3 and self.count >= 20:
                self.scale, self.multiples, self.count = (
                    median(map(abs, [*four, *[math.nan] * (4 - len(four))])),
                    list(NORMAL),
                    5,
                )
                self.restarts += 1
        self.last = four[:3]
        if self.scale is not None:
            self.multiples = sorted(
                multiple + 0.15 * (level - (error <= bound))
                for multiple, level, bound in zip(self.multiples, LEVELS, stated, strict=True)
            )
            rate = max(0.02, 8 / (8 + self.count))
            self.scale += rate * (min(size, 10 * self.scale) - self.scale)
        else:
            self.scale = size
        self.count += 1


def errors(seed, count=200):
    """Errors of eight workers whose noise grows at once, to both sides or to one, soon or late, through gaps."""
    rng = np.random.default_rng(seed)
    error_TW = rng.normal(0.0, 0.01, (count, 8))
    for w, (first, signs) in enumerate(
        [
            (20, [1, -1, 1, -1]),
            (21, [1, -1, -1, 1]),
            (22, [1, 1, -1]),
            (60, [1, 0, -1, 1]),
            (60, [1, 1, 1, 1]),
            (60, [-1, 0, 0, 1]),
            (90, [-1, -1, 1, -1, 1]),
            (19, [-1, 1, 0, -1, 1]),
        ]
    ):
        for k, sign in enumerate(signs):
            error_TW[first + k, w] = sign * rng.uniform(2.0, 4.0) if sign else 0.001
    error_TW[140:150] = 0.0
    error_TW[rng.random(error_TW.shape) < 0.02] = np.nan
    return error_TW


@pytest.mark.parametrize("seed", range(2))
def test_quantiles_move_as_one_worker_at_a_time_and_start_afresh_where_noise_has_grown(seed):
    rows, slow = Calibrated()._fresh(8), [One() for _ in range(8)]
    for k, error_W in enumerate(errors(seed)):
        _track(rows, error_W, rows["quantiles"], settled=False)
        for one, error in zip(slow, error_W, strict=True):
            one.learn(float(error))
        if k < 30 or k % 5 == 0:
            np.testing.assert_allclose(rows["quantiles"], [one.quantiles for one in slow], rtol=1e-9)
            np.testing.assert_array_equal(rows["compared"], [one.count for one in slow])
    restarts = [one.restarts for one in slow]
    assert restarts[4:6] == [0, 0], "to one side, or too few"
    assert sum(restarts[:4]) >= 3


@pytest.mark.parametrize(("before", "restarted"), [(19, False), (20, True), (21, True)])
def test_intervals_start_afresh_from_twenty_errors_on(before, restarted):
    rows = Calibrated()._fresh(1) | {"scale": np.array([0.01]), "compared": np.array([float(before)])}
    rows["recent"] = np.array([[-1.0, 1.0, 0.0]])
    _track(rows, np.array([1.0]), rows["quantiles"], settled=False)
    assert rows["compared"].tolist() == [6.0 if restarted else before + 1]


@pytest.mark.parametrize(
    ("recent", "error", "restarted"),
    [
        ([-1.0, 1.0, 0.0], 1.0, True),
        ([-1.0, 0.0, 0.0], 1.0, False),
        ([-1.0, 0.0, 0.0], -1.0, False),
        ([1.0, 1.0, 1.0], 1.0, False),
        ([-1.0, -1.0, -1.0], -1.0, False),
        ([-0.13, 0.13, 0.0], 0.13, True),
        ([-0.11, 0.13, 0.0], 0.13, False),
        ([-1.0, 1.0, -1.0], 0.11, False),
    ],
)
def test_noise_has_grown_where_three_of_four_errors_are_far_out_to_both_sides_and_the_newest_is(
    recent, error, restarted
):
    rows = Calibrated()._fresh(2) | {"scale": np.full(2, 0.01), "compared": np.full(2, 50.0)}
    rows["recent"] = np.array([recent, [0.0, 0.0, 0.0]])
    _track(rows, np.array([error, 0.01]), rows["quantiles"], settled=True)
    assert rows["compared"].tolist() == [6.0 if restarted else 51.0, 51.0]
    np.testing.assert_array_equal(rows["recent"], [[error, *recent[:2]], [0.01, 0.0, 0.0]])


def test_the_shorter_way_of_those_who_are_long_known_leads_to_the_same():
    rng, found = np.random.default_rng(3), []
    for settled in (True, False):
        rows = Calibrated()._fresh(4) | {"scale": np.full(4, 0.01), "compared": np.full(4, SETTLED)}
        rows["quantiles"], rng = 0.01 * rows["multiples"], np.random.default_rng(3)
        for _ in range(40):
            _track(rows, rng.normal(0.0, 0.01, 4), rows["quantiles"], settled)
        found.append(rows)
    for name, values in found[0].items():
        np.testing.assert_array_equal(values, found[1][name], err_msg=name)
    assert pytest.approx(400) == SETTLED


def test_a_forecast_is_made_of_its_quantiles_and_its_spread_of_the_middle_nine_tenths():
    model, rng = Calibrated("last-value"), np.random.default_rng(5)
    model.reset(["a", "new"])
    for k in range(30):
        model.observe(Report([100.0 * np.exp(rng.normal(0.0, 0.1)), 1.0], [1.0, np.nan]))
        forecast, error_L = model.predict(), model._rows["quantiles"][0]
        assert forecast.levels == LEVELS
        if k:
            np.testing.assert_allclose(forecast.quantiles[0], forecast.speed[0] * np.exp(error_L))
            sigma = (error_L[7] - error_L[1]) / (2 * NormalDist().inv_cdf(0.95))
            assert forecast.spread[0] == pytest.approx(math.sqrt(math.expm1(sigma**2)))
        assert np.isinf(forecast.spread[1])
        assert np.isnan(forecast.quantiles[1]).all()


@pytest.mark.parametrize(("error", "speed"), [(100.0, 1e12), (-100.0, 1e-9), (20.0, 100.0 * math.exp(20.0))])
def test_a_quantile_is_a_speed_that_can_be(error, speed):
    model = Calibrated("last-value")
    model.reset(["a"])
    model.observe(Report([100.0], [1.0]))
    model._rows["quantiles"] = np.full((1, 9), error)
    assert model.predict().quantiles == pytest.approx(np.full((1, 9), speed))


def test_forecasts_and_curves_are_those_of_what_is_calibrated():
    for kind in ("ewma", "batch-time"):
        plain, model = named(kind), Calibrated(kind)
        for one in (plain, model):
            one.reset(["a", "b"])
            for k in range(30):
                samples_W = np.array([8.0 + k % 3, 16.0 - k % 5])
                one.observe(Report(samples=samples_W, seconds=0.1 + samples_W / np.array([50.0, 20.0 + k])))
        found, wanted = model.predict(), plain.predict()
        assert found.speed.tolist() == wanted.speed.tolist()
        assert (found.batch_time is None) == (wanted.batch_time is None) == (kind == "ewma")
        if wanted.batch_time is not None:
            for name in ("slope", "intercept"):
                assert getattr(found.batch_time, name).tolist() == getattr(wanted.batch_time, name).tolist()
