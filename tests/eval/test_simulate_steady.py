"""Savings of workers of which little is known: noise that is drawn, and profiles whose memory is just enough."""

import importlib

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import Trace
from paceline.datasets.profiles import COLUMNS, save_profile
from paceline.eval import simulate
from paceline.eval.simulate import from_profiles, from_speeds
from paceline.eval.worth import WARMUP

STEADY = 30


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Draw fewer iterations than the three hundred, which takes a tenth of the time."""
    module = importlib.import_module("paceline.eval.simulate")
    assert module.STEADY == 300
    monkeypatch.setattr(module, "STEADY", STEADY)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3])
def test_usual_speeds_are_replayed_with_half_the_noise_and_twice_as_much_beside_it(rows):
    seconds = np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 5.0], [np.nan, 2.0, 6.0]])[:rows]
    found = simulate(Trace(np.ones_like(seconds), seconds, workers=["a", "b", "c"]), noise=0.1)
    mean_W = [np.mean([row[w] for row in seconds if np.isfinite(row[w])]) for w in range(3)]
    drawn = np.random.default_rng(0).standard_normal((STEADY + WARMUP, 3))
    one, half, twice = (
        simulate(Trace(np.ones_like(drawn), np.exp(spread * drawn) * mean_W, workers=["a", "b", "c"]))
        for spread in (0.1, 0.05, 0.2)
    )
    assert found.saving == pytest.approx(one.saving)
    assert (found.low, found.high) == pytest.approx(
        (min(one.low, half.low, twice.low), max(one.high, half.high, twice.high))
    )
    assert found.iterations == (STEADY + WARMUP) * 3 // 4, "a quarter warms up"
    assert found.assumed == (
        f"Assumed: each worker keeps its speed of {rows} measurement{'' if rows == 1 else 's'}, and varies by 10.0 % "
        "from one iteration to the next (the interval: by half to twice as much).",
    )


@pytest.mark.slow
def test_a_steady_job_keeps_the_batch_that_it_usually_had():
    samples = np.array([[8.0, 20.0], [16.0, 24.0], [9.0, np.nan]])
    assert simulate(Trace(samples, samples / [100.0, 50.0])).global_batch == 9 + 22
    assert from_speeds([100, 50]).global_batch == from_speeds([100, 50], global_batch=None).global_batch > 2
    assert from_speeds([100, 50], global_batch=77).global_batch == 77


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0, 1])
def test_noise_may_be_none_or_all_of_the_speed(noise):
    assert np.isfinite(from_speeds([100, 50], noise=noise).saving)
    for wrong in (-0.001, 1.001):
        with pytest.raises(ValueError, match=rf"noise must lie in \[0, 1\], as a share of the speed, got {wrong}"):
            from_speeds([100, 50], noise=wrong)


@pytest.mark.slow
def test_an_equal_share_may_be_the_largest_batch_that_fits_and_no_larger(tmp_path):
    sizes = (8, 16, 32, 64, 65)
    rows = [("mine", "gpu", "net", x, 0.01 + 0.001 * x if x < 65 else np.nan, np.nan, "") for x in sizes]
    path = save_profile(pd.DataFrame(rows, columns=list(COLUMNS)), tmp_path / "gpu.csv")
    assert from_profiles({path: 3}, global_batch=3 * 64).workers == 3
    with pytest.raises(ValueError, match="an equal share of 65 samples does not fit into the memory of gpu-0, whose"):
        from_profiles({path: 3}, global_batch=3 * 64 + 1)
