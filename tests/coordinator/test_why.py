"""What a plan says of itself is true: checked against the plans before and after, over many varied runs."""

import re

import numpy as np
import pytest

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, RLS, BatchTime, LastValue, Report


def varied(seed):
    """A load balancer with a random policy."""
    rng = np.random.default_rng(seed)
    workers = [f"w{number}" for number in range(rng.integers(2, 7))]
    policy = Policy(
        warmup=int(rng.integers(0, 4)),
        change_cost=float(rng.choice([0.0, 0.05, 0.5])),
        batch_multiple=int(rng.choice([1, 4])),
        risk=(0.0, 0.5, "auto")[rng.integers(3)],
    )
    predictor = [LastValue(), EWMA(0.3), BatchTime()][rng.integers(3)]
    return LoadBalancer(predictor, workers=workers, global_batch=64 * 12, policy=policy), rng


def plans(balancer, rng, steps=400):
    """Yield the plans before and after each event of a job whose speeds, memory and fleet change."""
    usual = {worker: rng.lognormal(5, 0.4) for worker in balancer.workers}
    for step in range(steps):
        before = balancer.plan
        if step % 50 == 30:
            usual[rng.choice(balancer.workers)] *= rng.choice([0.4, 2.0])
        if step % 97 == 60:
            usual[f"new{step}"] = 150.0
            balancer.join(f"new{step}")
        elif step % 97 == 90 and len(balancer.workers) > 2:
            balancer.leave(balancer.workers[0])
        else:
            speed = np.array([usual[worker] for worker in balancer.workers]) * rng.lognormal(0, 0.05, len(before.sizes))
            seconds = np.where(rng.random(len(speed)) < 0.03, np.nan, before.sizes / speed)
            balancer.step(Report(before.sizes, seconds, out_of_memory=rng.random(len(speed)) < 0.002))
        yield before, balancer.plan


def untrue(before, plan):
    """Return what is not true of a plan's sentence; empty if all is."""
    same_fleet = before.workers == plan.workers
    changed = not (same_fleet and np.array_equal(before.sizes, plan.sizes))
    if plan.acted != changed:
        return "acted"
    if " joined: " in plan.why or " left: " in plan.why:
        return "" if not same_fleet else "the fleet"
    change = plan.sizes - before.sizes
    moved = re.match(r"Moved (\d+) samples? from (\S+)(?: \((.+?)% slower than (the median|\S+?)\))?", plan.why)
    if moved is None:
        return "a move without a sentence" if change.any() and not plan.why.startswith("Equal batches") else ""
    samples, giver, slower, than = moved.groups()
    place = plan.workers.index(giver.rstrip(","))
    if int(samples) != np.abs(change).sum() // 2 or change[place] >= 0:
        return "who moved how much"
    if slower is not None:
        speed = plan.forecast.speed
        other = np.median(speed) if than == "the median" else speed[plan.workers.index(than)]
        if abs(100 * (1 - speed[place] / other) - float(slower)) > 0.6 or float(slower) < 0.9:
            return "how much slower"
    recovered = re.search(r"to (\S+) \((.+?)% faster than before\)", plan.why)
    if recovered is not None and change[plan.workers.index(recovered.group(1))] <= 0:
        return "who recovered"
    return "the gain" if "expected to take" in plan.why and plan.gain <= 0 else ""


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.slow
def test_every_sentence_is_true(seed):
    wrong = [(reason, plan.why) for before, plan in plans(*varied(seed)) if (reason := untrue(before, plan))]
    assert not wrong


@pytest.mark.parametrize(
    ("report", "covariates", "sentence"),
    [
        (Report([64, 64], [0.1, 0.1]), np.ones((3, 1)), r"\(2, 1\), in the order \['load'\], got \(3, 1\)"),
        (Report([64, 64], [0.1, 0.1]), "warm", "."),
        (Report([64, 64], [0.1, 0.1], covariates=np.ones((2, 5))), np.ones((2, 1)), r"the report's covariates .* got"),
        (
            Report([64] * 3, [0.1] * 3),
            np.ones((2, 1)),
            r"for each of the 2 workers, got the shape \(3,\); call join or leave",
        ),
        (Report([64, 64], [0.1, 0.1], comm_seconds=[0.1]), np.ones((2, 1)), "comm_seconds must hold one value"),
        (Report([64, 64], [0.1, 0.1], out_of_memory=[True]), np.ones((2, 1)), "out_of_memory must hold one value"),
        (Report(["a", "b"], [0.1, 0.1]), np.ones((2, 1)), "."),
    ],
    ids=["covariates now", "no numbers", "covariates then", "fleet", "communication", "memory", "samples"],
)
def test_refused_step_changes_nothing(report, covariates, sentence):
    balancer = LoadBalancer(RLS(covariates=("load",)), workers=["a", "b"], global_batch=128)
    balancer.step(Report([64, 64], [0.1, 0.2]), np.ones((2, 1)))
    before, plan = balancer.state_dict(), balancer.plan
    with pytest.raises((ValueError, TypeError), match=sentence):
        balancer.step(report, covariates)
    after = balancer.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name], equal_nan=before[name].dtype.kind == "f") for name in before)
    assert balancer.plan is plan


def test_refused_state_changes_nothing():
    balancer = LoadBalancer(EWMA(0.5), workers=["a", "b"], global_batch=128)
    balancer.step(Report([64, 64], [0.1, 0.2]))
    before = balancer.state_dict()
    broken = {**before, "predictor/rows/level": np.zeros(7)}
    broken["workers"] = np.array(["c", "d"])
    with pytest.raises(ValueError, match=r"."):
        balancer.load_state_dict(broken)
    after = balancer.state_dict()
    assert all(np.array_equal(before[name], after[name], equal_nan=before[name].dtype.kind == "f") for name in before)


def test_worker_held_back_by_memory_is_named():
    balancer = LoadBalancer(LastValue(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))
    report = Report(samples=[60, 60], seconds=[0.3, 0.6], out_of_memory=[True, False])
    reasons = [balancer.step(report).why]
    for _ in range(3):
        sizes = balancer.plan.sizes
        reasons.append(balancer.step(Report(samples=sizes, seconds=sizes * [0.005, 0.01])).why)
    assert reasons[0].endswith("a has room for only 48 samples.")
    assert all(reason.endswith("; memory keeps a from taking more, so that it ends early.") for reason in reasons[1:])


def test_memory_is_not_blamed_without_a_cost():
    balancer = LoadBalancer(LastValue(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))
    plan = balancer.step(Report(samples=[60, 60], seconds=[0.9, 0.6], out_of_memory=[True, False]))
    for _ in range(3):
        plan = balancer.step(Report(samples=plan.sizes, seconds=plan.sizes * [0.015, 0.01]))
        assert "memory" not in plan.why


def test_recovered_worker_is_named():
    """Three workers; b was slow, and is as fast as the others again, of which c has always been a little slower."""
    balancer = LoadBalancer(LastValue(), workers=["a", "b", "c"], global_batch=120, policy=Policy(warmup=2))
    for b in (10.0, 10.0, 10.0, 100.0):
        sizes = balancer.plan.sizes
        plan = balancer.step(Report(samples=sizes, seconds=sizes / [100.0, b, 54.0]))
    assert re.match(r"Moved \d+ samples from a and c to b \(90\d% faster than before\)", plan.why), plan.why


def test_silent_worker_is_named_until_it_reports():
    balancer = LoadBalancer(EWMA(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))
    reasons = []
    for step in range(12):
        sizes = balancer.plan.sizes
        seconds = sizes * [0.01, np.nan if 3 <= step < 9 else 0.01]
        reasons.append(balancer.step(Report(samples=sizes, seconds=seconds)).why)
    said = ["b was missing from" in reason for reason in reasons]
    assert said == [False] * 5 + [True] * 4 + [False] * 3
    assert "; b was missing from the last 6 reports, so its size follows its own last one." in reasons[8]


def test_newcomer_is_planned_at_the_median():
    balancer = LoadBalancer(LastValue(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=1))
    for _ in range(3):
        sizes = balancer.plan.sizes
        balancer.step(Report(samples=sizes, seconds=sizes / [100.0, 50.0]))
    plan = balancer.join("c")
    assert plan.why == (
        "c joined: 120 samples split again over 3 workers, 27 to 54 each; c has not reported yet, so it is planned at "
        "the median speed of the others."
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_plan_of_a_step_scales_micro_batches(steps):
    balancer = LoadBalancer(LastValue(), workers=["a", "b", "c"], global_batch=120, policy=Policy(warmup=1, risk=0.0))
    while not balancer.plan.acted:
        sizes = balancer.plan.sizes
        plan = balancer.step(Report(samples=sizes, seconds=sizes * [0.001, 0.001, 0.002]))
    step, moved = plan.as_step_plan(steps), int(np.abs(plan.sizes - 40).sum()) // 2
    assert (step.sizes.tolist(), step.makespan) == ((steps * plan.sizes).tolist(), steps * plan.makespan)
    assert f"Moved {steps * moved} samples" in step.why
