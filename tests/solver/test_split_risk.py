"""What caution does: noisy workers get less, equally noisy ones get the same, and barriers are shorter."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from paceline.predictors import Curves
from paceline.solver import caution, split
from paceline.solver.risk import cautious, log_caution, log_cautions

spreads = st.lists(st.floats(0.0, 1e300) | st.floats(0.0, 1.0) | st.just(np.inf), min_size=1, max_size=12)


@given(
    st.lists(st.floats(1.0, 1e4), min_size=1, max_size=30),
    st.one_of(st.floats(0.0, 1e300), st.just(np.inf)),
    st.floats(0.0, 2.0),
)
def test_equal_noise_changes_no_bit(speed: list[float], spread: float, risk: float) -> None:
    curves = Curves.from_speed(np.array(speed))
    cautious = split(curves, 1000, spread=spread, risk=risk)
    np.testing.assert_array_equal(cautious.sizes, split(curves, 1000).sizes)


@given(st.lists(st.one_of(st.floats(0.0, 10.0), st.just(np.inf)), min_size=2, max_size=20), st.floats(0.1, 2.0))
def test_of_equal_workers_the_noisier_never_gets_more(spread: list[float], risk: float) -> None:
    sizes = split(Curves.from_speed(np.full(len(spread), 50.0)), 999, spread=spread, risk=risk).sizes
    by_noise = sizes[np.argsort(spread, kind="stable")]
    assert sizes.sum() == 999
    assert (np.diff(by_noise) <= 1).all()


def test_an_unknown_spread_counts_as_the_largest_known_one() -> None:
    assert caution(np.array([0.1, np.inf, 0.4])).tolist() == caution(np.array([0.1, 0.4, 0.4])).tolist()


def test_seconds_are_those_of_the_plain_curves() -> None:
    curves = Curves.from_speed(np.full(4, 100.0))
    plan = split(curves, 400, spread=[0.05, 0.05, 0.4, 0.4], risk=1.0)
    np.testing.assert_array_equal(plan.seconds, curves.seconds(plan.sizes))
    assert plan.sizes[2] < plan.sizes[0]


@pytest.mark.parametrize(("noise", "least"), [(0.3, 0.05), (0.5, 0.14)])
def test_sparing_noisy_workers_shortens_the_mean_iteration(noise: float, least: float) -> None:
    rng = np.random.default_rng(7)
    speed, spread = np.full(8, 100.0), np.repeat([0.05, noise], 4)
    errors = np.exp(np.sqrt(np.log1p(spread**2)) * rng.standard_normal((20_000, 8)))

    def mean_makespan(risk: float) -> float:
        sizes = split(Curves.from_speed(speed), 800, spread=spread, risk=risk).sizes
        return float((sizes / speed * errors).max(axis=1).mean())

    assert 1 - mean_makespan(1.0) / mean_makespan(0.0) > least


@pytest.mark.parametrize("workers", [2, 3, 5, 8, 32, 100, 512])
def test_the_noisy_half_is_planned_at_the_expected_largest_of_as_many_errors(workers: int) -> None:
    grid = np.linspace(-9, 9, 20001)
    largest = norm.cdf(grid) ** workers
    expected = grid[-1] - np.trapezoid(largest, grid)  # of that many standard normal numbers, to seven digits
    spread = np.where(np.arange(workers) < workers // 2, 0.0, 0.3)
    stretch = np.log(caution(spread))[-1] / np.sqrt(np.log(1 + 0.3**2))
    assert stretch == pytest.approx(expected, rel=0.05)


@given(spreads, st.sampled_from([0.0, 0.3, 2.0]))
def test_all_times_of_a_noisy_worker_are_stretched_alike_and_its_memory_is_not(
    spread: list[float], risk: float
) -> None:
    count = len(spread)
    curves = Curves(*(np.arange(1.0, count + 1) * unit for unit in (2.0, 0.01, 0.5, 100.0)))
    found, factor = cautious(curves, np.array(spread), risk), caution(np.array(spread), risk)
    for name in ("floor", "slope", "intercept"):
        np.testing.assert_array_equal(getattr(found, name), getattr(curves, name) * factor)
    np.testing.assert_array_equal(found.limit, curves.limit)
    assert found is curves or risk, "without a risk nothing is computed"


@given(spreads)
def test_cautions_in_plain_floats_are_those_in_arrays_and_the_formula(spread: list[float]) -> None:
    known = [one for one in spread if one < np.inf]
    sigma = np.array([np.sqrt(2 * np.log(np.hypot(1, min(one, max(known, default=0.0))))) for one in spread])
    largest = norm.ppf((len(spread) - 0.375) / (len(spread) + 0.25))
    for found in (log_caution(np.array(spread)), log_cautions(spread)):
        np.testing.assert_allclose(found, largest * (sigma - sigma.min()), rtol=1e-9, atol=1e-12)
