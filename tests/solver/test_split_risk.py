"""What caution does: noisy workers get less, equally noisy ones get the same, and barriers are shorter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from paceline.solver import safety_factor, split


@given(st.integers(1, 30), st.one_of(st.floats(0.0, 1e300), st.just(np.inf)), st.floats(0.0, 2.0))
def test_equal_noise_changes_nothing(workers: int, spread: float, risk: float) -> None:
    np.testing.assert_array_equal(safety_factor(np.full(workers, spread), risk), np.ones(workers))


@given(st.lists(st.one_of(st.floats(0.0, 10.0), st.just(np.inf)), min_size=2, max_size=20), st.floats(0.1, 2.0))
def test_noisier_worker_never_gets_more(spread: list[float], risk: float) -> None:
    sizes = split(50.0 / safety_factor(np.array(spread), risk), 999).sizes
    by_noise = sizes[np.argsort(spread, kind="stable")]
    assert sizes.sum() == 999
    assert (np.diff(by_noise) <= 1).all()


@pytest.mark.parametrize(("noise", "least"), [(0.3, 0.05), (0.5, 0.14)])
def test_caution_shortens_the_mean_iteration(noise: float, least: float) -> None:
    rng = np.random.default_rng(7)
    speed, spread = np.full(8, 100.0), np.repeat([0.05, noise], 4)
    errors = np.exp(np.sqrt(np.log1p(spread**2)) * rng.standard_normal((20_000, 8)))

    def mean_makespan(risk: float) -> float:
        sizes = split(speed / safety_factor(spread, risk), 800).sizes
        return float((sizes / speed * errors).max(axis=1).mean())

    assert 1 - mean_makespan(1.0) / mean_makespan(0.0) > least


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 32, 100, 512])
def test_caution_is_the_expected_maximum(workers: int) -> None:
    grid = np.linspace(-9, 9, 20001)
    largest = norm.cdf(grid) ** workers
    expected = grid[-1] - np.trapezoid(largest, grid)  # of that many standard normal numbers, to seven digits
    spread = np.where(np.arange(workers) < workers // 2, 0.0, 0.3)
    stretch = np.log(safety_factor(spread))[-1] / np.sqrt(np.log(1 + 0.3**2))
    assert stretch == pytest.approx(expected, rel=0.05)
