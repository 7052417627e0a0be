"""Significance: laws of the tests, their sizes on equal predictors, and figures from tables of others."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.eval import compare, leaderboard
from paceline.eval.significance import compare_over_jobs, squared_error_estimates
from paceline.predictors import EWMA, LastValue, checks

SEEDS = st.integers(0, 2**32 - 1)


def errors(seed, iterations=200, workers=3, likeness=0.5):
    """Errors of workers that resemble those of the iteration before."""
    rng = np.random.default_rng(seed)
    error_TW = rng.standard_t(5, size=(iterations, workers))
    for k in range(1, iterations):
        error_TW[k] += likeness * error_TW[k - 1]
    return error_TW


@given(SEEDS, SEEDS)
def test_verdict_is_symmetric(one, other):
    first, second = errors(one, 60), errors(other, 60)
    there, back = compare(first, second), compare(second, first)
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.p == pytest.approx(back.p)
    assert there.low <= there.ratio <= there.high


@given(SEEDS, st.floats(0.01, 100))
def test_verdict_ignores_units_and_worker_order(seed, unit):
    first, second = errors(seed, 60), errors(seed + 1, 60)
    plain, other = compare(first, second), compare(unit * first[:, ::-1], unit * second[:, ::-1])
    assert (other.ratio, other.low, other.high, other.p) == pytest.approx((plain.ratio, plain.low, plain.high, plain.p))


def test_ratio_is_geometric_mean_of_workers():
    first, second = errors(1), errors(2)
    first[::7, 0] = np.nan  # a worker that reports less often counts as much
    second[::7, 0] = np.nan
    ratios = np.sqrt(np.nanmean(first**2, axis=0) / np.nanmean(second**2, axis=0))
    assert compare(first, second).ratio == pytest.approx(np.exp(np.log(ratios).mean()))


def test_contributions_equal_jackknife():
    """To first order in the number of iterations."""
    error = np.random.default_rng(3).uniform(-1, 1, size=(200, 3))  # no iteration counts for much more than others
    whole = squared_error_estimates(error, 1.0).log
    without = np.array([squared_error_estimates(np.delete(error, k, axis=0), 1.0).log.value for k in range(len(error))])
    np.testing.assert_allclose((len(error) - 1) * (whole.value - without), whole.contributions, atol=0.01)


@pytest.mark.parametrize("likeness", [0.0, 0.5])
@pytest.mark.slow
def test_equal_predictors_seldom_lead(likeness):
    """At 5%, of 600: at most 8%, 3 standard errors above."""
    pairs = [compare(errors(2 * k, 150, 1, likeness), errors(2 * k + 1, 150, 1, likeness)) for k in range(600)]
    assert sum(pair.is_significant for pair in pairs) <= 0.08 * 600


def test_real_lead_found_within_interval():
    rng = np.random.default_rng(0)
    base = rng.normal(size=(1000, 4))
    found = compare(0.9 * (base + 0.3 * rng.normal(size=base.shape)), np.hypot(1, 0.3) * base)
    assert found.verdict == "better"
    assert found.low < 0.9 < found.high


def test_the_best_of_many_must_lead_by_more():
    differences = [squared_error_estimates(errors(1), 1.0) - squared_error_estimates(0.9 * errors(2), 1.0)]
    chances = [compare_over_jobs(differences, [1.0], num_compared=among).p for among in (2, 3, 10, 30)]
    assert all(few < more for few, more in pairwise(chances))


def test_jobs_together_say_more_than_one():
    jobs = [
        squared_error_estimates(0.97 * errors(k), 1.0) - squared_error_estimates(errors(k) + 0.5 * errors(k + 50), 1.0)
        for k in range(8)
    ]
    assert compare_over_jobs(jobs, [1 / 8] * 8).p < min(compare_over_jobs([job], [1.0]).p for job in jobs)


def test_errors_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"shape \[iterations, workers\], with 20 iterations or more, got \(30, 1\)"):
        compare(np.ones((30, 1)), np.ones((30, 2)))
    with pytest.raises(ValueError, match="20 iterations or more"):
        compare(np.ones((19, 1)), np.ones((19, 1)))


# -- the leaderboard ---------------------------------------------------------------------------------------------


class Noisy(LastValue):
    """The last value, worse by a tenth of a percent, at random."""

    def forecast_speed(self, covariates_WD, horizon):
        speed = super().forecast_speed(covariates_WD, horizon)
        return speed * (1 + 1e-3 * np.sin(1e6 * speed))


def jobs(count):
    traces = [checks.example_trace(seed=seed) for seed in range(count)]
    return [Trace(one.samples, one.seconds, workers=one.workers, meta={"job": str(k)}) for k, one in enumerate(traces)]


@pytest.mark.slow
def test_board_names_leaders_and_luck():
    board = leaderboard({"noisy": Noisy(), "slow": EWMA(smoothing=0.05)}, jobs(2))
    leads = board.leads().set_index("predictor")
    assert leads.loc["slow", "than last-value"] == leads.loc["slow", "than the best"] == "worse"
    assert leads.loc["noisy", "than last-value"] == "not significant"
    assert {leads.loc[name, "than the best"] for name in ("noisy", "last-value")} == {"the best", "not significant"}
    assert leads["rmse"].to_dict() == pytest.approx(board.overall.set_index("predictor")["rmse"].to_dict())
