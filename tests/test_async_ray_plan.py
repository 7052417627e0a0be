"""What a job on Ray trains: a plan with a mistake is refused where it is made, in a sentence."""

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD
from paceline.coordinator.asynchronous.ray import RayPlan
from paceline.coordinator.metrics import read_async_run


def least_squares():
    return lambda parameters, rows: parameters


def plan(**options):
    start = {"parameters": np.zeros(3), "optimiser": SGD(0.05), "gradient": least_squares, "samples": 64, "batch": 8}
    return RayPlan(**(start | options))


@pytest.mark.parametrize("several", [False, True])
def test_metrics_may_be_one_name_or_several(tmp_path, several):
    path = str(tmp_path / "run.jsonl")
    service = plan(metrics=(path,) if several else path, workers=1).service()
    service.join("a")
    while not (work := service.pull("a")).ended:
        service.push("a", work.stamp, work.parameters)
    service.on_verdict[0].on_round[0].close()
    assert read_async_run(path).of_fleet["applied"][-1] == 64


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"metrics": "run.csv"}, "metrics must be"),
        ({"metrics": ("run.jsonl", "loud")}, "metrics must be"),
        ({"parameters": np.array([1.0, np.nan])}, "parameters must be one row of finite"),
        ({"parameters": np.array([1.0, np.nan]), "servers": 2}, "parameters must be one row of finite"),
        ({"parameters": np.zeros(3, dtype=int)}, "parameters must be one row of finite"),
        ({"scheme": "fast"}, "scheme must be one of"),
        ({"predictor": "oracle"}, "oracle"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"servers": 4}, "servers must be from 1 to"),
        ({"every": 100}, "needs a file"),
    ],
)
def test_a_mistake_in_a_plan_is_refused_where_the_plan_is_made(mistake, said):
    with pytest.raises(ValueError, match=said):
        plan(**mistake)
