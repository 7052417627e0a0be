"""The small predictors do what their names say."""

import numpy as np
import pytest

from paceline.datasets import Trace
from paceline.predictors import EWMA, HuberEWMA, LastValue, Report, checks


def served(predictor, speeds):
    predictor.reset(["a"])
    for speed in speeds:
        predictor.observe(Report(samples=[64], seconds=[64 / speed]))
    return predictor


def noisy_trace(change, noise, seed=3):
    """A log random walk of this step, seen under this much noise."""
    rng = np.random.default_rng(seed)
    log_speed_TW = 4.0 + np.cumsum(rng.normal(0.0, change, (600, 8)), axis=0) + rng.normal(0.0, noise, (600, 8))
    return Trace(samples=np.full((600, 8), 64.0), seconds=64.0 / np.exp(log_speed_TW))


def test_learned_smoothing_is_kalman_gain():
    change, noise = 0.02, 0.06
    ratio = (change / noise) ** 2
    gain = (np.sqrt(ratio**2 + 4 * ratio) - ratio) / 2  # steady state of the local level's Kalman filter
    learned = EWMA(smoothing=None).fit([noisy_trace(change, noise)]).smoothing_
    assert learned == pytest.approx(gain, abs=0.05)


@pytest.mark.slow
def test_smoothing_is_learned_over_all_traces():
    calm, moving = noisy_trace(0.0, 0.05), noisy_trace(0.5, 0.01)
    assert EWMA(None).fit([calm]).smoothing_ < 0.05
    assert EWMA(None).fit([calm, moving]).smoothing_ > 0.5


@pytest.mark.slow
def test_learning_ewma_keeps_contract():
    checks.run(checks.fitted(EWMA(smoothing=None)))
    checks.run(lambda: EWMA(smoothing=None))


def test_nothing_to_learn_from_is_an_error():
    with pytest.raises(ValueError, match="two speeds"):
        EWMA(None).fit([])


def test_spike_hardly_moves_huber_ewma():
    speeds = [*(100.0 * np.exp(np.random.default_rng(0).normal(0.0, 0.02, 50))), 1.0]
    assert served(HuberEWMA(), speeds).predict().speed[0] > 97.0
    assert served(EWMA(), speeds).predict().speed[0] < 85.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EWMA(1.5), r"smoothing must lie in \(0, 1\], got 1.5"),
        (lambda: HuberEWMA(0.0), r"smoothing must lie in \(0, 1\], got 0.0"),
    ],
)
def test_an_argument_out_of_range_is_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_forecast_cannot_be_changed_in_place():
    model = LastValue()
    model.reset(["a", "b"])
    for _ in range(3):
        model.observe(Report([64, 64], [0.5, 0.25]))
    with pytest.raises(ValueError, match="read-only"):
        model.predict().speed[:] = 1.0
    assert model.predict().speed.tolist() == [128.0, 256.0]
