"""Jobs whose time does not follow the batch alone, in worlds that no model of ours made."""

import numpy as np
import pytest

from paceline import LoadBalancer
from paceline.predictors import EWMA, Auto, Curves, LastValue, Report
from paceline.solver import split


def ran(fixed_TW, per_TW, pause_TW=0.0, predictor=None, horizon=1):
    """Return the makespans, those of equal batches, and the sizes, of a job of 32 samples for each worker."""
    iterations, workers = fixed_TW.shape
    balancer = LoadBalancer(predictor or Auto(), workers=range(workers), global_batch=32 * workers, horizon=horizon)
    plans, taken, equal = [balancer.plan.sizes] * horizon, [], []
    for k, (fixed_W, per_W) in enumerate(zip(fixed_TW + pause_TW, per_TW, strict=True)):
        seconds_W = fixed_W + per_W * plans[k]
        taken.append(seconds_W.max())
        equal.append((fixed_W + 32 * per_W).max())
        plans.append(balancer.step(Report(samples=plans[k], seconds=seconds_W)).sizes)
    return np.array(taken), np.array(equal), np.array(plans[:iterations])


def best_split(fixed_W, per_W):
    curves = Curves(np.zeros(len(fixed_W)), per_W, fixed_W, np.full(len(fixed_W), np.inf))
    return split(curves, 32 * len(fixed_W), lower=1)


def noisy(times_W, iterations, rng, noise=0.01):
    return np.array(times_W) * np.exp(rng.normal(0, noise, (iterations, len(times_W))))


@pytest.mark.parametrize("make", [LastValue, EWMA, Auto])
@pytest.mark.parametrize(
    ("fixed_W", "per_W"),
    [
        ([0.0, 0.0, 0.0], [0.01, 0.01, 0.02]),
        ([0.2, 0.2, 0.2], [0.004, 0.004, 0.008]),
        ([0.0, 0.0, 0.4], [0.01, 0.01, 0.01]),
        ([0.4, 0.1, 0.0], [0.002, 0.01, 0.02]),
    ],
)
def test_any_predictor_serves_fixed_parts(make, fixed_W, per_W):
    rng, per_W = np.random.default_rng(0), np.array(per_W)
    taken, equal, _ = ran(noisy(fixed_W, 80, rng), noisy(per_W, 80, rng), predictor=make())
    best = best_split(np.array(fixed_W), per_W).makespan
    gain, possible = 1 - taken[20:].mean() / equal[20:].mean(), 1 - best / equal[20:].mean()
    assert gain > 0.9 * possible


def test_no_extreme_size_without_a_gain():
    """A worker needs 50 ms whatever its batch, longer than all others: nothing is to be gained."""
    rng = np.random.default_rng(0)
    fixed_TW, per_TW = noisy([0.0, 0.05], 60, rng), noisy([1e-3, 0.0], 60, rng)
    taken, equal, sizes = ran(fixed_TW, per_TW)
    assert taken.sum() < 1.02 * equal.sum()
    assert sizes[-20:].max() <= 52


def test_sizes_return_when_a_worker_recovers():
    fixed_TW, per_TW = np.full((90, 2), 0.05), np.full((90, 2), 1e-3)
    fixed_TW[10:40, 0] *= 2
    per_TW[10:40, 0] *= 2
    _, _, sizes = ran(fixed_TW, per_TW)
    assert sizes[35][0] < 28
    assert np.abs(sizes[60:] - 32).max() <= 3


def test_a_pause_teaches_nothing():
    rng = np.random.default_rng(0)
    fixed_TW, per_TW = noisy([0.01, 0.01], 120, rng), noisy([1e-3, 2e-3], 120, rng)
    pause_TW = np.zeros((120, 2))
    pause_TW[40] = [3.0, 0.0]
    pause_TW[80] = [0.0, 3.0]
    plain, _, before = ran(fixed_TW, per_TW)
    paused, _, after = ran(fixed_TW, per_TW, pause_TW)
    assert paused.sum() - 6.0 < 1.05 * plain.sum()
    assert np.abs(after[-10:] - before[-10:]).max() <= 2


@pytest.mark.parametrize("seed", range(12))
def test_balancing_is_never_slower_than_equal(seed):
    """Speeds that stay, jump, wander or flicker; a fixed part of any size on one worker or all, constant or not."""
    rng = np.random.default_rng(seed)
    workers, share, iterations = int(rng.integers(2, 7)), float(rng.uniform(0, 0.95)), 120
    slow_TW = np.exp(rng.normal(0, 0.3, workers)) * np.ones((iterations, 1))
    if seed % 4 == 1:
        slow_TW[40:80, 0] *= 3
    elif seed % 4 == 2:
        slow_TW = slow_TW * np.exp(np.cumsum(rng.normal(0, 0.03, slow_TW.shape), axis=0))
    elif seed % 4 == 3:
        slow_TW = np.exp(rng.normal(0, 0.3, slow_TW.shape))
    fixed_TW = share * (slow_TW if seed % 3 else np.ones_like(slow_TW))
    fixed_TW = np.where(np.arange(workers) == 0, fixed_TW, fixed_TW * (seed % 2))
    pause_TW = (rng.random(slow_TW.shape) < 0.01) * rng.uniform(1, 10, slow_TW.shape)
    taken, equal, _ = ran(fixed_TW, (1 - share) / 32 * slow_TW, pause_TW, horizon=1 + seed % 2)
    assert taken.sum() < 1.02 * equal.sum()


@pytest.mark.parametrize("seed", [0, 3])
def test_lone_stalls_do_not_move_sizes(seed):
    """A worker stalls now and then, for one iteration: nothing is to be gained, and nothing lost by reacting."""
    rng = np.random.default_rng(seed)
    fixed_TW, per_TW = noisy([0.5, 0.5, 0.5], 300, rng), noisy([0.016, 0.016, 0.016], 300, rng)
    stall_TW = (rng.random(fixed_TW.shape) < 0.03) * rng.uniform(1, 10, fixed_TW.shape)
    taken, equal, sizes = ran(fixed_TW, per_TW, pause_TW=stall_TW)
    assert taken[100:].sum() < 1.002 * equal[100:].sum()
    assert np.abs(sizes[100:] - 32).max() <= 6
