import copy
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.coordinator import LoadBalancer, Policy
from paceline.predictors import EWMA, Auto, BatchTime, Curves, LastValue, Report
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


def warm(used, speed, iterations=8):
    for _ in range(iterations):
        used.step(report_at(used.plan, speed))
    return used


def random_reports(count, workers=4, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        seconds = rng.lognormal(0, 0.3, workers)
        seconds[rng.random(workers) < 0.1] = np.nan
        yield Report(np.full(workers, 64), seconds, out_of_memory=rng.random(workers) < 0.005)


def same(one, other):
    arrays = [(p.sizes, p.seconds, p.weights, p.forecast.speed, p.forecast.spread) for p in (one, other)]
    return all(map(np.array_equal, *arrays)) and (one.gain, one.acted, one.why) == (other.gain, other.acted, other.why)


def test_first_plan_is_equal():
    plan = balancer(global_batch=513).plan
    assert sorted(plan.sizes) == [128, 128, 128, 129]
    assert not plan.acted


@pytest.mark.slow
def test_same_reports_give_identical_plans():
    one, other = (balancer(EWMA(0.5), risk=0.5) for _ in range(2))
    plans = [(one.step(report), other.step(report)) for report in random_reports(200)]
    assert all(same(*pair) for pair in plans)
    assert sum(pair[0].acted for pair in plans) > 10


def test_checksum_differs_between_plans():
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


def test_plan_survives_pickling():
    used = balancer(EWMA(0.5))
    plans = [used.step(report) for report in random_reports(60)]
    first = plans[20].why
    assert [pickle.loads(pickle.dumps(plan)).why for plan in plans] == [plan.why for plan in plans]
    assert pickle.loads(pickle.dumps(plans[20])).checksum == plans[20].checksum
    assert plans[20].why == first, "what came later does not change it"


@pytest.mark.slow
def test_resumes_exactly():
    reports = list(random_reports(120))
    first = balancer(EWMA())
    for report in reports[:61]:
        first.step(report)
    second = balancer(EWMA(), workers=["someone", "else"])
    second.load_state_dict({name: value.copy() for name, value in first.state_dict().items()})
    assert np.array_equal(first.plan.sizes, second.plan.sizes)
    assert all(same(first.step(report), second.step(report)) for report in reports[61:])


def test_state_of_another_batch_is_refused():
    with pytest.raises(ValueError, match="saved with a global batch of 512, but this balancer has 256"):
        balancer(global_batch=256).load_state_dict(balancer().state_dict())


def test_resumed_sizes_follow_new_bounds():
    resumed = balancer(batch_multiple=8, upper=136)
    resumed.load_state_dict(warm(balancer(), [100, 100, 100, 110]).state_dict())
    assert resumed.plan.sizes.max() > 136
    plan = resumed.step(report_at(resumed.plan, [100, 100, 100, 110]))
    assert (plan.sizes % 8).tolist() == [0] * 4
    assert plan.sizes.max() <= 136
    assert plan.seconds.max() == 1.28


def test_joining_worker_gets_its_share_at_once():
    used = warm(balancer(), [100, 200, 100, 100])
    plan = used.join("gpu4")
    assert plan.workers == (*FLEET, "gpu4")
    assert plan.sizes.tolist() == split(Curves.from_speed(np.array([1, 2, 1, 1, 1.0])), 512).sizes.tolist()
    assert used.step(report_at(plan, [100, 200, 100, 100, 100])).sizes.tolist() == plan.sizes.tolist()


def test_samples_of_a_leaving_worker_go_to_others():
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
def test_refused_join_or_leave_changes_nothing(change, sentence):
    used, untouched = (warm(balancer(upper=170), [100, 120, 100, 100]) for _ in range(2))
    with pytest.raises(ValueError, match=sentence):
        change(used)
    assert used.workers == FLEET
    assert all(same(used.step(report), untouched.step(report)) for report in random_reports(10))


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
def test_any_report_keeps_sum_multiple_and_bounds(reports, rules):
    used, multiple = balancer(EWMA(0.5), **rules), rules["batch_multiple"]
    lower = np.ceil(rules["lower"] / multiple) * multiple
    upper = {None: [np.inf] * 4, 150: [150] * 4}.get(rules["upper"] if not isinstance(rules["upper"], dict) else 0)
    for samples, seconds, out_of_memory in reports:
        plan = used.step(Report(samples, seconds, out_of_memory=out_of_memory))
        assert plan.sizes.sum() == 512
        assert plan.weights.sum() == pytest.approx(1)
        assert ((plan.sizes % multiple == 0) & (plan.sizes >= lower)).all()
        assert (plan.sizes <= (upper or [np.inf, 64, np.inf, np.inf])).all()
        assert np.isfinite(plan.seconds).all()
        assert not re.search("nan|inf", plan.why)


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
def test_impossible_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        balancer(**arguments)


# -- memory ------------------------------------------------------------------------------------------------------


def test_out_of_memory_caps_a_worker():
    used = balancer(warmup=0)
    flags = np.array([False, True, False, False])
    plan = used.step(report_at(used.plan, [100] * 4, out_of_memory=flags))
    assert plan.sizes.tolist() == [137, 102, 137, 136]  # four fifths of 128
    for _ in range(5):
        plan = used.step(report_at(plan, [100, 900, 100, 100]))
    assert plan.sizes[1] == 102


def test_impossible_memory_limits_are_ignored():
    used = balancer(warmup=0)
    plan = used.step(report_at(used.plan, [100] * 4, out_of_memory=[True] * 4))
    assert plan.sizes.tolist() == [128] * 4
    assert plan.why.endswith("; the memory limits leave no room for the global batch and are ignored.")


class KnowsItsMemory(LastValue):
    """Learns from running out of memory that the second worker has room for 120 samples."""

    def predict(self, *, covariates=None, horizon=1):
        plain = super().predict(covariates=covariates, horizon=horizon)
        return replace(plain, batch_time=replace(plain.curves, limit=np.array([np.inf, 120, np.inf, np.inf])))


def test_learned_memory_limit_counts():
    used = balancer(KnowsItsMemory(), warmup=0)
    flags = np.array([False, True, False, False])
    plan = used.step(report_at(used.plan, [100] * 4, out_of_memory=flags))
    assert plan.sizes[1] == 120


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
    """Speeds with noise of 3%, in which one worker in thirty is slow for one iteration."""
    rng = np.random.default_rng(seed)
    slow_TW = rng.random((iterations, 4)) < 1 / 30
    return np.array([100.0, 200, 50, 100]) * np.exp(rng.normal(0, 0.03, slow_TW.shape)) * np.where(slow_TW, 0.4, 1)


def switching(iterations=300):
    """Speeds with noise of 3% that change between two levels every twenty iterations or so."""
    rng = np.random.default_rng(0)
    busy_TW = np.cumsum(rng.random((iterations, 3)) < 0.05, axis=0) % 2
    return np.array([100.0, 200, 50]) * np.exp(rng.normal(0, 0.03, busy_TW.shape) - 0.5 * busy_TW)


@pytest.mark.slow
@pytest.mark.parametrize("speed_TW", [with_stragglers(), switching()], ids=["random", "switching"])
@pytest.mark.parametrize(("predictor", "share"), [(EWMA(0.5), 0.45), (LastValue(), 0.65)], ids=["ewma", "last"])
def test_random_stragglers_are_not_followed(speed_TW, predictor, share):
    without = changes(speed_TW, predictor, **FREE)
    assert without > 0.95 * len(speed_TW)
    assert changes(speed_TW, predictor) < share * without
    assert replayed(speed_TW, predictor).mean() < replayed(speed_TW, predictor, **FREE).mean() + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("predictor", [EWMA(0.5), LastValue()], ids=["ewma", "last"])
@pytest.mark.parametrize("factor", [0.5, 0.7, 1.5, 2.0])
@pytest.mark.parametrize("worker", range(4))
@pytest.mark.parametrize("recovers", [False, True], ids=["once", "and back"])
def test_lasting_change_is_followed_in_5_iterations(predictor, factor, worker, recovers):
    speed_TW = np.tile([100.0, 200, 50, 100], (60, 1))
    speed_TW[20 : 40 if recovers else 60, worker] *= factor
    ratios = replayed(speed_TW, predictor)
    assert ratios[20] > 1.05
    assert (ratios[25:40] <= 1.05).all()
    assert (ratios[45:] < 1.05).all()


def test_balancer_accepts_a_name():
    used = LoadBalancer("ewma:smoothing=0.5", workers=["a", "b"], global_batch=90, policy=Policy(warmup=1))
    assert warm(used, [100.0, 50.0], 6).plan.sizes.tolist() == [60, 30]


@pytest.mark.parametrize(
    ("predictor", "workers", "sentence"),
    [
        (Auto, ["a", "b"], "Auto\\(\\) creates one"),
        (3, ["a", "b"], "predictor must be an instance such as"),
        (EWMA(), 3, "names or ranks in order"),
        (EWMA(), "gpu0", "names or ranks in order"),
        (EWMA(), {"a", "b"}, "a set, whose order differs"),
    ],
)
def test_balancer_refuses_mistakes(predictor, workers, sentence):
    with pytest.raises(TypeError, match=sentence):
        LoadBalancer(predictor, workers=workers, global_batch=9)


def test_report_refuses_a_mapping():
    report = Report(samples={"a": 5, "b": 4}, seconds={"a": 1.0, "b": 1.0})
    with pytest.raises(TypeError, match="in the order of workers"):
        report.speed  # noqa: B018
    with pytest.raises(ValueError, match="each of the 2 workers"):
        LoadBalancer("ewma", workers=["a", "b"], global_batch=9).step(report)


def test_shared_predictor_is_refused():
    predictor = EWMA()
    first = LoadBalancer(predictor, workers=["a0", "a1"], global_batch=120)
    warm(first, [100.0, 50.0], 1)
    second = LoadBalancer(predictor, workers=["b0", "b1"], global_batch=120)
    warm(second, [50.0, 100.0], 1)
    with pytest.raises(ValueError, match="a predictor of its own"):
        warm(first, [100.0, 50.0], 1)
    warm(copy.deepcopy(second), [50.0, 100.0], 1)


@pytest.mark.parametrize("make", [Auto, EWMA, BatchTime])
def test_plan_is_read_only(make):
    used = LoadBalancer(make(), workers=["a", "b", "c"], global_batch=512)
    for _ in range(10):
        plan = warm(used, [100.0, 100.0, 50.0], 1).plan
        curves = plan.forecast.curves
        arrays = [plan.sizes, plan.seconds, plan.forecast.speed, plan.forecast.spread, curves.slope, curves.intercept]
        for values in arrays:
            with pytest.raises(ValueError, match="read-only"):
                values[0] = 1
    state = used.state_dict()
    state["sizes"][0] -= 5
    assert used.plan.sizes.sum() == warm(used, [100.0, 100.0, 50.0], 1).plan.sizes.sum() == 512


def test_state_is_readable_from_npz_without_pickle(tmp_path):
    first, second = warm(LoadBalancer("auto", workers=FLEET, global_batch=512), [100, 200, 50, 100]), balancer("auto")
    np.savez(tmp_path / "balancer.npz", **first.state_dict())
    with np.load(tmp_path / "balancer.npz") as state:
        second.load_state_dict(dict(state))
    report = report_at(first.plan, [100, 200, 50, 100])
    assert same(first.step(report), second.step(report))
