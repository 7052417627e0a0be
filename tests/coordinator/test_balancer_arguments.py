"""Natural mistakes with a balancer are refused in a sentence, and nobody can change its plans from outside."""

import copy

import numpy as np
import pytest

from paceline import LoadBalancer, Policy
from paceline.predictors import EWMA, Auto, BatchTime, Report
from paceline.solver import split


def step(balancer, speed):
    return balancer.step(Report(samples=balancer.plan.sizes, seconds=balancer.plan.sizes / np.array(speed)))


def test_balancer_accepts_a_name():
    balancer = LoadBalancer("ewma:smoothing=0.5", workers=["a", "b"], global_batch=90, policy=Policy(warmup=1))
    for _ in range(6):
        step(balancer, [100.0, 50.0])
    assert balancer.plan.sizes.tolist() == [60, 30]


@pytest.mark.parametrize(
    ("predictor", "workers", "sentence"),
    [
        (Auto, ["a", "b"], "Auto\\(\\) makes one"),
        (3, ["a", "b"], "predictor must be one such as"),
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
    step(first, [100.0, 50.0])
    second = LoadBalancer(predictor, workers=["b0", "b1"], global_batch=120)
    step(second, [50.0, 100.0])
    with pytest.raises(ValueError, match="a predictor of its own"):
        step(first, [100.0, 50.0])
    step(copy.deepcopy(second), [50.0, 100.0])


@pytest.mark.parametrize("make", [Auto, EWMA, BatchTime])
def test_plan_is_read_only(make):
    balancer = LoadBalancer(make(), workers=["a", "b", "c"], global_batch=512)
    for _ in range(10):
        plan = step(balancer, [100.0, 100.0, 50.0])
        curves = plan.forecast.curves
        arrays = [plan.sizes, plan.seconds, plan.forecast.speed, plan.forecast.spread, curves.slope, curves.intercept]
        for values in arrays:
            with pytest.raises(ValueError, match="read-only"):
                values[0] = 1
    state = balancer.state_dict()
    state["sizes"][0] -= 5
    assert balancer.plan.sizes.sum() == step(balancer, [100.0, 100.0, 50.0]).sizes.sum() == 512


def test_split_accepts_speeds():
    assert split([100, 200, 300], 512).sizes.tolist() == [85, 171, 256]
    for wrong in (["a"], [100, 0], [], "auto", [1.0, float("nan")]):
        with pytest.raises(ValueError, match="one speed above 0 for each worker"):
            split(wrong, 512)
