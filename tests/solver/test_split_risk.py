"""What caution does: noisy workers get less, equally noisy ones get the same, and barriers are shorter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from paceline.predictors import Curves
from paceline.solver import caution, split


@given(
    st.lists(st.floats(1.0, 1e4), min_size=1, max_size=30),
    st.one_of(st.floats(0.0, 1e300), st.just(np.inf)),
    st.floats(0.0, 2.0),
)
def test_equal_noise_changes_nothing(speed: list[float], spread: float, risk: float) -> None:
    curves = Curves.from_speed(np.array(speed))
    cautious = split(curves, 1000, spread=spread, risk=risk)
    np.testing.assert_array_equal(cautious.sizes, split(curves, 1000).sizes)


@given(st.lists(st.one_of(st.floats(0.0, 10.0), st.just(np.inf)), min_size=2, max_size=20), st.floats(0.1, 2.0))
def test_noisier_worker_never_gets_more(spread: list[float], risk: float) -> None:
    sizes = split(Curves.from_speed(np.full(len(spread), 50.0)), 999, spread=spread, risk=risk).sizes
    by_noise = sizes[np.argsort(spread, kind="stable")]
    assert sizes.sum() == 999
    assert (np.diff(by_noise) <= 1).all()


def test_risk_does_not_change_reported_seconds() -> None:
    curves = Curves.from_speed(np.full(4, 100.0))
    plan = split(curves, 400, spread=[0.05, 0.05, 0.4, 0.4], risk=1.0)
    np.testing.assert_array_equal(plan.seconds, curves.seconds(plan.sizes))
    assert plan.sizes[2] < plan.sizes[0]


@pytest.mark.parametrize(("noise", "least"), [(0.3, 0.05), (0.5, 0.14)])
def test_caution_shortens_the_mean_iteration(noise: float, least: float) -> None:
    rng = np.random.default_rng(7)
    speed, spread = np.full(8, 100.0), np.repeat([0.05, noise], 4)
    errors = np.exp(np.sqrt(np.log1p(spread**2)) * rng.standard_normal((20_000, 8)))

    def mean_makespan(risk: float) -> float:
        sizes = split(Curves.from_speed(speed), 800, spread=spread, risk=risk).sizes
        return float((sizes / speed * errors).max(axis=1).mean())

    assert 1 - mean_makespan(1.0) / mean_makespan(0.0) > least


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 32, 100, 512])
def test_caution_is_the_expected_maximum(workers: int) -> None:
    grid = np.linspace(-9, 9, 20001)
    largest = norm.cdf(grid) ** workers
    expected = grid[-1] - np.trapezoid(largest, grid)  # of that many standard normal numbers, to seven digits
    spread = np.where(np.arange(workers) < workers // 2, 0.0, 0.3)
    stretch = np.log(caution(spread))[-1] / np.sqrt(np.log(1 + 0.3**2))
    assert stretch == pytest.approx(expected, rel=0.05)
