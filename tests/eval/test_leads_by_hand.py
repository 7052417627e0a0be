"""Leads, their errors and their intervals against slow definitions written from the formulas."""

import math
from fractions import Fraction
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm, studentized_range
from scipy.stats import t as student

from paceline.eval import significance
from paceline.eval.significance import (
    ErrorFigures,
    Estimate,
    absolute,
    compare,
    critical_difference,
    joined_error,
    lead,
    mean,
    squared,
)

SEEDS = st.integers(0, 2**32 - 1)
NAN = float("nan")


def waves_of(moves, count):
    """The slowest cosines in a series, but for the constant one, by their definition."""
    length = len(moves)
    return [
        math.sqrt(2 / length) * sum(x * math.cos(math.pi * k * (2 * n + 1) / (2 * length)) for n, x in enumerate(moves))
        for k in range(1, count + 1)
    ]


# Six cosines, or more from 186 iterations on, where a fifth of the power 2/3 is 6.5; one fewer than the iterations.
COSINES = {2: 1, 5: 4, 6: 5, 7: 6, 8: 6, 20: 6, 185: 6, 186: 7, 1000: 20, 2000: 32}


@pytest.mark.parametrize(("iterations", "count"), COSINES.items())
def test_an_error_is_that_of_the_slowest_cosines_as_many_as_the_series_allows(iterations, count):
    moves = np.random.default_rng(iterations).normal(size=iterations)
    error, degrees = Estimate(0.0, moves).error()
    assert degrees == count
    assert error == pytest.approx(math.sqrt(fmean(wave**2 for wave in waves_of(moves, count)) / iterations))
    few, fewer = Estimate(0.0, moves).error(cosines=1)
    assert (few, fewer) == (pytest.approx(abs(waves_of(moves, 1)[0]) / math.sqrt(iterations)), 1)


def test_the_errors_of_jobs_are_joined_by_welch_and_satterthwaite():
    moves = [np.random.default_rng(k).normal(size=count) for k, count in enumerate((20, 6, 400))]
    jobs, weights = [Estimate(1.0, one) for one in moves], [0.5, 0.2, 0.3]
    parts = [(w * one.error()[0]) ** 2 for w, one in zip(weights, jobs, strict=True)]
    degrees = [one.error()[1] for one in jobs]
    error, freedom = joined_error(jobs, weights)
    assert error == pytest.approx(math.sqrt(sum(parts)))
    assert freedom == pytest.approx(sum(parts) ** 2 / sum(p**2 / d for p, d in zip(parts, degrees, strict=True)))
    assert joined_error([Estimate(1.0, 0 * one) for one in moves], weights) == (0.0, sum(degrees))
    assert joined_error([jobs[0], Estimate(1.0, np.zeros(6))], [0.5, 0.5])[0] > 0


# -- figures ---------------------------------------------------------------------------------------------------------


def column(table, w):
    return [row[w] for row in table]


def figures_of(table):
    """The mean over workers of means over time, and of the logs of these, each with what an iteration adds."""
    length, workers = table.shape
    known = [[x for x in column(table, w) if math.isfinite(x)] for w in range(workers)]
    means, positive = [fmean(one) for one in known], (table[np.isfinite(table)] > 0).all()

    def moves(of):
        return [
            fmean(
                of(table[n, w], means[w]) * length / len(known[w]) if math.isfinite(table[n, w]) else 0.0
                for w in range(workers)
            )
            for n in range(length)
        ]

    plain = fmean(means), moves(lambda x, m: x - m)
    return plain, positive and (fmean(math.log(m) for m in means), moves(lambda x, m: x / m - 1))


def table_of(seed, length=25, workers=3):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(length, workers)) * rng.uniform(0.5, 2, workers)
    table[rng.random(table.shape) < 0.2] = NAN
    table[0] = 1.0
    return table


def same(found, wanted, factor=1.0):
    assert found.value == pytest.approx(factor * wanted[0])
    np.testing.assert_allclose(found.moves, np.multiply(factor, wanted[1]), atol=1e-12)


@settings(max_examples=10)
@given(SEEDS)
def test_figures_are_means_over_workers_of_what_is_known_of_each(seed):
    table = table_of(seed)
    scale = np.array([0.5, 2.0, 3.0])
    same(mean(table), figures_of(table)[0])
    for found, loss, power, beside in (
        (squared(table, scale), table**2, 0.5, (table / scale) ** 2),
        (absolute(table, scale), abs(table), 1.0, abs(table) / scale),
    ):
        same(found.log, figures_of(loss)[1], power)
        same(found.loss, figures_of(beside)[0])


def test_a_difference_of_figures_is_that_of_logs_and_of_losses():
    rng = np.random.default_rng(0)
    one, other = (ErrorFigures(*(Estimate(x, rng.normal(size=3)) for x in pair)) for pair in ((5.0, 3.0), (1.0, 0.5)))
    both = one - other
    assert (both.log.value, both.loss.value) == (4.0, 2.5)
    np.testing.assert_array_equal(both.log.moves, one.log.moves - other.log.moves)
    np.testing.assert_array_equal(both.loss.moves, one.loss.moves - other.loss.moves)


# -- leads -----------------------------------------------------------------------------------------------------------


def figure(value, moves, loss, loss_moves):
    return ErrorFigures(Estimate(value, moves), Estimate(loss, loss_moves))


def drawn_means(moves, count, rng):
    """Means of blocks drawn around the circle of iterations, each half a wave of the last cosine long."""
    length = math.ceil(len(moves) / (2 * count))
    blocks = math.ceil(len(moves) / length)
    starts = rng.integers(len(moves), size=(40, blocks))
    return [fmean(moves[(start + n) % len(moves)] for start in row for n in range(length)) for row in starts.tolist()]


@pytest.mark.parametrize("among", [2, 3, 4])
@pytest.mark.parametrize("lengths", [[25], [50, 23, 7]])
def test_a_lead_over_jobs_is_that_of_their_weighted_logs_and_its_chance_that_of_their_losses(
    monkeypatch, among, lengths
):
    monkeypatch.setattr(significance, "DRAWS", 40)
    rng = np.random.default_rng(1)
    moves = [[0.1 * rng.normal(size=n) for _ in range(2)] for n in lengths]
    values = [(-0.2, -0.1), (0.15, -0.02), (-0.4, -0.05)][: len(lengths)]
    weights = [1.0] if len(lengths) == 1 else [0.5, 0.3, 0.2]
    jobs = [figure(v, a, x, b) for (v, x), (a, b) in zip(values, moves, strict=True)]
    value, loss = (sum(w * pair[k] for w, pair in zip(weights, values, strict=True)) for k in (0, 1))
    found = lead(jobs, weights, among=among)
    error, degrees = joined_error([job.loss for job in jobs], weights)
    chance = (
        2 * student.sf(abs(loss) / error, degrees)
        if among == 2
        else studentized_range.sf(math.sqrt(2) * abs(loss) / error, among, degrees)
    )
    assert found.p == pytest.approx(chance, rel=1e-6)
    draws, joined = np.random.default_rng(0), np.zeros(40)
    for weight, (own, _) in zip(weights, moves, strict=True):
        joined += weight * np.array(drawn_means(own, min(6, len(own) - 1), draws))
    wider = student.isf(0.025, joined_error([job.log for job in jobs], weights)[1]) / norm.isf(0.025)
    high, low = (wider * np.quantile(joined, q) for q in (0.975, 0.025))
    wanted = [math.exp(one) for one in (value, value - high, value - low)]
    assert [found.ratio, found.low, found.high] == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("value", "loss", "p"),
    [(-0.1, 0.1, 1.0), (0.1, -0.1, 1.0), (0.0, 0.5, 1.0), (0.5, 0.0, 1.0), (0.1, 0.1, 0.0), (-0.1, -0.1, 0.0)],
)
def test_logs_and_losses_that_disagree_are_no_lead_and_a_difference_without_error_is_no_luck(value, loss, p):
    still = np.zeros(20)
    found = lead([figure(value, still, loss, still)], [1.0])
    assert found.p == p
    assert [found.ratio, found.low, found.high] == pytest.approx([math.exp(value)] * 3)


def test_without_any_error_a_lead_is_infinite_and_its_interval_too():
    rng = np.random.default_rng(0)
    still, moved = np.zeros(20), rng.normal(size=20)
    none = lead([figure(-math.inf, moved, -1.0, still)], [1.0])
    assert (none.ratio, none.low, none.high, none.p) == (0.0, 0.0, 0.0, 0.0)
    only = lead([figure(math.inf, moved, 0.1, moved)], [1.0])
    assert (only.ratio, only.low, only.high) == (math.inf,) * 3
    assert 0 < only.p < 1


def test_a_predictor_without_any_error_has_losses_and_no_scale_of_its_own():
    none = squared(np.zeros((20, 2)), np.ones(2))
    assert (none.log.value, none.loss.value) == (-math.inf, 0.0)
    assert np.isnan(none.log.moves).all()
    assert (none.loss.moves == 0).all()


def test_errors_are_compared_beside_the_root_of_the_mean_of_both_squares():
    one, other = table_of(5, 20), table_of(6, 20)
    squares = [[fmean(x**2 for x in column(table, w) if math.isfinite(x)) for w in range(3)] for table in (one, other)]
    scale = np.sqrt(np.mean(squares, axis=0))
    wanted = lead([squared(one, scale) - squared(other, scale)], [1.0])
    assert list(vars(compare(one, other)).values()) == pytest.approx(list(vars(wanted).values()))
    halves = [[[Fraction(int(4 * x), 8)] for x in np.random.default_rng(seed).normal(size=20)] for seed in (0, 1)]
    assert compare(*halves) == compare(*np.array(halves, dtype=float)), "numbers of any kind"


def test_tables_of_twenty_iterations_and_of_two_axes_alone_are_compared():
    with pytest.raises(ValueError, match=r"got \(20,\) and \(20,\)"):
        compare(np.ones(20), np.ones(20))
    with pytest.raises(ValueError, match=r"got \(20, 1, 1\) and \(20, 1, 1\)"):
        compare(np.ones((20, 1, 1)), np.ones((20, 1, 1)))
    assert compare(np.ones((20, 1)), np.ones((20, 1))).verdict == "not significant"


# -- in words --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("predictors", "jobs"), [(2, 5), (4, 14), (7, 30)])
def test_mean_ranks_must_be_apart_by_nemenyis_difference(predictors, jobs):
    quantile = studentized_range.isf(0.05, predictors, 1e6)
    wanted = quantile / math.sqrt(2) * math.sqrt(predictors * (predictors + 1) / 6 / jobs)
    assert critical_difference(predictors, jobs) == pytest.approx(wanted, rel=1e-4)
