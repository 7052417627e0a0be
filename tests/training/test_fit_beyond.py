"""Beyond one core and one machine: torchrun, joblib with Ray and Dask change no result."""

import os
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from fit_cases import folder_of, learned, networks, wavy
from ranks import run_script

from paceline.eval import leaderboard
from paceline.predictors import ARIMA, EWMA, RLS
from paceline.training import fit, load_model

TORCHRUN_JOB = """
import sys
from fit_cases import networks
import torch.distributed as dist
from paceline.training import fit, save_model
folder, out = sys.argv[1:]
for n, predictor in enumerate(networks()):
    fitted = fit(predictor, folder, distributed=True)
    save_model(fitted, f"{out}/model{n}-rank{dist.get_rank()}.safetensors")
dist.destroy_process_group()
"""


def test_two_processes_fit_what_one_does(tmp_path):
    folder = folder_of(tmp_path / "jobs", 2)
    script, two = tmp_path / "job.py", tmp_path / "two"
    script.write_text(TORCHRUN_JOB)
    two.mkdir()
    run_script(2, script, folder, two)
    for n, predictor in enumerate(networks()):
        alone = fit(predictor, folder)
        first, second = (load_model(two / f"model{n}-rank{rank}.safetensors") for rank in (0, 1))
        assert learned(first) == learned(second)
        for name, weight in alone.weights_.items():
            np.testing.assert_allclose(first.weights_[name].reshape(weight.shape), weight, atol=2e-4)


def test_fitting_together_without_torchrun_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="start the script with torchrun"):
        fit(networks()[0], [wavy(0)], distributed=True)


# -- joblib ------------------------------------------------------------------------------------------------------


def results():
    """Return what joblib spreads: a fit worker by worker, and a leaderboard without its times."""
    traces = [wavy(seed, iterations=60) for seed in range(3)]
    arima = fit(ARIMA(order=(1, 0, 0), method="likelihood", covariates=()), traces)
    board = leaderboard({"ewma": EWMA(), "rls": RLS(covariates=()), "arima": arima}, traces, warmup=10)
    frames = board.workers.to_json(double_precision=15), board.jobs.drop(columns="microseconds").to_json()
    return learned(arima), frames


@contextmanager
def two_processes():
    import joblib

    with joblib.parallel_config(backend="loky", n_jobs=2):
        yield
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


@contextmanager
def ray_cluster():
    ray = pytest.importorskip("ray")
    import joblib
    from ray.util.joblib import register_ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    paths = os.pathsep.join(filter(None, sys.path))
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    register_ray()
    try:
        with joblib.parallel_config(backend="ray", n_jobs=2):
            yield
    finally:
        ray.shutdown()


@contextmanager
def dask_cluster():
    distributed = pytest.importorskip("distributed")
    import joblib

    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster), joblib.parallel_config(backend="dask"):
        yield


@pytest.mark.processes
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(two_processes, marks=pytest.mark.soak),
        pytest.param(ray_cluster, marks=pytest.mark.soak),
        pytest.param(dask_cluster, marks=pytest.mark.soak),
    ],
    ids=lambda e: e.__name__,
)
@pytest.mark.filterwarnings("ignore")  # of the engines, about ports, forks and their own versions
def test_engine_equals_one_process_exactly(engine):
    alone = results()
    with engine():
        assert results() == alone
