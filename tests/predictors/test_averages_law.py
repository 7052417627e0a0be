"""Every average beside one worker's numbers, one by one, written down from what its documentation says."""

import math
from statistics import mean, median

import numpy as np
import pytest

from paceline.predictors import (
    EWMA,
    ChangePoint,
    Holt,
    HuberEWMA,
    LastValue,
    MovingAverage,
    Report,
    RunningMedian,
)
from paceline.predictors.averages.seasonal import Seasonal
from paceline.predictors.averages.smoothed import Averages


class OneEWMA:
    def __init__(self, smoothing):
        self.smoothing, self.level = smoothing, None

    def learn(self, speed):
        self.level = speed if self.level is None else (1 - self.smoothing) * self.level + self.smoothing * speed

    def next(self, horizon):
        return self.level


class OneFading(OneEWMA):
    def __init__(self, smoothing):
        super().__init__(smoothing)
        self.reports, self.least = 0, smoothing

    def learn(self, speed):
        self.smoothing = max(self.least, 2.0 / (2.0 + self.reports))
        super().learn(speed)
        self.reports += 1


class OneHuber:
    def __init__(self):
        self.level, self.usual = None, None

    def learn(self, speed):
        if self.level is None:
            self.level = math.log(speed)
            return
        change = math.log(speed) - self.level
        bound = math.inf if self.usual is None else 2.0 * max(self.usual, 1e-3)
        self.level += 0.3 * max(min(change, bound), -bound)
        self.usual = abs(change) if self.usual is None else 0.95 * self.usual + 0.05 * abs(change)

    def next(self, horizon):
        return math.exp(self.level)


class OneHolt:
    def __init__(self):
        self.level, self.trend = None, 0.0

    def learn(self, speed):
        if self.level is None:
            self.level = math.log(speed)
            return
        expected = self.level + 0.9 * self.trend
        step = 0.3 * (math.log(speed) - expected)
        self.level, self.trend = expected + step, 0.9 * self.trend + 0.05 * step

    def next(self, horizon):
        return math.exp(self.level + sum(0.9**k for k in range(1, horizon + 1)) * self.trend)


class OneWindow:
    def __init__(self, of, window):
        self.of, self.window, self.level, self.past = of, window, None, []

    def learn(self, speed):
        self.past = [*self.past, speed][-self.window :]
        self.level = self.of(self.past)

    def next(self, horizon):
        return self.level


class OneChange:
    """Two sums of evidence, and the speeds of the run behind each."""

    def __init__(self, threshold):
        self.threshold, self.level, self.scale, self.since = threshold, None, None, 0
        self.evidence, self.runs = [0.0, 0.0], [[], []]

    def learn(self, speed):
        value = math.log(speed)
        self.since += 1
        if self.level is None:
            self.level = value
            return
        size = max(abs(value - self.level), 1e-3)
        scale = size if self.scale is None else self.scale
        scales = max(min((value - self.level) / scale, 3.0), -3.0)
        for side, sign in enumerate((1, -1)):
            self.evidence[side] = max(self.evidence[side] + sign * scales - 0.5, 0.0)
            self.runs[side] = [*self.runs[side], value] if self.evidence[side] > 0 else []
        self.level += max(0.05, 1 / self.since) * scales * scale
        self.scale = 0.95 * scale + 0.05 * min(size, 3.0 * scale)
        side = 0 if self.evidence[0] >= self.evidence[1] else 1
        if self.evidence[side] > self.threshold:
            run = sorted(self.runs[side], reverse=side == 0)
            kept = run[1:] or run
            self.level, self.since = mean(kept), len(kept)
            self.evidence, self.runs = [0.0, 0.0], [[], []]

    def next(self, horizon):
        return math.exp(self.level)

    def rows(self):
        extreme = [(max(run) if side == 0 else min(run)) if run else 0.0 for side, run in enumerate(self.runs)]
        sums, lengths = [sum(run) for run in self.runs], [len(run) for run in self.runs]
        scale = math.nan if self.scale is None else self.scale
        level = math.nan if self.level is None else self.level
        return {
            "level": level,
            "scale": scale,
            "since": self.since,
            "evidence": self.evidence,
            "run_length": lengths,
            "run_sum": sums,
            "run_extreme": extreme,
        }


class OneSeason:
    """A level, the deviations from it in its own scale, and how each lag of them correlates."""

    def __init__(self):
        self.level, self.variance, self.power, self.past = None, 0.0, 0.0, []
        self.echoes = dict.fromkeys(range(1, 65), 0.0)

    @property
    def scale(self):
        return math.sqrt(max(self.variance, 1e-6))

    def learn(self, speed):
        if self.level is None:
            self.level = math.log(speed)
            return
        off, count = math.log(speed) - self.level, len(self.past)
        rate = max(0.02, 1 / (count + 1))
        self.variance += rate * (min(abs(off), 10.0 * self.scale) ** 2 - self.variance)
        self.level += max(0.1, 2.0 / (3.0 + count)) * off
        newest = max(min(off / self.scale, 10.0), -10.0)
        for lag in range(2, 64):
            self.echoes[lag] = (1 - rate) * self.echoes[lag] + rate * newest * self.before(lag)
        self.power += rate * (newest**2 - self.power)
        self.past.append(newest)

    def before(self, lag):
        return self.past[-lag] if lag <= min(len(self.past), 126) else 0.0

    def next(self, horizon):
        period = max(range(2, 64), key=self.echoes.get)
        beside = (self.echoes[period - 1] + self.echoes[period + 1]) / 2
        share = (self.echoes[period] - max(beside, 0.0)) / max(self.power, 1e-9)
        if share * math.sqrt(len(self.past)) <= 2.0:
            return math.exp(self.level)
        lag = period - (horizon - 1) % period
        return math.exp(self.level + share * self.scale * (self.before(lag) + self.before(lag + period)) / 2)


PAIRS = {
    "last value": (LastValue, lambda: OneEWMA(1.0)),
    "ewma": (EWMA, lambda: OneEWMA(0.2)),
    "half": (lambda: EWMA(0.5), lambda: OneEWMA(0.5)),
    "huber": (HuberEWMA, OneHuber),
    "holt": (Holt, OneHolt),
    "mean": (MovingAverage, lambda: OneWindow(mean, 8)),
    "median": (RunningMedian, lambda: OneWindow(median, 9)),
    "change": (ChangePoint, lambda: OneChange(3.0)),
    "quick change": (lambda: ChangePoint(threshold=1.0), lambda: OneChange(1.0)),
    "season": (Seasonal, OneSeason),
}


def speeds(seed):
    """Speeds of three workers with gaps, stalls, jumps, and periods; the last one joins late."""
    rng = np.random.default_rng(seed)
    k = np.arange(150)
    log_TW = 4.0 + rng.normal(0.0, 0.1, (150, 3)) * np.array([1.0, 1.0, 0.002])
    log_TW[:, 0] += np.where(k % 7 == 3, -1.5, 0.0)
    log_TW[:, 1] += np.where(k // 40 % 2, 0.8, 0.0)
    log_TW[:, 2] += np.where(k % 2 == 0, 0.01 * (k > 60), 0.0)
    log_TW[rng.random((150, 3)) < 0.02] -= 2.5
    log_TW[rng.random((150, 3)) < 0.06] = np.nan
    log_TW[:5, 2] = np.nan
    log_TW[60:90] = np.where(np.isnan(log_TW[60:90]), 4.0, log_TW[60:90])
    return np.exp(log_TW)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_an_average_is_what_its_documentation_says_of_each_worker(name):
    model, slow = PAIRS[name][0](), [PAIRS[name][1]() for _ in range(3)]
    model.reset(["a", "b", "c"])
    for k, speed_W in enumerate(speeds(1)):
        model.observe(Report(speed_W, np.ones(3)))
        for one, speed in zip(slow, speed_W, strict=True):
            if not np.isnan(speed):
                one.learn(float(speed))
        known = [w for w in range(3) if slow[w].level is not None]
        for horizon in (1, 2 + k % 9):
            wanted = [slow[w].next(horizon) for w in known]
            np.testing.assert_allclose(model.predict(horizon=horizon).speed[known], wanted, rtol=1e-9)
        if isinstance(model, ChangePoint) and (k < 9 or k % 6 == 0):
            for w, one in enumerate(slow):
                for row, values in one.rows().items():
                    np.testing.assert_allclose(model._rows[row][w], values, rtol=1e-9, atol=1e-9, err_msg=row)


@pytest.mark.parametrize("fading", [0.0, 2.0])
def test_averages_together_are_each_of_them_alone(fading):
    smoothings = (1.0, 0.5, 0.1, 0.03)
    model, kind = Averages(smoothings, fading), OneFading if fading else OneEWMA
    assert model.columns == 4
    model.reset(["a", "b", "c"])
    slow = [[kind(smoothing) for smoothing in smoothings] for _ in range(3)]
    for speed_W in speeds(2):
        model._learn(speed_W, np.empty((3, 0)))
        for several, speed in zip(slow, speed_W, strict=True):
            for one in several if not np.isnan(speed) else ():
                one.learn(float(speed))
        wanted = [[math.nan if one.level is None else one.level for one in several] for several in slow]
        np.testing.assert_allclose(model._next_speed(np.empty((3, 0)), 1), wanted, rtol=1e-9)
