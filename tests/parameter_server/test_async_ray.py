"""Asynchronous training on Ray: workers and the server die, and the training ends all the same."""

import os
import sys
import time

import numpy as np
import pytest

from paceline.coordinator.asynchronous import SGD

ray = pytest.importorskip("ray")

from paceline.integrations.ray import RayJob, RayPlan  # noqa: E402 (needs ray)

pytestmark = pytest.mark.soak

SAMPLES, TRUTH = 64, np.array([1.0, -2.0, 3.0])


def least_squares():
    """Return the gradient of a line through points, and let it take a moment."""
    inputs = np.random.default_rng(0).normal(size=(SAMPLES, 3))

    def gradient(parameters, rows):
        time.sleep(0.005)
        return 2 * inputs[rows].T @ (inputs[rows] @ (parameters - TRUTH)) / len(rows)

    return gradient


def only_nan():
    return lambda parameters, rows: np.full(3, np.nan)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}  # its processes import this file
    few = {"num_cpus": 4, "include_dashboard": False, "log_to_driver": False, "object_store_memory": 100 * 2**20}
    ray.init(**few, runtime_env={"env_vars": path})
    yield
    ray.shutdown()


def plan(**options):
    start = {"parameters": np.zeros(3), "optimizer": SGD(0.05), "gradient": least_squares}
    return RayPlan(**(start | {"samples": SAMPLES, "batch": 8, "epochs": 20} | options))


def until(job, samples):
    while ray.get(job.server.progress.remote())[1] < samples:
        job.poll(0.01)


def applied(job):
    while not job.poll(1.0):
        pass
    return ray.get(job.server.progress.remote())[1]


def test_ray_applies_every_sample():
    job = RayJob(plan())
    assert applied(job) == 20 * SAMPLES
    assert ray.get(job.server.parameters.remote()) == pytest.approx(TRUTH, abs=0.02)
    job.close()


def test_killed_worker_returns_others_join():
    job = RayJob(plan(epochs=40))
    until(job, 3 * SAMPLES)
    ray.kill(job.actors["worker1"])
    job.add("late")
    until(job, 10 * SAMPLES)
    job.remove("worker0")
    assert applied(job) == 40 * SAMPLES
    assert job.deaths == {"worker1": 1}
    job.close()


def test_killed_server_restarts_from_checkpoint(tmp_path):
    job = RayJob(plan(epochs=40, checkpoint=str(tmp_path / "run.safetensors"), checkpoint_every=2 * SAMPLES))
    until(job, 8 * SAMPLES)
    _, before, _ = ray.get(job.server.progress.remote())
    ray.kill(job.server, no_restart=False)
    _, after, _ = ray.get(job.server.progress.remote())
    # Between the look and the kill workers may have pushed: it only has to be no more than the interval behind.
    assert after >= before - 2 * SAMPLES - 8
    assert applied(job) == 40 * SAMPLES
    assert ray.get(job.server.parameters.remote()) == pytest.approx(TRUTH, abs=0.02)
    job.close()


def test_nan_only_workers_end_the_job():
    job = RayJob(plan(gradient=only_nan, max_restarts=0))
    with pytest.raises(RuntimeError, match="no worker is left"):
        job.run()


def one_hangs(path):
    def make():
        gradient, calls = least_squares(), []

        def hangs(parameters, rows):
            calls.append(len(rows))
            if len(calls) == 3 and not path.exists():
                path.touch()
                time.sleep(600)
            return gradient(parameters, rows)

        return hangs

    return make


def test_hanging_worker_does_not_block_the_end(tmp_path, caplog):
    parameters = RayJob(plan(gradient=one_hangs(tmp_path / "hangs"), patience=0.5)).run()
    assert parameters == pytest.approx(TRUTH, abs=0.1)
    assert "did not finish in time: the job ends without them" in caplog.text
