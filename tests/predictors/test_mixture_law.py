"""How trust is learnt, beside numbers written down one by one, through gaps and at horizons; who is served together."""

import math

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import (
    EWMA,
    BatchTime,
    Calibrated,
    Holt,
    LastValue,
    Mixture,
    Report,
    RunningMedian,
)
from paceline.predictors.averages.smoothed import Averages
from paceline.predictors.mixture import _learn_weights, _mean, weights_of


class One:
    """One worker's regret and its square for each expert, and the running scale of the mixture's errors."""

    def __init__(self, experts, ahead):
        self.regret, self.square, self.scale, self.ahead = [0.0] * experts, [0.0] * experts, None, ahead

    def learn(self, value, expected, mean):
        error = value - mean
        if math.isnan(error):
            return
        size = max(abs(error), 1e-6)
        if self.scale is None:
            self.scale = size
        elif self.ahead:
            self.scale = math.sqrt(0.95 * self.scale**2 + 0.05 * min(size, 10.0 * self.scale) ** 2)
        else:
            self.scale = 0.95 * self.scale + 0.05 * min(size, 5.0 * self.scale)
        for e, one in enumerate(expected):
            better = 0.0 if math.isnan(one) else max(min((one - mean) / self.scale, 3.0), -3.0)
            gain = max(min(error / self.scale, 3.0), -3.0) * better
            self.regret[e], self.square[e] = 0.998 * self.regret[e] + gain, 0.998 * self.square[e] + gain**2

    def weights(self):
        count, merits = len(self.regret), []
        for regret, square in zip(self.regret, self.square, strict=True):
            rate = min(1 / 6, math.sqrt(math.log(count + 1) / max(square, 1e-12)))
            merits.append(rate * math.exp(rate * (regret - rate * square)))
        return [0.99 * merit / sum(merits) + 0.01 / count for merit in merits]


def fresh(workers, experts):
    return {
        "regret": np.zeros((workers, experts)),
        "square": np.zeros((workers, experts)),
        "scale": np.full(workers, np.nan),
    }


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("gaps", [0.0, 0.15])
def test_trust_is_learnt_of_each_worker_by_itself(ahead, gaps):
    rng = np.random.default_rng(1)
    rows, slow = fresh(3, 4), [One(4, ahead) for _ in range(3)]
    for k in range(60):
        value_W = rng.normal(0.0, [0.1, 1.0, 0.0], 3) * (30.0 if k == 20 else 1.0)
        expected_WE = rng.normal(0.0, [0.05, 0.1, 0.5, 3.0], (3, 4))
        expected_WE[2] = 0.0
        mean_W = (weights_of(rows) * expected_WE).sum(axis=1)
        value_W[rng.random(3) < gaps] = np.nan
        expected_WE[rng.random((3, 4)) < gaps] = np.nan
        _learn_weights(rows, value_W, expected_WE, mean_W, ahead)
        for one, *told in zip(slow, value_W, expected_WE, mean_W, strict=True):
            one.learn(*told)
        for name in ("regret", "square"):
            np.testing.assert_allclose(rows[name], [getattr(one, name) for one in slow], rtol=1e-9, atol=1e-12)
        wanted = [math.nan if one.scale is None else one.scale for one in slow]
        np.testing.assert_allclose(rows["scale"], wanted, rtol=1e-9)
        np.testing.assert_allclose(weights_of(rows), [one.weights() for one in slow], rtol=1e-8)


def test_a_mean_is_of_those_who_know_the_worker_and_unknown_where_nobody_does():
    weights_WE = np.array([[0.5, 0.3, 0.2]] * 3)
    expected_WE = np.array([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0], [np.nan] * 3])
    np.testing.assert_allclose(_mean(weights_WE, expected_WE), [1.7, 1.1 / 0.7, np.nan])
    np.testing.assert_allclose(_mean(weights_WE[:1], expected_WE[:1]), [1.7])


def test_neighbouring_plain_averages_are_served_together_and_no_others():
    class Other(EWMA):
        pass

    experts = [EWMA(0.5), LastValue(), Holt(), EWMA(0.1), RunningMedian(), EWMA(None), EWMA(0.2), EWMA(0.3), Other(0.5)]
    model = Mixture(experts)
    assert [type(inner) for inner in model._inner] == [Averages, Holt, EWMA, RunningMedian, EWMA, Averages, Other]
    assert [inner.smoothings for inner in model._inner if isinstance(inner, Averages)] == [(0.5, 1.0), (0.2, 0.3)]
    model.reset(["a", "b"])
    assert model.weights == pytest.approx(np.full((2, 9), 1 / 9))


def test_experts_are_asked_once_unless_what_one_expects_depends_on_the_batch():
    assert Mixture(["ewma", "holt"])._asked_once
    assert not Mixture(["ewma", BatchTime()])._asked_once


def test_a_mixture_that_is_told_nothing_has_ten_experts():
    model = Mixture()
    model.reset(["a"])
    assert model.weights.shape == (1, 10)
    assert [model.weights[0].sum(), *model.weights[0]] == pytest.approx([1.0, *[0.1] * 10])


@pytest.mark.parametrize("make", [lambda: Mixture(["ewma", "last_value"]), lambda: Calibrated("holt")])
def test_a_fit_forgets_all_that_was_learnt_of_the_fleet_being_served(make):
    rng, names = np.random.default_rng(3), ["a", "b"]
    trace = Trace(np.ones((30, 2)), rng.uniform(0.5, 2.0, (30, 2)), workers=names)
    served, fresh = make(), make()
    served.reset(names)
    for seconds in rng.uniform(0.5, 2.0, (20, 2)):
        served.observe(Report(samples=[1, 1], seconds=seconds))
        served.predict()
    served.fit([trace])
    fresh.reset(names)
    fresh.fit([trace])
    found, expected = served.state_dict(), fresh.state_dict()
    assert sorted(found) == sorted(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
