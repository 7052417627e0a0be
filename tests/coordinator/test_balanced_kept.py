"""Costs that were fitted, and plans of long runs, kept. Axes: K iterations, W workers, F features."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from kept import require_kept

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced import work
from paceline.predictors import EWMA, LastValue, Report
from paceline.predictors.batch_time.probing import probed

KEPT = Path(__file__).parent / "balanced_kept.json"


def test_residuals_count_fully_to_a_time_and_a_half_the_usual_and_not_at_all_beyond_eight_times():
    residuals = [1.0] * 9 + [1.5, 3.0, 8.0, 8.001, -8.001, 9.0, -6.0]
    assert work._weights(np.array(residuals)) == pytest.approx(
        [1.0] * 10 + [0.5**0.5, (1.5 / 8) ** 0.5, 0.0, 0.0, 0.0, 0.5]
    )
    assert work._weights(np.array([0.0, 0.0, 1.0])).tolist() == [1.0, 1.0, 0.0]


def fits(seed):
    """Coefficients and fixed time of noisy panels, with jumps of speed and times that are not known."""
    chance = np.random.default_rng(seed)
    features_KWF = chance.uniform(0.2, 3.0, (24, 3, 3)) * chance.uniform(0.5, 2.0, (24, 3, 1))
    speed_KW = np.where(chance.random((24, 3)) < 0.2, 0.5, 1.0) * [1.0, 2.0, 0.5]
    true = chance.dirichlet(np.ones(3))
    seconds_KW = (features_KWF @ true / speed_KW + chance.choice([0.0, 0.3])) * chance.lognormal(0, 0.05, (24, 3))
    known_KW = chance.random((24, 3)) < 0.9
    found, fixed = work.fitted(features_KWF, seconds_KW, known_KW, np.eye(3)[0], 0.0)
    return [*found.tolist(), fixed]


@pytest.mark.slow
def test_costs_fitted_to_noisy_times_are_what_they_were():
    require_kept(KEPT, "fits", [fits(seed) for seed in range(12)])


# -- long runs -----------------------------------------------------------------------------------------------------


class Curious(EWMA):
    """Tries other sizes of every other worker, always."""

    def probe(self, sizes, low, high, *, batch_multiple, iteration):
        wanted_W = np.arange(len(self.workers)) % 2 == 0
        return probed(sizes, wanted_W, low, high, amount=0.05, batch_multiple=batch_multiple, iteration=iteration)


def run(number):
    """All that the plans of a run say, ten at a time, as checksums: with silent, full, new and leaving workers."""
    rng = np.random.default_rng(number)
    policy = Policy(
        warmup=number % 4,
        change_cost=(0.0, 0.05, 0.4)[number % 3],
        batch_multiple=(1, 4)[number % 2],
        lower=(1, {"w1": 20})[number // 3 % 2],
        upper=(None, 400)[number // 2 % 2],
        risk=(0.0, 1.0, "auto")[number // 4 % 3],
    )
    predictor = [LastValue(), EWMA(0.3), Curious(0.3)][number % 3]
    balancer = LoadBalancer(
        predictor, workers=["w0", "w1", "w2"], global_batch=768, policy=policy, horizon=1 + number % 2
    )
    usual, told, sums = {}, [], []
    for step in range(80):
        speed_W = np.array([usual.setdefault(name, rng.lognormal(5, 0.4)) for name in balancer.workers])
        speed_W *= rng.lognormal(0, 0.05, len(speed_W)) * np.where(rng.random(len(speed_W)) < 0.05, 0.4, 1.0)
        sizes = balancer.plan.sizes
        seconds_W = np.where(
            (rng.random(len(sizes)) < 0.05) | ((step % 20 > 14) & (np.arange(len(sizes)) == 1)), np.nan, sizes / speed_W
        )
        full_W = rng.random(len(sizes)) < 0.01
        if step % 37 == 20:
            balancer.join(f"n{step}")
        elif step % 41 == 30:
            balancer.leave(balancer.workers[0])
        elif step % 29 == 28:
            balancer.load_state_dict(balancer.state_dict())
        elif step % 7 == 3:
            balancer.observe(Report(sizes, seconds_W))
        else:
            balancer.step(Report(sizes, seconds_W, out_of_memory=full_W if step % 3 else None))
        plan = balancer.plan
        told.append((plan.sizes.tolist(), f"{plan.gain:.6f}", plan.acted, plan.why, plan.iteration, plan.status.name))
        if step % 10 == 9:
            sums.append(f"{zlib.crc32(repr(told[-10:]).encode()):08x}")
    return sums


@pytest.mark.slow
def test_the_plans_of_long_runs_say_what_they_said():
    require_kept(KEPT, "runs", [run(number) for number in range(12)])
