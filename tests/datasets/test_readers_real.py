"""Readers on real samples: what their authors and we measured of them comes out again."""

import os
from pathlib import Path

import numpy as np
import pytest

from paceline.datasets import read_traces

REAL = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[3] / "shared" / "data"))
SAMPLES = ("hivemind_multicloud", "pai_minibatch", "azure_vm_noise", "bytedance_llm")

pytestmark = pytest.mark.skipif(
    not all((REAL / name).is_dir() for name in SAMPLES),
    reason=f"the samples {SAMPLES} are not in {REAL}: point PACELINE_DATA to the folder that holds them",
)


def variation(speed_TW):
    return np.nanstd(speed_TW, axis=0) / np.nanmean(speed_TW, axis=0)


def lag_one(series_T):
    return np.corrcoef(series_T[1:], series_T[:-1])[0, 1]


@pytest.mark.slow
def test_hivemind_eighteen_workers_with_covariates():
    traces = read_traces(REAL / "hivemind_multicloud", "hivemind")
    assert {trace.name: len(trace.workers) for trace in traces} == {
        "hivemind-77": 4,
        "hivemind-78": 4,
        "hivemind-113": 4,
        "hivemind-134": 2,
        "hivemind-315": 4,
    }
    for trace in traces:
        assert np.isfinite(trace.speed).sum() > 300 * len(trace.workers)
        assert "cpu_load" in trace.covariate_names
        assert np.isfinite(trace.covariates).mean() > 0.8


@pytest.mark.slow
def test_hivemind_monitor_sees_the_same_four_peers():
    traces = read_traces(REAL / "hivemind_multicloud", "hivemind_monitor")
    assert [len(trace.workers) for trace in traces] == [4, 2, 4, 4, 4]


@pytest.mark.slow
def test_pai_jobs_vary_as_their_provenance_says():
    jobs = {trace.name: trace.seconds for trace in read_traces(REAL / "pai_minibatch", "pai_minibatch")}
    assert {name: seconds.shape for name, seconds in jobs.items()} == {"pai-job_1": (300, 10), "pai-job_3": (249, 10)}
    assert np.isnan(jobs["pai-job_3"]).sum() == 1
    for name, expected, lag in (("pai-job_1", 0.046, 0.77), ("pai-job_3", 0.038, 0.64)):
        assert np.median(variation(jobs[name])) == pytest.approx(expected, abs=0.002)
        complete = jobs[name][np.isfinite(jobs[name]).all(axis=1)]
        assert np.median([lag_one(series) for series in complete.T]) == pytest.approx(lag, abs=0.01)


@pytest.mark.slow
def test_azure_holds_three_machines_of_fourteen_files():
    traces = read_traces(REAL / "azure_vm_noise")
    assert len(traces) == 42
    assert len({trace.name.rpartition("-vm")[0] for trace in traces}) == 14
    assert all((np.diff(trace.start[:, 0]) > 0).all() for trace in traces)
    assert all(trace.meta["rows_dropped"] == "0" for trace in traces)


@pytest.mark.slow
def test_bytedance_means_are_those_of_the_provenance():
    traces = read_traces(REAL / "bytedance_llm")
    for job, mean, steps in (("ST", 0.98, 32), ("SE", 5.08, 43)):
        of_job = [trace for trace in traces if trace.name.startswith(f"bytedance-{job}-")]
        stages = {trace.name.split("-")[2] for trace in of_job}
        assert sum(len(trace) for trace in of_job) == steps * len(stages)
        seconds = np.concatenate([trace.seconds.ravel() for trace in of_job])
        assert seconds.mean() == pytest.approx(mean, abs=0.01)
