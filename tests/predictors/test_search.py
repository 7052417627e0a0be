"""The model-free search of LB-BSP, served by a load balancer as any predictor is."""

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, LeaderSearch, Report

FLEET = ("gpu0", "gpu1", "gpu2")


def balancer(predictor, workers=FLEET, global_batch=192, **rules):
    policy = Policy(**{"warmup": 0, "change_cost": 0, "risk": 0, **rules})
    return LoadBalancer(predictor, workers=workers, global_batch=global_batch, policy=policy)


def searched(reports, **options):
    """The sizes after each of these times of batches that follow the plans."""
    used = balancer(LeaderSearch(**{"window": 1, **options}))
    return [used.step(Report(used.plan.sizes, seconds)).sizes.tolist() for seconds in reports]


def run(used, seconds_of, count, noise=0.02):
    rng, makespans = np.random.default_rng(0), []
    for _ in range(count):
        seconds = seconds_of(used.plan.sizes) * rng.lognormal(0, noise, len(used.plan.sizes))
        makespans.append(seconds.max())
        used.step(Report(used.plan.sizes, seconds))
    return np.array(makespans)


def cliff(sizes):
    """Above 150 samples the second worker runs out of fast memory and takes four times as long: no line tells that."""
    return sizes / [100, 200, 100, 50] * np.where(sizes > 150, [1, 4, 1, 1], 1)


def test_a_step_moves_from_the_straggler_to_the_leader():
    assert searched([[0.5, 0.4, 0.9]]) == [[64, 72, 56]]


def test_oscillation_halves_step_doubles_window():
    sizes = searched([[0.5, 0.4, 0.6], [0.5, 0.6, 0.4], [0.5, 0.6, 0.4], [0.5, 0.6, 0.4], [0.5, 0.6, 0.4]], tolerance=0)
    assert sizes == [[64, 72, 56], [64, 68, 60], [64, 68, 60], [64, 60, 68], [64, 52, 76]]


def test_equally_fast_workers_left_alone():
    assert searched([[0.5, 0.51, 0.49]]) == [[64, 64, 64]]


def test_balance_found_with_fixed_parts():
    used = balancer(LeaderSearch(), global_batch=600)
    run(used, lambda x: np.array([0.1, 0.4, 0.2]) + np.array([1e-3, 1e-3, 3e-3]) * x, 300, noise=0)
    seconds = np.array([0.1, 0.4, 0.2]) + np.array([1e-3, 1e-3, 3e-3]) * used.plan.sizes
    assert seconds.max() < 1.06 * seconds.min()


@pytest.mark.slow
def test_cliff_device_beats_average():
    fleet = {"workers": range(4), "global_batch": 512}
    search = run(balancer(LeaderSearch(), **fleet), cliff, 600)[100:].mean()
    for rules in ({}, {"change_cost": 0.05}):
        assert search < 0.95 * run(balancer(EWMA(), **rules, **fleet), cliff, 600)[100:].mean()


def test_silence_and_garbage_move_nothing():
    used = balancer(LeaderSearch(window=1))
    for seconds in ([np.nan] * 3, [0.0, -1.0, np.inf], [np.nan, 0.5, np.nan]):
        assert not used.step(Report(used.plan.sizes, seconds)).acted


@pytest.mark.parametrize("options", [{"step": 0.0}, {"step": 1.0}, {"tolerance": -0.1}, {"window": 0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=r"step must lie in \(0, 1\), tolerance in \[0, 1\) and window be at least 1"):
        LeaderSearch(**options)
