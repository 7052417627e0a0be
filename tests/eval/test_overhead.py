"""The overhead at a barrier: known numbers and laws."""

import numpy as np
import pytest

from paceline.eval import barrier_overhead

RNG = np.random.default_rng(0)
ACTUAL = np.exp(RNG.normal(size=(50, 20)))
FORECAST = ACTUAL * np.exp(RNG.normal(scale=0.1, size=ACTUAL.shape))


def test_it_is_the_mean_over_iterations_computed_by_hand():
    forecast, actual = [[1.0, 1.0], [2.0, 1.0]], [[1.0, 3.0], [1.0, 1.0]]
    # equal shares: the first takes 0.5 where 1 / 4 would do; 2 : 1 shares: 2 / 3 where 1 / 2 would do
    assert barrier_overhead(forecast, actual) == pytest.approx(((2.0 - 1.0) + (4 / 3 - 1.0)) / 2)


def test_true_speeds_cost_nothing_and_no_forecast_gains():
    assert barrier_overhead(ACTUAL, ACTUAL) == pytest.approx(0.0, abs=1e-12)
    assert barrier_overhead(FORECAST, ACTUAL) > 0.05


def test_only_ratios_of_forecasts_matter():
    assert barrier_overhead(3.0 * FORECAST, ACTUAL) == pytest.approx(barrier_overhead(FORECAST, ACTUAL))


def test_larger_groups_wait_longer():
    overheads = [barrier_overhead(FORECAST, ACTUAL, group=size) for size in (2, 4, 16)]
    assert overheads == sorted(overheads)
    assert overheads[0] < 0.6 * overheads[2]


def test_who_did_not_report_is_not_waited_for():
    gap = ACTUAL[:, :3].copy()
    gap[:, 1] = np.nan
    assert barrier_overhead(FORECAST[:, :3], gap) == barrier_overhead(FORECAST[:, [0, 2]], ACTUAL[:, [0, 2]])
    alone = np.where(np.arange(2) == 0, ACTUAL[:, :2], np.nan)
    assert barrier_overhead(FORECAST[:, :2], alone) == pytest.approx(0.0, abs=1e-12)
    assert np.isnan(barrier_overhead(FORECAST, np.full_like(ACTUAL, np.nan)))


def test_the_same_seed_assigns_the_same_groups_and_everybody_gets_into_one():
    assert barrier_overhead(FORECAST, ACTUAL, seed=3) == barrier_overhead(FORECAST, ACTUAL, seed=3)
    assert barrier_overhead(FORECAST, ACTUAL, seed=3) != barrier_overhead(FORECAST, ACTUAL, seed=4)
    for worker in range(20):
        slow = ACTUAL.copy()
        slow[:, worker] /= 100.0
        assert barrier_overhead(ACTUAL, slow) > 1.0


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="group must be at least 2 workers, got 1"):
        barrier_overhead(FORECAST, ACTUAL, group=1)
    with pytest.raises(
        ValueError, match=r"must both have the shape \[iterations, workers\], got \(50, 19\) and \(50, 20\)"
    ):
        barrier_overhead(FORECAST[:, 1:], ACTUAL)


@pytest.mark.parametrize(("workers", "group"), [(7, 3), (20, 16), (5, 9), (33, 4), (1, 2)])
def test_it_is_the_mean_of_the_groups_iterations_as_counted_one_by_one(workers, group):
    """As many random groupings as give eight groups, of whole groups only; whoever did not report is left out."""
    rng = np.random.default_rng(workers)
    actual, forecast = rng.lognormal(0, 0.5, (12, workers)), rng.lognormal(0, 0.5, (12, workers))
    actual[rng.random(actual.shape) < 0.2] = np.nan
    forecast[rng.random(actual.shape) < 0.1] = np.nan
    draw, groups = np.random.default_rng(5), []
    while len(groups) < (8 if group < workers else 1):
        order = draw.permutation(workers) if group < workers else np.arange(workers)
        size = min(group, workers)
        groups += [order[k : k + size] for k in range(0, workers - size + 1, size)]
    each = []
    for members in groups:
        for t in range(12):
            there = [w for w in members if np.isfinite(actual[t, w]) and np.isfinite(forecast[t, w])]
            if there:
                share = forecast[t, there] / forecast[t, there].sum()
                each.append((share / actual[t, there]).max() * actual[t, there].sum() - 1)
    assert barrier_overhead(forecast, actual, group=group, seed=5) == pytest.approx(np.mean(each))
