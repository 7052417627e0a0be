"""A job on Ray without Ray: a plan with a mistake is refused where it is made, and the dead do not join."""

from contextlib import suppress
from threading import Thread

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD
from paceline.integrations.ray import RayPlan, RayServer
from paceline.recording import read_async_run


def least_squares():
    return lambda parameters, rows: parameters


def plan(**options):
    start = {"parameters": np.zeros(3), "optimizer": SGD(0.05), "gradient": least_squares, "samples": 64, "batch": 8}
    return RayPlan(**(start | options))


@pytest.mark.parametrize("several", [False, True])
def test_metrics_may_be_one_name_or_several(tmp_path, several):
    path = str(tmp_path / "run.jsonl")
    service = plan(metrics=(path,) if several else path, workers=1).service()
    service.join("a")
    while not (work := service.pull("a")).ended:
        service.push("a", work.stamp, work.parameters)
    service.on_verdict[0].on_round[0].close()
    assert read_async_run(path).fleet_columns["applied"][-1] == 64


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"metrics": "run.csv"}, "metrics must be"),
        ({"metrics": ("run.jsonl", "loud")}, "metrics must be"),
        ({"parameters": np.array([1.0, np.nan])}, "parameters must be a flat array of finite"),
        ({"parameters": np.zeros(3, dtype=int)}, "parameters must be a flat array of finite"),
        ({"scheme": "fast"}, "scheme must be one of"),
        ({"predictor": "oracle"}, "oracle"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"batch": 0}, "must be at least 1"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"checkpoint_every": 100}, "needs checkpoint="),
    ],
)
def test_plan_mistakes_refused_when_made(mistake, said):
    with pytest.raises(ValueError, match=said):
        plan(**mistake)


def test_pull_of_dead_worker_leaves_no_member():
    pytest.importorskip("ray")
    server = RayServer(plan(scheme="bsp"))
    join, leaving = server.service.join, Thread(target=server.leave, args=("a", 0))

    def joined_late(worker):
        leaving.start()
        leaving.join(0.2)  # it may come first only where nothing keeps it waiting
        join(worker)

    server.service.join = joined_late
    with suppress(ValueError):  # it may have left again
        server.pull("a", 0)
    leaving.join()
    assert "a" not in server.service.server.workers


def test_all_that_a_plan_says_reaches_its_server(tmp_path):
    file = tmp_path / "state.npz"
    wanted = {"batch": 4, "epochs": 3, "seed": 7, "min_batch": 2, "patience": 5.0, "checkpoint": str(file)}
    service = plan(**wanted, checkpoint_every=16, scheme="bsp", workers=2).service()
    server = service.server
    assert (service.patience, service.checkpoint, service.checkpoint_every) == (5.0, file, 16)
    assert (server.batch, server.min_batch, server.sampler.epochs) == (4, 2, 3)
    orders = [[plan(seed=seed).service().server.sampler.draw(64).indices.tolist() for _ in range(2)] for seed in (7, 8)]
    assert orders[0][0] == orders[0][1] != orders[1][0]
