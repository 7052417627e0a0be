"""Beyond one core and one machine: torchrun, joblib with Ray and Dask, and object stores change no result."""

import os
import sys
import traceback
from contextlib import contextmanager

import numpy as np
import pyarrow
import pytest
from fit_cases import folder_of, learnt, networks, wavy
from ranks import run_script

from paceline.eval import leaderboard
from paceline.predictors import ARIMA, EWMA, RLS
from paceline.training import Source, fit, load_model
from paceline.training.stores import files

TORCHRUN_JOB = """
import sys
from fit_cases import networks
import torch.distributed as dist
from paceline.training import fit, save_model
folder, out = sys.argv[1:]
for n, predictor in enumerate(networks()):
    fitted = fit(predictor, folder, distributed=True, checkpoint=f"{out}/fit{n}")
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
        assert learnt(first) == learnt(second)
        for name, weight in alone.weights_.items():
            np.testing.assert_allclose(first.weights_[name].reshape(weight.shape), weight, atol=2e-4)


def test_fitting_together_without_torchrun_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="needs the processes of torchrun"):
        fit(networks()[0], [wavy(0)], distributed=True)


# -- joblib ------------------------------------------------------------------------------------------------------


def results():
    """Return what joblib spreads: a fit worker by worker, and a leaderboard without its times."""
    traces = [wavy(seed, iterations=60) for seed in range(3)]
    arima = fit(ARIMA(order=(1, 0, 0), method="likelihood", covariates=()), traces)
    board = leaderboard({"ewma": EWMA(), "rls": RLS(covariates=()), "arima": arima}, traces, warmup=10)
    frames = board.workers.to_json(double_precision=15), board.jobs.drop(columns="microseconds").to_json()
    return learnt(arima), frames


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
        two_processes,
        pytest.param(ray_cluster, marks=pytest.mark.soak),
        pytest.param(dask_cluster, marks=pytest.mark.soak),
    ],
    ids=lambda e: e.__name__,
)
@pytest.mark.filterwarnings("ignore")  # of the engines, about ports, forks and their own versions
def test_an_engine_gives_the_results_of_one_process_to_the_bit(engine):
    alone = results()
    with engine():
        assert results() == alone


# -- object stores ---------------------------------------------------------------------------------------------------


@pytest.fixture
def store():
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    yield memory
    memory.store.clear()


@pytest.mark.slow
def test_traces_are_read_from_a_store(tmp_path, store):
    folder = folder_of(tmp_path / "jobs", 2)
    for file in folder.iterdir():
        store.pipe(f"/bucket/jobs/{file.name}", file.read_bytes())
    store.pipe("/bucket/jobs/.hidden/junk.parquet", b"junk")
    store.pipe("/bucket/jobs/broken.parquet", b"PAR1 and then nothing")
    source = Source("memory://bucket/jobs")
    assert [trace.name for trace in source] == ["job0", "job1"]
    (left,) = source.left_out
    assert left.file == "memory://bucket/jobs/broken.parquet"
    assert "/tmp" not in left.why
    assert [trace.name for trace in Source("memory://bucket/jobs/job01.parquet")] == ["job1"]
    with pytest.raises(FileNotFoundError, match="there is nothing at memory://bucket/other"):
        Source("memory://bucket/other")
    with pytest.warns(UserWarning, match="1 files were left out"):
        from_store = fit(networks()[0], "memory://bucket/jobs")
    assert learnt(from_store) == learnt(fit(networks()[0], folder))


def test_a_store_that_pyarrow_was_built_without_is_opened_by_fsspec(tmp_path, monkeypatch):
    pytest.importorskip("fsspec")
    folder = folder_of(tmp_path / "jobs", 1)

    class WithoutStores:
        @staticmethod
        def from_uri(address):
            raise pyarrow.ArrowNotImplementedError("built without it")

    monkeypatch.setattr("pyarrow.fs.FileSystem", WithoutStores)
    assert [trace.name for trace in Source(f"file://{folder}")] == ["job0"]
    monkeypatch.setattr("paceline._require.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"`fsspec` is needed by reading s3://\*\*\*@bucket/jobs"):
        Source("s3://key:secret@bucket/jobs")


def test_an_unknown_protocol_is_refused():
    with pytest.raises(ValueError, match="nothing"):
        Source("nothing://bucket/jobs")


def test_a_mistake_in_an_address_is_told_and_no_library_is_asked_for():
    with pytest.raises(ValueError, match=r"s3://bucket/x\?\*\*\*: Unexpected query parameter"):
        files("s3://bucket/x?bogus=1")


def test_no_message_holds_the_secret_of_an_address():
    with pytest.raises(ValueError, match=r"Cannot parse URI: \'s3://\*\*\*@bucket/a b\'") as told:
        files("s3://key:hush@bucket/a b")
    shown = "".join(traceback.format_exception(told.value))
    assert "hush@bucket" not in shown.replace('files("s3://key:hush@bucket/a b")', "")  # the line of this test itself
