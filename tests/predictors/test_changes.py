"""ChangePoint: quick after a jump, slow where nothing changes, unmoved by a spike."""

import numpy as np
import pytest

from paceline.predictors import EWMA, ChangePoint, Report


def forecasts(model, log_speed_T):
    model.reset(["a"])
    found = []
    for value in log_speed_T:
        found.append(model.predict().speed[0])
        model.observe(Report(samples=[1.0], seconds=[np.exp(-value)]))
    return np.log(found)


def noise(count, seed=0):
    return np.random.default_rng(seed).normal(0.0, 0.03, count)


@pytest.mark.slow
@pytest.mark.parametrize("jump", [-1.0, -0.3, 0.3, 1.0])
def test_jump_followed_and_averaged_at_once(jump):
    speed = noise(300) + np.where(np.arange(300) < 150, 0.0, jump)
    found = forecasts(ChangePoint(), speed)
    assert np.abs(found[156:] - jump).max() < 0.09
    assert np.abs(found[200:] - jump).mean() < 0.012


@pytest.mark.slow
def test_steady_speed_smoothed_as_ewma():
    steady = noise(2000)
    settled, slow = (forecasts(model, steady)[200:] for model in (ChangePoint(threshold=20.0), EWMA(0.05)))
    assert np.std(settled) < 1.1 * np.std(slow)


@pytest.mark.slow
def test_a_spike_of_any_size_is_no_change():
    speed = noise(200)
    for depth in (1.0, 5.0):
        spiked = speed.copy()
        spiked[150] -= depth
        assert np.abs(forecasts(ChangePoint(), spiked)[151:] - forecasts(ChangePoint(), speed)[151:]).max() < 0.1


@pytest.mark.slow
def test_a_gap_is_no_evidence():
    model, watched = ChangePoint(), ChangePoint()
    for one in (model, watched):
        forecasts(one, noise(100))
    for _ in range(500):
        watched.observe(Report(samples=[1.0], seconds=[np.nan]))
    assert watched.predict().speed == model.predict().speed
    assert all(np.array_equal(watched.state[n], model.state[n]) for n in ("evidence", "level", "since", "scale"))


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"smoothing must lie in \(0, 1\], got 0"):
        ChangePoint(smoothing=0)
    with pytest.raises(ValueError, match="threshold must be above 0 scales, got 0"):
        ChangePoint(threshold=0)
