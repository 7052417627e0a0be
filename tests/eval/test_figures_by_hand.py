"""Figures of eval on numbers small enough to be worked out by hand."""

import importlib
import math
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace
from paceline.eval import model_drift
from paceline.eval.overhead import FEWEST_GROUPS, barrier_overhead
from paceline.eval.residuals import position, residuals
from paceline.eval.waiting_costs import HALF_WINDOW, costs_of_waiting
from paceline.predictors import Forecast

simulating = importlib.import_module("paceline.eval.simulate")
NAN = float("nan")


def test_what_forecasts_left_is_the_mean_position_and_twelve_times_its_variance_around_a_half():
    position = np.array([[0.25, 0.5], [1.0, NAN]])
    left = residuals(np.zeros((2, 2)), position)
    mean, spread = list(vars(left).values())[:2]
    assert mean.value == (0.625 + 0.5) / 2, "of each worker first"
    assert spread.value == pytest.approx(12 * (0.0625 + 0.25) / 2 / 2)


# -- barriers ------------------------------------------------------------------------------------------------------

SPEED = st.one_of(st.just(NAN), st.floats(0.5, 8.0))


@given(st.integers(1, 4).flatmap(lambda w: st.lists(st.tuples(*[st.tuples(SPEED, SPEED)] * w), min_size=1, max_size=4)))
@settings(max_examples=40)
def test_the_overhead_of_a_fleet_that_is_one_group_is_that_of_its_slowest_worker(rows):
    ratios = []
    for row in rows:
        both = [(p, v) for p, v in row if not math.isnan(p) and not math.isnan(v)]
        if both:
            slowest = max(p / v for p, v in both)
            ratios.append(slowest * sum(v for _, v in both) / sum(p for p, _ in both) - 1)
    table = np.array(rows)
    found = barrier_overhead(table[..., 0], table[..., 1], group=4)
    assert found == pytest.approx(np.mean(ratios) if ratios else NAN, nan_ok=True)


@pytest.mark.parametrize(("workers", "group", "count"), [(4, 2, 4), (5, 2, 4), (9, 2, 2), (20, 2, 1), (3, 3, 0)])
def test_a_large_fleet_is_divided_until_there_are_eight_groups(monkeypatch, workers, group, count):
    rng = np.random.default_rng(workers)
    forecast, actual = rng.uniform(1, 2, (2, 3, workers))
    orders = np.random.default_rng(7)
    groups = [list(range(workers))] if not count else []
    for _ in range(count):
        order = orders.permutation(workers)
        groups += [order[k * group : (k + 1) * group] for k in range(workers // group)]
    each = [
        (forecast[t, own] / actual[t, own]).max() * actual[t, own].sum() / forecast[t, own].sum() - 1
        for own in groups
        for t in range(3)
    ]
    assert barrier_overhead(forecast, actual, group=group, seed=7) == pytest.approx(np.mean(each))
    assert FEWEST_GROUPS == 8


def test_shapes_that_differ_and_groups_of_one_are_refused():
    with pytest.raises(ValueError, match=r"got \(2, 1\) and \(1, 2\)"):
        barrier_overhead(np.ones((2, 1)), np.ones((1, 2)))
    with pytest.raises(ValueError, match="must both have the shape"):
        barrier_overhead(np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match="at least 2 workers, got 1"):
        barrier_overhead(np.ones((1, 2)), np.ones((1, 2)), group=1)
    assert barrier_overhead(np.full((1, 2), 3.0), np.ones((1, 2)), group=2) == 0.0


# -- waiting -------------------------------------------------------------------------------------------------------


def filtered(values, half):
    padded = np.pad(values, ((half, half), (0, 0)), mode="edge")
    return np.array([np.median(padded[t : t + 2 * half + 1], axis=0) for t in range(len(values))])


@given(st.integers(0, 10**6), st.sampled_from(["none", "known", "gap", "zero"]), st.sampled_from([None, 5.0, 50.0]))
@settings(max_examples=40)
def test_waiting_is_divided_by_taking_away_samples_then_machines_then_noise(seed, told, foreseen):
    rng = np.random.default_rng(seed)
    seconds = rng.uniform(1, 2, (16, 3)) * rng.uniform(1, 3, 3)
    cost = None if told == "none" else rng.uniform(1, 3, (16, 3))
    if told in ("gap", "zero"):
        cost[3, 1] = {"gap": NAN, "zero": 0.0}[told]
    pace = seconds / (cost / cost.mean(axis=1, keepdims=True)) if told == "known" else seconds
    lasting = filtered(pace, HALF_WINDOW)
    even = [[3 / sum(1 / one for one in row) for row in table] for table in (pace, lasting)]
    whole, alike = sum(map(max, seconds)), sum(map(max, pace))
    in_step = sum(max(row / base) * split for row, base, split in zip(pace, lasting, even[1], strict=True))
    best = sum(even[0]) if foreseen is None or told == "known" else foreseen
    most = max(1 - best / whole, 0)
    samples = min(max(whole - alike, 0) / whole, most)
    machines = min(max(min(whole, alike) - in_step, 0) / whole, most - samples)
    expected = (samples, machines, most - samples - machines)
    assert costs_of_waiting(seconds, cost, foreseen=foreseen) == pytest.approx(expected)
    assert HALF_WINDOW == 5


# -- what is simulated -----------------------------------------------------------------------------------------------


def test_profiles_are_simulated_with_their_curves_batch_and_noise(tmp_path, monkeypatch):
    for name, slope in (("fast", 0.001), ("slow", 0.002)):
        rows = "".join(f"x,{name},m,{size},{slope * size},,\n" for size in (8, 32, 128))
        (tmp_path / f"{name}.csv").write_text(f"source,device,model,batch,seconds,comm_seconds,held\n{rows}")
    seen = []
    monkeypatch.setattr(simulating, "simulate", lambda trace, **how: seen.append((trace, how)) or "found")
    files = {tmp_path / "fast.csv": 2, str(tmp_path / "slow.csv"): 1}
    assert simulating.from_profiles(files, global_batch=96, noise=0.25) == "found"
    ((trace, how),) = seen
    assert trace.workers == ("fast-0", "fast-1", "slow-0")
    assert (trace.samples.tolist(), trace.seconds.tolist()) == ([[1.0] * 3], [[1.0] * 3])
    assert (how.pop("global_batch"), how.pop("noise")) == (96, 0.25)
    assert how.pop("curves").seconds(np.full(3, 32)) == pytest.approx([0.032, 0.032, 0.064], rel=1e-6)
    assert how == {}
    assert simulating.from_speeds([4, 8], global_batch=12, noise=0.5, workers=["a", "b"]) == "found"
    trace, how = seen[1]
    assert (trace.workers, trace.samples.tolist(), trace.seconds.tolist()) == (("a", "b"), [[1, 1]], [[0.25, 0.125]])
    assert how == {"global_batch": 12, "noise": 0.5}
    for wrong in ([], [1, 0], [1, math.inf], [[1], [2]]):
        if wrong:
            with pytest.raises(ValueError, match="speeds must be positive numbers"):
                simulating.from_speeds(wrong)


def test_limits_are_whole_numbers_that_fit_an_integer_and_an_exchange_is_the_median_of_those_recorded():
    assert simulating._whole(np.array([3.7, 2.0**31 - 0.5, 2.0**31 + 9, math.inf])) == [3, 2**31 - 1, 2**31, 2**31]
    job = Trace(np.ones((3, 2)), np.ones((3, 2)))
    assert simulating._exchange(job) == 0.0
    for told, expected in ([[NAN, NAN]] * 3, 0.0), ([[1.0, NAN], [2.0, 3.0], [7.0, 8.0]], 3.0):
        assert simulating._exchange(SimpleNamespace(comm_seconds=np.array(told))) == expected


# -- drift -----------------------------------------------------------------------------------------------------------


class Reference:
    """Everything above 2 is unknown."""

    def unknown_changes(self, change):
        return change > 2

    unknown_covariates = unknown_changes


def test_the_share_of_what_is_unknown_is_that_of_the_values_that_are_known(monkeypatch):
    model = SimpleNamespace(reference_=Reference(), covariate_names=("a",))
    monkeypatch.setattr(model_drift, "changes", np.array)
    for values, expected in ([[1.0, 3.0, NAN, 5.0]], 2 / 3), ([[NAN, NAN]], NAN), ([[1.0]], 0.0):
        told = SimpleNamespace(covariates_named=lambda names, values=values: np.array(values), speed=values)
        for share in (model_drift._unknown_covariates, model_drift._unknown_changes):
            assert share(model, told) == pytest.approx(expected, nan_ok=True)
            assert math.isnan(share(SimpleNamespace(reference_=None, covariate_names=("a",)), told))
    values = [[1.0]]
    assert math.isnan(
        model_drift._unknown_covariates(SimpleNamespace(reference_=Reference(), covariate_names=()), told)
    )


def test_a_speed_of_several_equal_quantiles_is_half_way_between_the_last_two():
    told = Forecast(np.array([100.0]), np.array([0.1]), levels=(0.1, 0.5, 0.9), quantiles=np.array([[100.0] * 3]))
    normal = NormalDist()
    assert position(told, np.array([100.0])) == pytest.approx([normal.cdf(normal.inv_cdf(0.9) / 2)])
