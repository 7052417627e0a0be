"""Covariates: what they read from the kernel or a GPU, and NaN where there is nothing to read."""

import math
import os
import sys
from types import SimpleNamespace

import pytest
from machine_files import made, twice

from paceline.recording import ControlGroup, default_covariates, nvml_covariates
from paceline.recording.covariates import cpu_busy, cpu_quota, pressure, runnable_tasks, throttled_share


def named(name, root):
    (covariate,) = (one for one in default_covariates(root) if one.name == name)
    return covariate


def test_missing_sources_give_nan(tmp_path):
    for covariate in default_covariates(root=tmp_path):
        covariate.sample()
        value = covariate.sample()
        assert value == 0 if covariate.name == "throttled" else math.isnan(value), covariate.name


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nr_periods 1\nthrottled_time 1000000000\n", "nr_periods 2\nthrottled_time 3000000000\n"),
        ("usage_usec 1\nthrottled_usec 1000000\n", "usage_usec 1\nthrottled_usec 3000000\n"),
    ],
)
def test_throttled_in_both_group_versions(tmp_path, before, after):
    stat = made(tmp_path, {"cpu.stat": before}) / "cpu.stat"
    covariate = throttled_share(ControlGroup(tmp_path, stat, tmp_path))
    assert twice(covariate, lambda: stat.write_text(after)) == pytest.approx(2.0, rel=0.3)


def test_cpu_of_others_is_share_of_quota(tmp_path):
    files = {"cpu.max": "40000 100000\n", "cpu.stat": "usage_usec 5000000\n"}
    stat = made(tmp_path, files) / "cpu.stat"
    covariate = cpu_busy(ControlGroup(tmp_path, stat, tmp_path))
    assert twice(covariate, lambda: stat.write_text("usage_usec 9000000\n")) == pytest.approx(10.0, rel=0.3)


def test_cpu_of_others_on_pinned_cores(tmp_path):
    def cores(user):
        return "cpu  9 9 9 9 9 9 9 9 9 9\n" + "".join(f"cpu{n} {user} 0 0 500 7 0 0 0 0 0\n" for n in range(512))

    stat = made(tmp_path, {"proc/stat": cores(100)}) / "proc/stat"
    covariate = named("cpu_busy", tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    assert twice(covariate, lambda: stat.write_text(cores(100 + 4 * ticks))) == pytest.approx(4.0, rel=0.3)


def test_pressure_of_group_else_of_machine(tmp_path):
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    made(tmp_path, {"group/cpu.pressure": text.format(0), "proc/pressure/memory": text.format(0)})
    group = ControlGroup(tmp_path / "group", tmp_path / "none", tmp_path / "group")
    for covariate, file in (
        (pressure("cpu", group, tmp_path), tmp_path / "group/cpu.pressure"),
        (pressure("memory", group, tmp_path), tmp_path / "proc/pressure/memory"),
    ):
        grown = twice(covariate, lambda file=file: file.write_text(text.format(2_000_000)))
        assert grown == pytest.approx(2.0, rel=0.3)


def test_runnable_counts_ready_processes_of_group(tmp_path):
    files = {f"proc/{pid}/stat": f"{pid} (a name) {state} 1 1" for pid, state in ((7, "R"), (8, "S"), (9, "R"))}
    made(tmp_path, {**files, "group/cgroup.procs": f"7\n8\n9\n10\n{os.getpid()}\n"})
    covariate = runnable_tasks(ControlGroup(tmp_path / "group", tmp_path, tmp_path), tmp_path)
    assert covariate.sample() == 2
    (tmp_path / "proc/9/stat").write_text("9 (a name) S 1 1")
    assert covariate.sample() == 1


def test_memory_available_is_a_share(tmp_path):
    made(tmp_path, {"proc/meminfo": "MemTotal: 8000 kB\nMemFree: 9 kB\nMemAvailable: 2000 kB\n"})
    assert named("memory_available", tmp_path).sample() == 0.25


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "40000 100000\n"}, 0.4),
        ({"cpu.max": "max 100000\n"}, os.cpu_count()),
        ({"cpu.cfs_quota_us": "2000\n", "cpu.cfs_period_us": "5000\n"}, 0.4),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "5000\n"}, os.cpu_count()),
        ({}, math.nan),
    ],
)
def test_quota_in_both_group_versions(tmp_path, files, cores):
    covariate = cpu_quota(ControlGroup(made(tmp_path, files), tmp_path, tmp_path))
    assert covariate.sample() == pytest.approx(cores, nan_ok=True)


class FakeNVML:
    """A machine with two GPUs, of which the first cannot tell its utilization."""

    NVMLError, NVML_CLOCK_SM = type("NVMLError", (Exception,), {}), 1

    def nvmlInit(self):  # noqa: N802 - NVML's own names
        pass

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        if index > 1:
            raise self.NVMLError
        return index

    def nvmlDeviceGetHandleByUUID(self, name):  # noqa: N802
        if name not in ("GPU-first", "GPU-second"):
            raise self.NVMLError
        return int(name == "GPU-second")

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if handle == 0:
            raise self.NVMLError
        return SimpleNamespace(gpu=75, memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=20 + handle, total=80)

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):  # noqa: N802
        return 2000

    def nvmlDeviceGetClockInfo(self, handle, kind):  # noqa: N802
        return 1500


@pytest.fixture
def gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNVML())
    monkeypatch.setattr("paceline.recording.covariates.find_spec", lambda name: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def test_gpu_utilization_memory_and_clock(gpus):
    values = {covariate.name: covariate.sample() for covariate in nvml_covariates(device=1)}
    assert values == {"gpu_busy": 0.75, "gpu_memory": 21 / 80, "gpu_clock": 0.75}


def test_what_a_gpu_cannot_tell_is_nan(gpus):
    values = {covariate.name: covariate.sample() for covariate in nvml_covariates()}
    assert math.isnan(values["gpu_busy"])
    assert values["gpu_memory"] == 0.25


@pytest.mark.parametrize("visible", ["1,0", "GPU-second,GPU-first"])
def test_gpus_numbered_as_cuda_does(gpus, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert {covariate.name: covariate.sample() for covariate in nvml_covariates()}["gpu_memory"] == 21 / 80
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert {covariate.name: covariate.sample() for covariate in nvml_covariates()}["gpu_memory"] == 0.25


def test_without_a_gpu_there_are_no_covariates_of_one(gpus, monkeypatch):
    assert nvml_covariates(device=2) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert nvml_covariates() == []
    monkeypatch.setattr("paceline.recording.covariates.find_spec", lambda name: None)
    assert nvml_covariates() == []


def test_the_gpu_of_the_model_is_read(gpus, monkeypatch):
    """Ranks that share a card, or whose cards CUDA numbers otherwise than NVML: the model's device counts, by name."""
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("LOCAL_RANK", "7")
    assert nvml_covariates() == nvml_covariates(torch.device("cpu")) == []
    properties = {0: SimpleNamespace(uuid="second"), 1: SimpleNamespace(uuid="first")}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.get)
    used = {one.name: one.sample() for one in nvml_covariates(torch.device("cuda", 0))}
    assert used["gpu_memory"] == 21 / 80
