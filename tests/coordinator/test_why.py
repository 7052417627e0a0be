"""What a plan says of itself is true: checked against the plans before and after, over many varied runs."""

import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from paceline._wording import SHOWN, duration, percent
from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced import reasons as why
from paceline.predictors import EWMA, BatchTime, LastValue, Report
from paceline.predictors.batch_time.probing import probed

STEPS = 400
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
MASKS = st.lists(st.booleans(), min_size=1, max_size=9).map(np.array)


class Curious(EWMA):
    """Tries other sizes of every other worker, always."""

    def probe(self, sizes, low, high, *, batch_multiple, iteration):
        wanted_W = np.arange(len(self.workers)) % 2 == 0
        return probed(sizes, wanted_W, low, high, amount=0.05, batch_multiple=batch_multiple, iteration=iteration)


def varied(seed):
    """A load balancer with rules drawn at random."""
    rng = np.random.default_rng(seed)
    workers = [f"w{number}" for number in range(rng.integers(2, 7))]
    policy = Policy(
        warmup=int(rng.integers(0, 4)),
        change_cost=float(rng.choice([0.0, 0.05, 0.5])),
        batch_multiple=int(rng.choice([1, 4])),
        risk=(0.0, 0.5, "auto")[rng.integers(3)],
    )
    predictor = [LastValue(), EWMA(0.3), BatchTime(), Curious(0.3)][rng.integers(4)]
    return LoadBalancer(predictor, workers=workers, global_batch=64 * 12, policy=policy), rng


def moments(balancer, rng):
    """Yield, after each event, the plan before, the sizes without probing before, and the plan."""
    usual = {worker: rng.lognormal(5, 0.4) for worker in balancer.workers}
    for step in range(STEPS):
        before, base = balancer.plan, balancer._sizes.copy()
        if step % 50 == 30:
            usual[rng.choice(balancer.workers)] *= rng.choice([0.4, 2.0])
        if step % 97 == 60:
            name = f"new{step}"
            usual[name] = 150.0
            balancer.join(name)
        elif step % 97 == 90 and len(balancer.workers) > 2:
            balancer.leave(balancer.workers[0])
        else:
            speed = np.array([usual[worker] for worker in balancer.workers]) * rng.lognormal(0, 0.05, len(before.sizes))
            seconds = np.where(rng.random(len(speed)) < 0.03, np.nan, before.sizes / speed)
            balancer.step(Report(before.sizes, seconds, out_of_memory=rng.random(len(speed)) < 0.002))
        yield before, base, balancer.plan


def untrue(before, base, plan, balancer):
    """Return what is not true of a plan's sentence; nothing if all is."""
    same_fleet = before.workers == plan.workers
    changed = not (same_fleet and np.array_equal(before.sizes, plan.sizes))
    if plan.acted != changed:
        return "acted"
    if " joined: " in plan.why or " left: " in plan.why:
        return "" if not same_fleet else "the fleet"
    if plan.why.startswith("Kept the sizes") and changed:
        return "kept"
    if plan.why.startswith("Equal batches") and np.ptp(plan.sizes) > balancer.policy.batch_multiple * 2 + 1:
        bounded = np.isfinite(balancer._limits.memory).any() or np.isfinite(plan.forecast.curves.limit).any()
        return "" if bounded else "equal"
    return untrue_move(base, balancer, plan) or untrue_probing(before, base, balancer, plan)


def untrue_move(base, balancer, plan):
    moved = re.match(r"Moved (\d+) samples? from (\S+)(?: \((.+?) % slower than (the median|\S+?)\))?", plan.why)
    change = balancer._sizes - base
    if moved is None or "for a while" in plan.why.split(";")[0]:
        return "" if not change.any() else "a move that is not said"
    samples, giver, slower, than = moved.groups()
    place = plan.workers.index(giver.rstrip(","))
    if int(samples) != np.abs(change).sum() // 2 or change[place] >= 0:
        return "who moved how much"
    if slower is not None:
        speed = plan.forecast.speed
        other = np.median(speed) if than == "the median" else speed[plan.workers.index(than)]
        if abs(100 * (1 - speed[place] / other) - float(slower)) > 0.6 or float(slower) < 0.9:
            return "how much slower"
    recovered = re.search(r"to (\S+) \((.+?) % faster than before\)", plan.why)
    if recovered is not None and change[plan.workers.index(recovered.group(1))] <= 0:
        return "who recovered"
    if "expected to take" in plan.why and plan.gain <= 0:
        return "the gain"
    return ""


def untrue_probing(before, base, balancer, plan):
    now, then = np.abs(plan.sizes - balancer._sizes).sum() // 2, np.abs(before.sizes - base).sum() // 2
    said_now = re.search(r"oved (\d+) samples? for a while", plan.why)
    said_then = re.search(r"ook back (\d+) samples?", plan.why)
    if now != (int(said_now.group(1)) if said_now else 0):
        return "what is tried"
    if then != (int(said_then.group(1)) if said_then else 0):
        return "what is taken back"
    return ""


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.slow
def test_every_sentence_is_true(seed):
    balancer, rng = varied(seed)
    wrong = []
    for before, base, plan in moments(balancer, rng):
        if reason := untrue(before, base, plan, balancer):
            wrong.append((reason, before.sizes.tolist(), plan.sizes.tolist(), plan.why))
    assert not wrong


@pytest.mark.parametrize(
    ("report", "covariates"),
    [
        (Report([64, 64], [0.1, 0.1]), np.ones((3, 1))),
        (Report([64, 64], [0.1, 0.1]), "warm"),
        (Report([64, 64], [0.1, 0.1], covariates=np.ones((2, 5))), np.ones((2, 1))),
        (Report([64, 64, 64], [0.1, 0.1, 0.1]), np.ones((2, 1))),
        (Report([64, 64], [0.1, 0.1], comm_seconds=[0.1]), np.ones((2, 1))),
        (Report([64, 64], [0.1, 0.1], out_of_memory=[True]), np.ones((2, 1))),
        (Report(["a", "b"], [0.1, 0.1]), np.ones((2, 1))),
    ],
    ids=["covariates now", "no numbers", "covariates then", "fleet", "communication", "memory", "samples"],
)
def test_a_step_that_is_refused_changes_nothing(report, covariates):
    from paceline.predictors import RLS

    balancer = LoadBalancer(RLS(covariates=("load",)), workers=["a", "b"], global_batch=128)
    balancer.step(Report([64, 64], [0.1, 0.2]), np.ones((2, 1)))
    before, plan = balancer.state_dict(), balancer.plan
    with pytest.raises((ValueError, TypeError)):
        balancer.step(report, covariates)
    after = balancer.state_dict()
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name], equal_nan=before[name].dtype.kind == "f") for name in before)
    assert balancer.plan is plan


def test_a_state_that_is_refused_changes_nothing():
    balancer = LoadBalancer(EWMA(0.5), workers=["a", "b"], global_batch=128)
    balancer.step(Report([64, 64], [0.1, 0.2]))
    before = balancer.state_dict()
    broken = {**before, "predictor/rows/level": np.zeros(7)}
    broken["workers"] = np.array(["c", "d"])
    with pytest.raises(ValueError, match=r"."):
        balancer.load_state_dict(broken)
    after = balancer.state_dict()
    assert all(np.array_equal(before[name], after[name], equal_nan=before[name].dtype.kind == "f") for name in before)


def test_a_worker_that_its_memory_holds_back_is_named_as_long_as_it_is():
    balancer = LoadBalancer(LastValue(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))
    report = Report(samples=[60, 60], seconds=[0.3, 0.6], out_of_memory=[True, False])
    reasons = [balancer.step(report).why]
    for _ in range(3):
        sizes = balancer.plan.sizes
        reasons.append(balancer.step(Report(samples=sizes, seconds=sizes * [0.005, 0.01])).why)
    assert reasons[0].endswith("a has room for only 48 samples.")
    assert all(reason.endswith("; memory keeps a from taking more, so that it ends early.") for reason in reasons[1:])


def test_memory_is_not_blamed_where_it_costs_nothing():
    balancer = LoadBalancer(LastValue(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))
    plan = balancer.step(Report(samples=[60, 60], seconds=[0.9, 0.6], out_of_memory=[True, False]))
    for _ in range(3):
        plan = balancer.step(Report(samples=plan.sizes, seconds=plan.sizes * [0.015, 0.01]))
        assert "memory" not in plan.why


def test_a_worker_that_recovers_is_named_and_not_the_one_that_gives():
    """Three workers; b was slow, and is as fast as the others again, of which c has always been a little slower."""
    balancer = LoadBalancer(LastValue(), workers=["a", "b", "c"], global_batch=120, policy=Policy(warmup=2))
    for b in (10.0, 10.0, 10.0, 100.0):
        sizes = balancer.plan.sizes
        plan = balancer.step(Report(samples=sizes, seconds=sizes / [100.0, b, 54.0]))
    assert re.match(r"Moved \d+ samples from a and c to b \(90\d % faster than before\)", plan.why), plan.why


def test_a_silent_worker_is_named_until_it_reports_again():
    balancer = LoadBalancer(EWMA(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))
    reasons = []
    for step in range(12):
        sizes = balancer.plan.sizes
        seconds = sizes * [0.01, np.nan if 3 <= step < 9 else 0.01]
        reasons.append(balancer.step(Report(samples=sizes, seconds=seconds)).why)
    said = ["b was missing from" in reason for reason in reasons]
    assert said == [False] * 5 + [True] * 4 + [False] * 3
    assert "; b was missing from the last 6 reports, so its size follows its own last one." in reasons[8]


def test_who_joins_a_running_job_is_said_to_be_planned_at_a_guess():
    balancer = LoadBalancer(LastValue(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=1))
    for _ in range(3):
        sizes = balancer.plan.sizes
        balancer.step(Report(samples=sizes, seconds=sizes / [100.0, 50.0]))
    plan = balancer.join("c")
    assert plan.why == (
        "c joined: 120 samples split again over 3 workers, 27 to 54 each; c has not reported yet, so it is planned at "
        "the median speed of the others."
    )


def test_a_silent_worker_is_remembered_across_a_resume():
    def made():
        return LoadBalancer(EWMA(), workers=["a", "b"], global_batch=120, policy=Policy(warmup=0))

    first, resumed = made(), made()
    for _ in range(5):
        first.step(Report(samples=[60, 60], seconds=[0.6, np.nan]))
    resumed.load_state_dict(first.state_dict())
    report = Report(samples=first.plan.sizes, seconds=[0.6, np.nan])
    assert first.step(report).why == resumed.step(report).why


# -- the words ---------------------------------------------------------------------------------------------------


@given(st.floats(1e-6, 1e6))
def test_a_duration_reads_back_as_what_it_was_to_three_digits(seconds):
    number, unit = duration(seconds).split()
    assert float(number) * UNITS[unit] == pytest.approx(seconds, rel=0.0051)
    assert "e" not in number
    assert 1 <= float(number) < 1000 or (seconds > 999 and number.isdigit())


@given(st.floats(0, 3))
def test_a_percentage_reads_back_as_what_it_was_to_a_tenth_or_from_ten_on_to_one_percent(share):
    number = percent(share).removesuffix(" %")
    assert float(number) == pytest.approx(100 * share, abs=0.051 if 100 * share < 9.9 else 0.51)
    assert len(number) <= 3, "no more digits than mean something"


@pytest.mark.parametrize(
    ("horizon", "which"),
    [(1, "the next iteration"), (2, "the iteration after the next"), (3, "the iteration after the next 2")],
)
def test_a_plan_says_which_iteration_it_is_for(horizon, which):
    said = why.expected(0.041, 0.055, horizon, hedged=False)
    assert said == f": {which} is expected to take 41 ms instead of 55 ms"


@given(st.floats(0.001, 1), st.floats(0.001, 1), st.floats(0.001, 1))
def test_only_what_is_more_than_the_least_share_has_left_what_the_model_knows(changes, covariates, least):
    said = why.left_fitted(changes, covariates, least)
    assert ("speeds have left" in said) == (changes > least)
    assert ("latest covariates" in said) == (covariates > least)
    assert why.left_fitted(least, least, least) == ""


@given(MASKS)
def test_whoever_is_meant_is_named_or_counted_and_nobody_else(mask):
    """Three are named, the first of them; who is not named is counted among the others."""
    workers, count = [f"w{i}" for i in range(len(mask))], int(mask.sum())
    assume(0 < count < len(mask))
    meant = [workers[i] for i in np.flatnonzero(mask)]
    sentences = [
        why.held_back(workers, mask),
        why.silent(workers, np.where(mask, why.SILENT, why.SILENT - 1)),
        why.broken_bounds(workers, np.full(len(mask), 10), np.where(mask, 9.0, 10.0)),
        why.split_again("a left", workers, np.full(len(mask), 8), np.where(mask, np.nan, 1.0)),
    ]
    for sentence in sentences:
        assert re.findall(r"w\d", sentence) == meant[:SHOWN]
        others = re.search(r"(\d) other(s?)", sentence)
        assert (int(others[1]) if others else 0) == max(count - SHOWN, 0)
        assert others is None or (others[1] != "1") == bool(others[2])


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=2, max_size=9), st.integers(0, 99))
def test_who_gives_and_takes_most_is_named_first_and_the_samples_are_those_that_moved(pairs, seed):
    before, after = np.array(pairs).T
    after[0] += before.sum() - after.sum()
    change, workers = after - before, [f"w{i}" for i in range(len(before))]
    assume(change.any())
    sentence = why.moved(workers, before, after, np.random.default_rng(seed).uniform(50, 100, len(before)))
    samples, givers, takers = re.match(r"Moved (\d+) samples? from (.*) to (.*)", sentence).groups()
    assert int(samples) == change[change > 0].sum() == why.moved_samples(before, after)
    for part, sign in ((givers, -1), (takers, 1)):
        part = re.sub(r" \(.*?\)", "", part)
        order = sorted(range(len(change)), key=lambda i: -sign * change[i])
        meant = [f"w{i}" for i in order if sign * change[i] > 0]
        assert re.findall(r"w\d", part) == meant[:SHOWN]
        others = re.search(r"(\d) other", part)
        assert (int(others[1]) if others else 0) == max(len(meant) - SHOWN, 0)
