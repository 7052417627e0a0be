import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator import LoadBalancer, Policy
from paceline.coordinator.balanced import reasons as why
from paceline.predictors import EWMA, Curves, LastValue, Report, checks
from paceline.predictors.batch_time.probing import probed
from paceline.solver import split

FLEET = ("gpu0", "gpu1", "gpu2", "gpu3")
FREE = {"warmup": 0, "change_cost": 0.0, "risk": 0.0}
"""A policy without rules: the best split of every forecast is taken."""


class Proportional(LastValue):
    """Its forecasts are for times that are proportional to sizes, and not to be corrected for fixed parts."""

    reads_sizes = True


def balancer(predictor=None, workers=FLEET, global_batch=512, horizon=1, **rules):
    predictor = predictor or Proportional()
    return LoadBalancer(predictor, workers=workers, global_batch=global_batch, policy=Policy(**rules), horizon=horizon)


def report_at(plan, speed, **extra):
    return Report(plan.sizes, plan.sizes / np.array(speed, dtype=float), **extra)


def random_reports(count, workers=4, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        seconds = rng.lognormal(0, 0.3, workers)
        seconds[rng.random(workers) < 0.1] = np.nan
        yield Report(np.full(workers, 64), seconds, out_of_memory=rng.random(workers) < 0.005)


def same(one, other):
    arrays = [(p.sizes, p.seconds, p.weights, p.forecast.speed, p.forecast.spread) for p in (one, other)]
    return all(map(np.array_equal, *arrays)) and (one.gain, one.acted, one.why) == (other.gain, other.acted, other.why)


# -- contract ----------------------------------------------------------------------------------------------------


def test_before_the_first_report_the_split_is_equal():
    plan = balancer(global_batch=513).plan
    assert sorted(plan.sizes) == [128, 128, 128, 129]
    assert not plan.acted


def test_a_plan_that_changes_nothing_gains_nothing():
    planner = balancer(**FREE)
    assert (planner.plan.gain, planner.plan.drift_began) == (0.0, False)
    assert planner.step(report_at(planner.plan, [100, 100, 100, 50])).gain > 0
    assert planner.step(report_at(planner.plan, [100, 100, 100, 50])).gain == 0.0
    planner.load_state_dict(planner.state_dict())
    assert (planner.plan.gain, planner.plan.drift_began) == (0.0, False)
    assert (planner.join("gpu9").gain, planner.plan.drift_began) == (0.0, False)


def test_reports_that_a_worker_missed_are_counted_from_the_start():
    planner = balancer(**FREE)
    seconds = np.array([1.0, 1.0, 1.0, np.nan])
    said = [planner.step(Report(planner.plan.sizes, seconds)).why for _ in range(why.SILENT)]
    assert "missing" not in said[-2]
    assert f"gpu3 was missing from the last {why.SILENT} reports" in said[-1]


@pytest.mark.slow
def test_the_same_reports_give_bit_identical_plans_on_every_rank():
    one, other = (balancer(EWMA(0.5), risk=0.5) for _ in range(2))
    plans = [(one.step(report), other.step(report)) for report in random_reports(200)]
    assert all(same(*pair) for pair in plans)
    assert sum(pair[0].acted for pair in plans) > 10


def test_the_checksum_tells_workers_sizes_and_iteration_apart_and_survives_a_float64():
    planner = balancer()
    report = report_at(planner.plan, [100, 100, 100, 100])
    plans = [
        balancer(workers=list("abcd")).plan,
        balancer(workers=("a", "bc", "d", "e")).plan,
        balancer(global_batch=8).plan,
    ]
    plans += [planner.plan, planner.step(report), planner.step(report)]
    assert len({plan.checksum for plan in plans}) == len(plans)
    assert all(int(float(plan.checksum)) == plan.checksum < 2**52 for plan in plans)
    assert balancer().plan.checksum == plans[3].checksum


class Curious(EWMA):
    """Tries other sizes of two workers, always."""

    def probe(self, sizes, low, high, *, batch_multiple, iteration):
        wanted = np.array([True, False, True, False])
        return probed(sizes, wanted, low, high, amount=0.05, batch_multiple=batch_multiple, iteration=iteration)


def test_a_plan_that_is_sent_says_the_same_and_words_are_made_when_they_are_read():
    used = balancer(EWMA(0.5))
    plans = [used.step(report) for report in random_reports(60)]
    first = plans[20].why
    assert [pickle.loads(pickle.dumps(plan)).why for plan in plans] == [plan.why for plan in plans]
    assert pickle.loads(pickle.dumps(plans[20])).checksum == plans[20].checksum
    assert plans[20].why == first, "what came later does not change it"


@pytest.mark.slow
def test_a_saved_balancer_resumes_exactly():
    reports = list(random_reports(120))
    first = balancer(Curious())
    for report in reports[:61]:
        first.step(report)
    second = balancer(Curious(), workers=["someone", "else"])
    second.load_state_dict({name: value.copy() for name, value in first.state_dict().items()})
    assert np.array_equal(first.plan.sizes, second.plan.sizes)
    assert all(same(first.step(report), second.step(report)) for report in reports[61:])


@pytest.mark.parametrize("steps", range(0, 61, 6))
def test_a_resumed_plan_is_the_saved_one_and_no_new_act(steps):
    first, second = balancer(Curious()), balancer(Curious(), workers=["someone", "else"])
    for report in list(random_reports(60))[:steps]:
        first.step(report)
    second.load_state_dict(first.state_dict())
    assert (second.plan.workers, second.plan.sizes.tolist()) == (first.plan.workers, first.plan.sizes.tolist())
    assert (second.plan.acted, second.plan.gain) == (False, 0.0)
    assert second.plan.why.startswith(f"Resumed after {steps} iterations")


def test_a_state_is_a_snapshot():
    used = balancer()
    state = used.state_dict()
    before = {name: value.tobytes() for name, value in state.items()}
    for report in random_reports(30):
        used.step(report)
    assert before == {name: value.tobytes() for name, value in state.items()}


def test_a_state_of_another_global_batch_is_refused():
    with pytest.raises(ValueError, match="saved with a global batch of 512, but this balancer has 256"):
        balancer(global_batch=256).load_state_dict(balancer().state_dict())


def test_sizes_saved_under_other_bounds_are_put_right_at_once():
    resumed = balancer(batch_multiple=8, upper=136)
    resumed.load_state_dict(warm(balancer(), [100, 100, 100, 110]).state_dict())
    assert resumed.plan.sizes.max() > 136
    plan = resumed.step(report_at(resumed.plan, [100, 100, 100, 110]))
    assert (plan.sizes % 8).tolist() == [0] * 4
    assert plan.sizes.max() <= 136
    assert plan.seconds.max() == 1.28


def test_a_joining_worker_gets_its_share_at_once_and_others_are_remembered():
    used = warm(balancer(), [100, 200, 100, 100])
    plan = used.join("gpu4")
    assert plan.workers == (*FLEET, "gpu4")
    assert plan.sizes.tolist() == split(Curves.from_speed(np.array([1, 2, 1, 1, 1.0])), 512).sizes.tolist()
    assert used.step(report_at(plan, [100, 200, 100, 100, 100])).sizes.tolist() == plan.sizes.tolist()


def test_who_joins_when_the_warm_up_has_just_ended_gets_its_share_at_once():
    used = warm(balancer(warmup=8, horizon=1), [100, 200, 100, 100], iterations=8)
    assert used.join("gpu4").sizes.max() == 172  # equal ones would be 103 at most


def test_the_samples_of_a_leaving_worker_go_to_the_others():
    used = warm(balancer(), [100, 200, 100, 100])
    plan = used.leave("gpu0")
    assert plan.workers == FLEET[1:]
    assert plan.sizes.tolist() == [256, 128, 128]
    assert plan.acted


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda b: b.join("gpu0"), "'gpu0' is already in the fleet"),
        (lambda b: b.leave("gpu9"), "'gpu9' is not in the fleet"),
        (lambda b: b.leave("gpu2"), "upper bounds and memory limits sum to 510, less than the global_batch 512"),
    ],
)
def test_a_refused_change_of_the_fleet_changes_nothing(change, sentence):
    used, untouched = (warm(balancer(upper=170), [100, 120, 100, 100]) for _ in range(2))
    with pytest.raises(ValueError, match=sentence):
        change(used)
    assert used.workers == FLEET
    assert all(same(used.step(report), untouched.step(report)) for report in random_reports(10))


def test_the_last_worker_cannot_leave():
    with pytest.raises(ValueError, match="worker 'gpu0' is the last of the fleet and cannot leave"):
        balancer(workers=["gpu0"]).leave("gpu0")


def test_ranks_may_be_numbers():
    used = balancer(workers=range(4))
    assert used.workers == ("0", "1", "2", "3")
    assert used.leave(3).workers == ("0", "1", "2")


def test_the_horizon_is_asked_of_the_predictor():
    noisy = list(random_reports(20))
    plans = [[used.step(report) for report in noisy][-1] for used in (balancer(horizon=1), balancer(horizon=2))]
    np.testing.assert_allclose(plans[1].forecast.spread, plans[0].forecast.spread * np.sqrt(2))


# -- laws under any report -----------------------------------------------------------------------------------------

nonsense = st.sampled_from([np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300, 1e-300])
measured = st.floats(1e-3, 1e3) | nonsense
row = st.lists(measured, min_size=4, max_size=4)
reports = st.lists(st.tuples(row, row, st.lists(st.booleans(), min_size=4, max_size=4)), min_size=1, max_size=15)
policies = st.fixed_dictionaries(
    {
        "warmup": st.integers(0, 3),
        "change_cost": st.sampled_from([0.0, 0.05, 3.0]),
        "batch_multiple": st.sampled_from([1, 4, 8]),
        "lower": st.sampled_from([0, 1, 30]),
        "upper": st.sampled_from([None, 150, {"gpu1": 64}]),
        "risk": st.sampled_from([0.0, 1.0, "auto"]),
    }
)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(reports, policies)
def test_any_report_leaves_sum_batch_multiple_and_bounds_kept(reports, rules):
    used = balancer(Curious(0.5), **rules)
    lower = np.ceil(rules["lower"] / rules["batch_multiple"]) * rules["batch_multiple"]
    upper = np.array([64 if name == "gpu1" else np.inf for name in FLEET]) if rules["upper"] else np.full(4, np.inf)
    if rules["upper"] == 150:
        upper = np.full(4, 150)
    for samples, seconds, out_of_memory in reports:
        plan = used.step(Report(samples, seconds, out_of_memory=out_of_memory))
        assert plan.sizes.sum() == 512
        assert plan.weights.sum() == pytest.approx(1)
        assert (plan.sizes % rules["batch_multiple"] == 0).all()
        assert (plan.sizes >= lower).all()
        assert (plan.sizes <= upper).all()
        assert np.isfinite(plan.seconds).all()
        assert plan.why.endswith(".")
        assert "nan" not in plan.why
        assert "inf" not in plan.why


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (Report([64] * 3, [0.5] * 3), r"each of the 4 workers, got the shapes \(3,\) and \(3,\); call join or leave"),
        (Report([64] * 4, [0.5] * 5), r"each of the 4 workers, got the shapes \(4,\) and \(5,\)"),
        (Report([64] * 4, [0.5] * 4, out_of_memory=[True]), r"out_of_memory must hold one flag for each of the 4"),
    ],
)
def test_a_report_of_another_fleet_is_refused_and_changes_nothing(report, sentence):
    used, untouched = balancer(), balancer()
    with pytest.raises(ValueError, match=sentence):
        used.step(report)
    assert all(same(used.step(each), untouched.step(each)) for each in random_reports(10))


@pytest.mark.parametrize("where", ["sampled now", "in the report"])
def test_covariates_of_another_shape_are_refused_and_change_nothing(where):
    class Driven(LastValue):
        covariate_names = ("cpu_share", "cpu_busy")

    used, untouched = balancer(Driven()), balancer(Driven())
    report, now = Report([64] * 4, [0.5, 0.5, 0.5, 1.0]), np.ones((4, 1))
    if where == "in the report":
        report, now = Report([64] * 4, [0.5, 0.5, 0.5, 1.0], covariates=now), None
    with pytest.raises(
        ValueError, match=r"covariates.* \(4, 2\), in the order \['cpu_share', 'cpu_busy'\], got \(4, 1\)"
    ):
        used.step(report, now)
    assert all(same(used.step(each), untouched.step(each)) for each in random_reports(10))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"horizon": 0}, "horizon must be at least 1 iteration, got 0"),
        ({"batch_multiple": 3}, "global_batch must be a multiple of batch_multiple 3, got 512"),
        ({"lower": 200}, "the lower bounds sum to 800, more than the global_batch 512"),
        ({"upper": 100}, "the upper bounds and memory limits sum to 400, less than the global_batch 512"),
        ({"workers": ["a", "a"]}, "workers must not repeat a name"),
        ({"workers": []}, "at least one worker"),
    ],
)
def test_what_cannot_be_balanced_is_refused_at_once(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        balancer(**arguments)


# -- memory ------------------------------------------------------------------------------------------------------


def test_a_worker_that_ran_out_of_memory_gets_less_and_stays_below():
    used = balancer(warmup=0)
    flags = np.array([False, True, False, False])
    plan = used.step(report_at(used.plan, [100] * 4, out_of_memory=flags))
    assert plan.sizes.tolist() == [137, 102, 137, 136]  # four fifths of 128
    for _ in range(5):
        plan = used.step(report_at(plan, [100, 900, 100, 100]))
    assert plan.sizes[1] == 102


def test_memory_limits_without_room_for_the_batch_are_ignored_and_said():
    used = balancer(warmup=0)
    plan = used.step(report_at(used.plan, [100] * 4, out_of_memory=[True] * 4))
    assert plan.sizes.tolist() == [128] * 4
    assert plan.why.endswith("; the memory limits leave no room for the global batch and are ignored.")


class KnowsItsMemory(LastValue):
    """Learns from running out of memory that the second worker has room for 120 samples."""

    def predict(self, *, covariates=None, horizon=1):
        plain = super().predict(covariates=covariates, horizon=horizon)
        return replace(plain, batch_time=replace(plain.curves, limit=np.array([np.inf, 120, np.inf, np.inf])))


def test_a_limit_that_the_predictor_learns_counts_instead():
    used = balancer(KnowsItsMemory(), warmup=0)
    flags = np.array([False, True, False, False])
    plan = used.step(report_at(used.plan, [100] * 4, out_of_memory=flags))
    assert plan.sizes[1] == 120


def test_token_weights_are_shares_of_tokens():
    plan = balancer().plan
    np.testing.assert_array_equal(plan.token_weights([10, 30, 0, 40]), [0.125, 0.375, 0.0, 0.5])
    for refused in ([1, 2, 3], [0, 0, 0, 0], [1, 1, 1, np.nan], [1, 1, 1, np.inf], [1, 1, 1, -1]):
        with pytest.raises(ValueError, match="tokens must"):
            plan.token_weights(refused)


# -- stable, and quick all the same --------------------------------------------------------------------------------


def replayed(speed_TW, predictor, **rules):
    """How often sizes changed, and the makespan of every iteration over the oracle's."""
    used = balancer(predictor, workers=range(speed_TW.shape[1]), global_batch=960, **rules)
    ratios = []
    for speed_W in speed_TW:
        best = split(Curves.from_speed(speed_W), 960, lower=1).makespan
        ratios.append((used.plan.sizes / speed_W).max() / best)
        used.step(report_at(used.plan, speed_W))
    return np.array(ratios)


def changes(speed_TW, predictor, **rules):
    used = balancer(predictor, workers=range(speed_TW.shape[1]), global_batch=960, **rules)
    return sum(used.step(report_at(used.plan, speed_W)).acted for speed_W in speed_TW)


def with_stragglers(iterations=300, seed=1):
    """Speeds with noise of 3 %, in which one worker in thirty is slow for one iteration."""
    rng = np.random.default_rng(seed)
    slow_TW = rng.random((iterations, 4)) < 1 / 30
    return np.array([100.0, 200, 50, 100]) * np.exp(rng.normal(0, 0.03, slow_TW.shape)) * np.where(slow_TW, 0.4, 1)


@pytest.mark.slow
@pytest.mark.parametrize("speed_TW", [with_stragglers(), checks.example_trace(300).speed], ids=["random", "switching"])
@pytest.mark.parametrize(("predictor", "share"), [(EWMA(0.5), 0.45), (LastValue(), 0.65)], ids=["ewma", "last"])
def test_random_stragglers_are_not_chased(speed_TW, predictor, share):
    without = changes(speed_TW, predictor, **FREE)
    assert without > 0.95 * len(speed_TW)
    assert changes(speed_TW, predictor) < share * without
    assert replayed(speed_TW, predictor).mean() < replayed(speed_TW, predictor, **FREE).mean() + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("predictor", [EWMA(0.5), LastValue()], ids=["ewma", "last"])
@pytest.mark.parametrize("factor", [0.5, 0.7, 1.5, 2.0])
@pytest.mark.parametrize("worker", range(4))
@pytest.mark.parametrize("recovers", [False, True], ids=["once", "and back"])
def test_a_lasting_change_is_followed_within_five_iterations(predictor, factor, worker, recovers):
    speed_TW = np.tile([100.0, 200, 50, 100], (60, 1))
    speed_TW[20 : 40 if recovers else 60, worker] *= factor
    ratios = replayed(speed_TW, predictor)
    assert ratios[20] > 1.05
    assert (ratios[25:40] <= 1.05).all()
    assert (ratios[45:] < 1.05).all()


# -- reasons -----------------------------------------------------------------------------------------------------


def warm(used, speed, iterations=8):
    for _ in range(iterations):
        used.step(report_at(used.plan, speed))
    return used


EQUAL = [1280] * 4
STRAGGLER = [1280, 1280, 1280, 640]


def why_after(*speeds, predictor=None, horizon=1, out_of_memory=None, **rules):
    used = balancer(predictor, horizon=horizon, **{**FREE, **rules})
    for speed in speeds:
        used.step(report_at(used.plan, speed, out_of_memory=out_of_memory))
    return used.plan.why


REASONS = {
    "nothing is known": (
        lambda: balancer().plan.why,
        "Equal batches: no iteration has been reported yet.",
    ),
    "warm-up": (
        lambda: why_after(STRAGGLER, STRAGGLER, warmup=5),
        "Equal batches: 2 of 5 warm-up iterations done.",
    ),
    "a straggler": (
        lambda: why_after(STRAGGLER),
        "Moved 55 samples from gpu3 (50 % slower than the median) to gpu0, gpu1 and gpu2: "
        "the next iteration is expected to take 115 ms instead of 200 ms.",
    ),
    "a plan one iteration late, with caution": (
        lambda: why_after(EQUAL, STRAGGLER, horizon=2, risk=1.0, predictor=Proportional()),
        "Moved 95 samples from gpu3 (50 % slower than the median) to gpu0, gpu1 and gpu2: the iteration after the next "
        "is planned, with caution, at 125 ms instead of 473 ms.",
    ),
    "nothing to gain": (
        lambda: why_after(STRAGGLER, STRAGGLER),
        "Kept the sizes: no split is expected to be faster.",
    ),
    "less than a change costs": (
        lambda: why_after([1280, 1280, 1280, 1264], [1280, 1280, 1280, 1264], change_cost=0.03),
        "Kept the sizes: the best split would gain at most 0.9 %; since they were chosen that sums to 1.9 % of an "
        "iteration, and a change costs 3 %.",
    ),
    "out of memory": (
        lambda: why_after(EQUAL, out_of_memory=[False, True, False, False]),
        "Moved 26 samples from gpu1 to gpu0, gpu2 and gpu3: gpu1 has room for only 102 samples.",
    ),
    "no memory anywhere": (
        lambda: why_after(EQUAL, out_of_memory=[True] * 4),
        "Kept the sizes: no split is expected to be faster; "
        "the memory limits leave no room for the global batch and are ignored.",
    ),
    "probing": (
        lambda: why_after(EQUAL, predictor=Curious(), change_cost=0.02),
        "Moved 6 samples for a while, to tell fixed time from time per sample; otherwise kept the sizes: "
        "no split is expected to be faster.",
    ),
    "a worker joins": (
        lambda: balancer().join("gpu4").why,
        "gpu4 joined: 512 samples split again over 5 workers, 102 to 103 each.",
    ),
    "a worker leaves": (
        lambda: balancer().leave("gpu1").why,
        "gpu1 left: 512 samples split again over 3 workers, 170 to 171 each.",
    ),
}


@pytest.mark.parametrize("situation", REASONS)
def test_every_plan_says_why(situation):
    ask, sentence = REASONS[situation]
    assert ask() == sentence
