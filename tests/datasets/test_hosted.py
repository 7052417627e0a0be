"""Synthetic fleets on shared hosts: what each kind shows."""

import numpy as np
import pytest

from paceline.datasets.synthetic.hosted import KINDS, PER_HOST, hosted_fleet


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_trace_and_another_seed_another(kind):
    first, again, other = (hosted_fleet(kind, 6, 40, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.seconds, again.seconds)
    assert not np.array_equal(first.seconds, other.seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_every_time_is_known_and_positive(kind):
    seconds_TW = hosted_fleet(kind, 9, 200).seconds
    assert np.isfinite(seconds_TW).all()
    assert (seconds_TW > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_iteration_is_slow_for_most_workers(kind):
    seconds_TW = hosted_fleet(kind, 100, 200).seconds
    assert np.mean(seconds_TW[0] > 1.2 * np.median(seconds_TW[50:], axis=0)) > 0.6


def test_workers_of_one_host_are_slow_together_and_those_of_others_are_not():
    log_TW = np.log(hosted_fleet("queues", 40, 1500).seconds[50:])
    together = np.corrcoef(log_TW.T)
    host_W = np.arange(40) // PER_HOST
    same = (host_W[:, None] == host_W) & ~np.eye(40, dtype=bool)
    assert np.median(together[same]) > 0.5
    assert abs(np.median(together[host_W[:, None] != host_W])) < 0.1


def test_the_misleading_covariate_moves_with_the_time_first_and_against_it_later():
    trace = hosted_fleet("misled", 40, 1500)
    covariate_TW, seconds_TW = trace.covariates[:, :, 0], trace.seconds
    signs = []
    for part in (slice(50, 500), slice(550, 1500)):
        known = [np.isfinite(covariate_TW[part, w]) for w in range(40)]
        found = [
            np.corrcoef(covariate_TW[part, w][k], np.log(seconds_TW[part, w][k]))[0, 1] for w, k in enumerate(known)
        ]
        signs.append(np.median(found))
    assert signs[0] > 0.3
    assert signs[1] < -0.3


def test_some_samples_of_covariates_are_missing():
    assert 0.05 < np.isnan(hosted_fleet("queues", 40, 200).covariates).mean() < 0.3


@pytest.mark.slow
def test_seasons_have_events_that_repeat_at_a_period_of_each_worker():
    seconds_TW = hosted_fleet("seasons", 30, 1200).seconds[100:]
    log_TW = np.log(seconds_TW) - np.log(np.median(seconds_TW, axis=0))
    best_W = [max(np.corrcoef(log_TW[:-lag, w], log_TW[lag:, w])[0, 1] for lag in range(5, 61)) for w in range(30)]
    assert np.median(best_W) > 0.5


def test_a_clock_falls_with_heat_above_a_limit_of_each_worker():
    trace = hosted_fleet("heated", 40, 1500)
    degrees_TW, seconds_TW = trace.covariates[50:, :, 0], trace.seconds[50:] / np.median(trace.seconds[50:], axis=0)
    cool = [np.median(seconds_TW[degrees_TW[:, w] < 55, w]) for w in range(40)]
    slower_W = [np.median(seconds_TW[degrees_TW[:, w] > 87, w]) / cool[w] for w in range(40)]
    assert np.median(slower_W) > 1.2
    assert max(slower_W) > 1.5 * min(slower_W)  # what the same temperature does differs between workers


def test_an_unknown_kind_or_an_empty_size_is_refused():
    with pytest.raises(ValueError, match="kind must be one of"):
        hosted_fleet("steady")
    with pytest.raises(ValueError, match="at least 1"):
        hosted_fleet("queues", workers=0)
