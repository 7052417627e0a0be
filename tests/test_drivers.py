import math
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from paceline.recording import control_group
from paceline.recording.control_group import ControlGroup, mounted
from paceline.recording.drivers.linux import (
    CPUBusy,
    CPUPressure,
    MemoryAvailable,
    MemoryPressure,
    RunDelay,
    Runnable,
    all_drivers,
    default_drivers,
)
from paceline.recording.drivers.nvml import nvml_drivers
from paceline.recording.drivers.psutil import psutil_drivers
from paceline.recording.drivers.quota import CPUQuota, Throttled
from paceline.recording.kernel_files import Growth


def made(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def twice(driver, change):
    """The driver's growth per second between two boundaries that lie a moment apart, times the moment."""
    driver.sample()
    begin = time.perf_counter()
    change()
    time.sleep(0.02)
    return driver.sample() * (time.perf_counter() - begin)


def test_missing_sources_give_nan(tmp_path):
    for driver in default_drivers(root=tmp_path):
        driver.sample()
        value = driver.sample()
        assert value == 0 if driver.name == "throttled" else math.isnan(value), driver.name


def test_a_control_group_that_is_gone_gives_nan(tmp_path):
    group = ControlGroup(tmp_path / "cpu", tmp_path / "usage", tmp_path / "pressure")
    for driver in (CPUBusy(group, tmp_path), Throttled(group, tmp_path), Runnable(group, tmp_path)):
        driver.sample()
        assert math.isnan(driver.sample()), driver.name


def test_every_driver_has_a_name_a_unit_and_says_where_it_is_read(tmp_path):
    drivers = default_drivers(ControlGroup(tmp_path, tmp_path, tmp_path))
    assert [(one.name, one.unit) for one in drivers] == [(one.name, one.unit) for one in default_drivers()]
    assert len({driver.name for driver in drivers}) == len(drivers)
    assert all(driver.unit and type(driver).__doc__ for driver in drivers)


def test_growth_is_per_second_and_unknown_at_first():
    growth = Growth()
    assert math.isnan(growth.by(1.0))
    begin = time.perf_counter()
    time.sleep(0.02)
    rate = growth.by(3.0)
    assert 0 < rate * (time.perf_counter() - begin) == pytest.approx(2.0, rel=0.3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("nr_periods 1\nthrottled_time 1000000000\n", "nr_periods 2\nthrottled_time 3000000000\n"),
        ("usage_usec 1\nthrottled_usec 1000000\n", "usage_usec 1\nthrottled_usec 3000000\n"),
    ],
)
def test_throttled_reads_both_versions_of_control_groups(tmp_path, before, after):
    stat = made(tmp_path, {"cpu.stat": before}) / "cpu.stat"
    driver = Throttled(ControlGroup(tmp_path, stat, tmp_path))
    assert twice(driver, lambda: stat.write_text(after)) == pytest.approx(2.0, rel=0.3)


def test_cpu_that_others_took_is_told_as_a_share_of_the_quota(tmp_path):
    files = {"cpu.max": "40000 100000\n", "cpu.stat": "usage_usec 5000000\n"}
    stat = made(tmp_path, files) / "cpu.stat"
    driver = CPUBusy(ControlGroup(tmp_path, stat, tmp_path))
    assert twice(driver, lambda: stat.write_text("usage_usec 9000000\n")) == pytest.approx(10.0, rel=0.3)


def test_cpu_that_others_took_without_a_group_is_read_for_the_pinned_cores(tmp_path):
    def cores(user):
        return "cpu  9 9 9 9 9 9 9 9 9 9\n" + "".join(f"cpu{n} {user} 0 0 500 7 0 0 0 0 0\n" for n in range(512))

    stat = made(tmp_path, {"proc/stat": cores(100)}) / "proc/stat"
    driver = CPUBusy(root=tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    assert twice(driver, lambda: stat.write_text(cores(100 + 4 * ticks))) == pytest.approx(4.0, rel=0.3)


def test_pressure_is_that_of_the_group_where_it_has_one_else_of_the_machine(tmp_path):
    text = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    made(tmp_path, {"group/cpu.pressure": text.format(0), "proc/pressure/memory": text.format(0)})
    group = ControlGroup(tmp_path / "group", tmp_path / "none", tmp_path / "group")
    for driver, file in (
        (CPUPressure(group, tmp_path), tmp_path / "group/cpu.pressure"),
        (MemoryPressure(group, tmp_path), tmp_path / "proc/pressure/memory"),
    ):
        grown = twice(driver, lambda file=file: file.write_text(text.format(2_000_000)))
        assert grown == pytest.approx(2.0, rel=0.3)


def test_runnable_counts_the_other_processes_of_the_group_that_are_ready(tmp_path):
    files = {f"proc/{pid}/stat": f"{pid} (a name) {state} 1 1" for pid, state in ((7, "R"), (8, "S"), (9, "R"))}
    made(tmp_path, {**files, "group/cgroup.procs": f"7\n8\n9\n10\n{os.getpid()}\n"})
    driver = Runnable(ControlGroup(tmp_path / "group", tmp_path, tmp_path), tmp_path)
    assert driver.sample() == 2
    (tmp_path / "proc/9/stat").write_text("9 (a name) S 1 1")
    assert driver.sample() == 1


def test_runnable_without_a_group_is_that_of_the_machine_per_core_without_oneself(tmp_path):
    cores = os.cpu_count()
    made(tmp_path, {"proc/loadavg": f"0.19 0.12 0.06 {2 * cores + 1}/123 4601\n"})
    assert Runnable(root=tmp_path).sample() == 2


def test_memory_available_is_a_share(tmp_path):
    made(tmp_path, {"proc/meminfo": "MemTotal: 8000 kB\nMemFree: 9 kB\nMemAvailable: 2000 kB\n"})
    assert MemoryAvailable(tmp_path).sample() == 0.25


def test_the_run_delay_rises_when_another_process_shares_the_core():
    """Both processes are pinned to one core, so one of them always waits for it."""
    cores, delays = os.sched_getaffinity(0), {}
    assert threading.current_thread() is threading.main_thread()
    try:
        os.sched_setaffinity(0, {min(cores)})
        hog = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        driver = RunDelay()
        driver.sample()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            sum(range(1000))
        delays["shared"] = driver.sample()
    finally:
        os.sched_setaffinity(0, cores)
        hog.kill()
        hog.wait()
    driver.sample()
    time.sleep(0.3)
    delays["asleep"] = driver.sample()
    assert delays["shared"] > 0.1
    assert delays["shared"] > delays["asleep"]


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
def test_the_quota_is_read_in_both_versions_of_control_groups(tmp_path, files, cores):
    driver = CPUQuota(ControlGroup(made(tmp_path, files), tmp_path, tmp_path))
    assert driver.sample() == pytest.approx(cores, nan_ok=True)


def test_psutil_tells_percentages_once_there_is_a_boundary_before():
    pytest.importorskip("psutil")
    cpu, memory = psutil_drivers()
    assert math.isnan(cpu.sample())
    assert 0 <= cpu.sample() <= 100
    assert 0 < memory.sample() < 100


class FakeNVML:
    """A machine with two GPUs, of which the first cannot tell its utilisation."""

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
    monkeypatch.setattr("paceline.recording.drivers.nvml.find_spec", lambda name: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def test_a_gpu_tells_how_busy_how_full_and_how_fast_it_is(gpus):
    values = {driver.name: driver.sample() for driver in nvml_drivers(device=1)}
    assert values == {"gpu_busy": 0.75, "gpu_memory": 21 / 80, "gpu_clock": 0.75}


def test_what_a_gpu_cannot_tell_is_nan(gpus):
    values = {driver.name: driver.sample() for driver in nvml_drivers()}
    assert math.isnan(values["gpu_busy"])
    assert values["gpu_memory"] == 0.25


@pytest.mark.parametrize("visible", ["1,0", "GPU-second,GPU-first"])
def test_the_gpus_are_numbered_as_cuda_numbers_those_it_may_use(gpus, monkeypatch, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert {driver.name: driver.sample() for driver in nvml_drivers()}["gpu_memory"] == 21 / 80
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert {driver.name: driver.sample() for driver in nvml_drivers()}["gpu_memory"] == 0.25


def test_without_a_gpu_there_are_no_drivers_of_one(gpus, monkeypatch):
    assert nvml_drivers(device=2) == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert nvml_drivers() == []
    monkeypatch.setattr("paceline.recording.drivers.nvml.find_spec", lambda name: None)
    assert nvml_drivers() == []


def test_all_drivers_are_those_that_have_something_to_tell_here(gpus, tmp_path):
    made(tmp_path, {"cpu.max": "40000 100000\n"})
    group = ControlGroup(tmp_path, tmp_path / "cpu.stat", tmp_path)
    names = [driver.name for driver in all_drivers(group)]
    assert names[:7] == [driver.name for driver in default_drivers(group)]
    assert names[7:] == ["cpu_quota", "gpu_busy", "gpu_memory", "gpu_clock"]


VERSION_1 = {
    "proc/self/mounts": (
        "cgroup /groups/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup2 /groups/unified cgroup2 rw 0 0\n"
    ),
    "proc/self/cgroup": "1:cpu,cpuacct:/job\n0::/job\n",
    "groups/cpu,cpuacct/job/cpu.cfs_quota_us": "4000\n",
    "groups/cpu,cpuacct/job/cpu.cfs_period_us": "10000\n",
    "groups/unified/job/cpu.pressure": "",
}
VERSION_2 = {
    "proc/self/mounts": "cgroup2 /groups cgroup2 rw 0 0\n",
    "proc/self/cgroup": "0::/job\n",
    "groups/job/cpu.max": "4000 10000\n",
}


def test_the_own_group_is_found_in_version_1(tmp_path):
    group = ControlGroup.of_this_process(made(tmp_path, VERSION_1))
    assert group.cores == 0.4
    assert group.usage == tmp_path / "groups/cpu,cpuacct/job/cpuacct.usage"
    assert group.pressure == tmp_path / "groups/unified/job"
    assert set(mounted(tmp_path)) >= {"cpu", "cpuacct", ""}


def test_the_own_group_is_found_in_version_2(tmp_path):
    group = ControlGroup.of_this_process(made(tmp_path, VERSION_2))
    assert group.cores == 0.4
    assert group.usage == tmp_path / "groups/job/cpu.stat"


def test_a_group_without_a_quota_is_no_group(tmp_path):
    made(tmp_path / "1", {**VERSION_1, "groups/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"})
    made(tmp_path / "2", {**VERSION_2, "groups/job/cpu.max": "max 100000\n"})
    assert ControlGroup.of_this_process(tmp_path / "1") is None
    assert ControlGroup.of_this_process(tmp_path / "2") is None


# -- a quota above the worker's group, one that comes later, and a worker that is moved -----------------------------

NESTED_1 = {
    "proc/self/mounts": "cgroup /groups/cpu cgroup rw,cpu 0 0\ncgroup /groups/cpuacct cgroup rw,cpuacct 0 0\n",
    "proc/self/cgroup": "2:cpuacct:/pod/worker\n1:cpu:/pod/worker\n",
    "groups/cpu/cpu.cfs_quota_us": "-1\n",
    "groups/cpu/cpu.cfs_period_us": "10000\n",
    "groups/cpu/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
    "groups/cpu/pod/cpu.cfs_quota_us": "4000\n",
    "groups/cpu/pod/cpu.cfs_period_us": "10000\n",
    "groups/cpu/pod/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 1000000000\n",
    "groups/cpuacct/pod/cpuacct.usage": "7\n",
    "groups/cpu/pod/worker/cpu.cfs_quota_us": "-1\n",
    "groups/cpu/pod/worker/cpu.cfs_period_us": "10000\n",
    "groups/cpu/pod/worker/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
}
NESTED_2 = {
    "proc/self/mounts": "cgroup2 /groups cgroup2 rw 0 0\n",
    "proc/self/cgroup": "0::/pod/worker\n",
    "groups/cpu.stat": "usage_usec 1\n",
    "groups/pod/cpu.max": "4000 10000\n",
    "groups/pod/cpu.stat": "usage_usec 1\nnr_throttled 3\nthrottled_usec 1000000\n",
    "groups/pod/worker/cpu.stat": "usage_usec 1\n",  # as where the CPU controller ends above it
}
VERSIONS = [
    pytest.param(NESTED_1, "groups/cpu", "throttled_time 3000000000\n", id="version 1"),
    pytest.param(NESTED_2, "groups", "throttled_usec 3000000\n", id="version 2"),
]


def named(drivers, name):
    (driver,) = (driver for driver in drivers if driver.name == name)
    return driver


@pytest.fixture
def looking_always(monkeypatch):
    monkeypatch.setattr(control_group, "LOOKED_UP_EVERY", 0.0)


@pytest.mark.parametrize(("files", "cpu", "after"), VERSIONS)
def test_a_quota_on_a_group_above_the_workers_own_throttles_it_too(tmp_path, files, cpu, after):
    made(tmp_path, files)
    driver = named(default_drivers(root=tmp_path), "throttled")
    grown = twice(driver, lambda: (tmp_path / cpu / "pod/cpu.stat").write_text(after))
    assert grown == pytest.approx(2.0, rel=0.3)


@pytest.mark.parametrize(("files", "cpu", "after"), VERSIONS)
def test_a_quota_on_a_group_above_is_the_allowance_and_its_usage_is_read(tmp_path, files, cpu, after):
    group = ControlGroup.of_this_process(made(tmp_path, files))
    assert group.cores == 0.4
    assert group.lineage == tuple(tmp_path / cpu / inside for inside in ("pod/worker", "pod", ""))
    usage = {"groups/cpu": "groups/cpuacct/pod/cpuacct.usage", "groups": "groups/pod/cpu.stat"}[cpu]
    assert group.usage == tmp_path / usage
    assert named(all_drivers(root=tmp_path), "cpu_quota").sample() == 0.4


def test_the_smallest_quota_binds(tmp_path):
    made(tmp_path, {**NESTED_2, "groups/pod/worker/cpu.max": "1000 10000\n"})
    group = ControlGroup.of_this_process(tmp_path)
    assert group.cores == CPUQuota(group).sample() == 0.1
    (tmp_path / "groups/pod/worker/cpu.max").write_text("9000 10000\n")
    assert group.cores == 0.4


@pytest.mark.parametrize(
    ("quiet", "stat", "throttled"),
    [
        (
            {"groups/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"},
            "groups/cpu,cpuacct/job/cpu.stat",
            "throttled_time {}000",
        ),
        ({"groups/job/cpu.max": "max 100000\n"}, "groups/job/cpu.stat", "throttled_usec {}"),
    ],
    ids=["version 1", "version 2"],
)
def test_a_quota_that_is_set_after_the_driver_was_made_is_seen(tmp_path, quiet, stat, throttled):
    """As ``docker update --cpus`` sets it, or the bursts of ``paceline live``."""
    version = VERSION_1 if "cpuacct" in stat else VERSION_2
    made(tmp_path, {**version, **quiet, stat: throttled.format(0)})
    assert ControlGroup.of_this_process(tmp_path) is None
    driver = named(default_drivers(root=tmp_path), "throttled")
    assert twice(driver, lambda: (tmp_path / stat).write_text(throttled.format(2_000_000))) > 0
    assert driver.sample() == 0


def test_drivers_go_with_the_process_when_it_is_moved_and_begin_anew_there(tmp_path, looking_always):
    made(tmp_path, {**NESTED_2, "groups/other/cpu.stat": "throttled_usec 9000000\n"})
    made(tmp_path, {"groups/other/cpu.max": "2000 10000\n", "groups/other/cgroup.procs": f"{os.getpid()}\n"})
    throttled, quota, runnable = (
        named(all_drivers(root=tmp_path), name) for name in ("throttled", "cpu_quota", "runnable")
    )
    throttled.sample()
    assert throttled.sample() == 0
    (tmp_path / "proc/self/cgroup").write_text("0::/other\n")
    assert math.isnan(throttled.sample()), "the two groups' counters have nothing to do with each other"
    other = tmp_path / "groups/other/cpu.stat"
    assert twice(throttled, lambda: other.write_text("throttled_usec 11000000\n")) == pytest.approx(2.0, rel=0.3)
    assert quota.sample() == 0.2
    assert runnable.sample() == 0


def test_a_driver_of_a_group_that_was_named_stays_there(tmp_path, looking_always):
    group = ControlGroup.of_this_process(made(tmp_path, NESTED_2))
    quota = named(all_drivers(group, tmp_path), "cpu_quota")
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert quota.sample() == 0.4


@pytest.mark.parametrize(
    ("told", "folder"),
    [
        ("/kubepods/pod7/c0ffee", "groups"),  # the mount is the container's own group
        ("/kubepods/pod7/c0ffee/job", "groups/job"),  # and the worker is in a group inside it
        ("/../elsewhere", "groups"),  # out of what is mounted here
        ("/", "groups"),
    ],
)
def test_the_path_of_a_group_may_be_told_as_the_host_sees_it(tmp_path, told, folder):
    made(tmp_path, {**VERSION_2, "proc/self/cgroup": f"0::{told}\n", "elsewhere/cpu.max": "1 1\n"})
    assert ControlGroup.around_this_process(tmp_path).cpu == tmp_path / folder


def test_without_an_account_of_the_groups_cpu_time_the_pinned_cores_are_read(tmp_path):
    made(tmp_path, NESTED_1)
    (tmp_path / "groups/cpuacct/pod/cpuacct.usage").unlink()
    ticks = os.sysconf("SC_CLK_TCK")
    stat = made(tmp_path, {"proc/stat": "".join(f"cpu{n} 9 0 0 0 0 0 0 0 0 0\n" for n in range(512))}) / "proc/stat"
    busy = "".join(f"cpu{n} {9 + 4 * ticks} 0 0 0 0 0 0 0 0 0\n" for n in range(512))
    driver = named(default_drivers(root=tmp_path), "cpu_busy")
    assert twice(driver, lambda: stat.write_text(busy)) == pytest.approx(4.0, rel=0.3)


@pytest.fixture
def real_groups():
    """A real group with a quota of a tenth of a core, and one inside it without; both are removed."""
    mounts = mounted()
    tree = mounts.get("cpu") or mounts.get("")
    if tree is None:
        pytest.skip("no control groups are mounted")
    outer, inner = tree / f"paceline-test-{os.getpid()}", tree / f"paceline-test-{os.getpid()}" / "worker"
    with ExitStack() as made_groups:
        try:
            if "cpu" not in mounts:
                (tree / "cgroup.subtree_control").write_text("+cpu")
            for folder in (outer, inner):
                folder.mkdir()
                made_groups.callback(_removed, folder)
            if "cpu" in mounts:
                (outer / "cpu.cfs_period_us").write_text("10000")
                (outer / "cpu.cfs_quota_us").write_text("1000")
            else:
                (outer / "cpu.max").write_text("1000 10000")
        except OSError as error:
            pytest.skip(f"control groups cannot be written here: {error}")
        yield outer, inner


def _removed(folder):
    for _ in range(100):  # the kernel holds a group for a moment after its last process was reaped
        try:
            return folder.rmdir()
        except OSError:
            time.sleep(0.02)
    return folder.rmdir()


BUSY_CHILD = """
import sys
from paceline.recording.drivers import default_drivers
(driver,) = (one for one in default_drivers() if one.name == "throttled")
seen = [driver.sample()]
if sys.argv[2] == "moved later":
    seen.append(driver.sample())
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write("0")
if sys.argv[2] == "moved first":
    (driver,) = (one for one in default_drivers() if one.name == "throttled")
for _ in range(1000):  # enough for many periods of the quota, however fast the machine
    sum(range(2000))
    seen.append(driver.sample())
print(max(value for value in seen if value == value))
"""


@pytest.mark.parametrize("order", ["moved first", "moved later"])
@pytest.mark.parametrize("place", [0, 1], ids=["in the group with the quota", "in a group inside it"])
def test_a_busy_process_under_a_real_quota_is_told_as_throttled(real_groups, place, order):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", BUSY_CHILD, str(real_groups[place]), order]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    assert float(told) > 0
