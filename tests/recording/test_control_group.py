"""The control group that binds a process: found in both versions, above the process, and late."""

import pytest
from machine_files import NESTED_1, NESTED_2, made, twice

from paceline.recording import ControlGroup, all_covariates, default_covariates
from paceline.recording.control_group import find_mounts
from paceline.recording.covariates import cpu_quota

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
    group = ControlGroup.current(made(tmp_path, VERSION_1))
    assert group.cores == 0.4
    assert group.usage == tmp_path / "groups/cpu,cpuacct/job/cpuacct.usage"
    assert group.pressure == tmp_path / "groups/unified/job"
    assert set(find_mounts(tmp_path)) >= {"cpu", "cpuacct", ""}


def test_a_group_without_a_quota_has_no_limit(tmp_path):
    made(tmp_path / "1", {**VERSION_1, "groups/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n"})
    made(tmp_path / "2", {**VERSION_2, "groups/job/cpu.max": "max 100000\n"})
    assert ControlGroup.current(tmp_path / "1").cores is None
    assert ControlGroup.current(tmp_path / "2").cores is None


# -- a quota above the worker's group, and one that comes later ----------------------------------------------------

VERSIONS = [
    pytest.param(NESTED_1, "groups/cpu", "throttled_time 3000000000\n", id="version 1"),
    pytest.param(NESTED_2, "groups", "throttled_usec 3000000\n", id="version 2"),
]


def named(covariates, name):
    (covariate,) = (covariate for covariate in covariates if covariate.name == name)
    return covariate


@pytest.mark.parametrize(("files", "cpu", "after"), VERSIONS)
def test_quota_above_throttles_too(tmp_path, files, cpu, after):
    made(tmp_path, files)
    covariate = named(default_covariates(root=tmp_path), "throttled")
    grown = twice(covariate, lambda: (tmp_path / cpu / "pod/cpu.stat").write_text(after))
    assert grown == pytest.approx(2.0, rel=0.3)


@pytest.mark.parametrize(("files", "cpu", "after"), VERSIONS)
def test_quota_above_is_the_allowance(tmp_path, files, cpu, after):
    group = ControlGroup.current(made(tmp_path, files))
    assert group.cores == 0.4
    assert group.lineage == tuple(tmp_path / cpu / inside for inside in ("pod/worker", "pod", ""))
    usage = {"groups/cpu": "groups/cpuacct/pod/cpuacct.usage", "groups": "groups/pod/cpu.stat"}[cpu]
    assert group.usage == tmp_path / usage
    assert named(all_covariates(root=tmp_path), "cpu_quota").sample() == 0.4


def test_the_smallest_quota_binds(tmp_path):
    made(tmp_path, {**NESTED_2, "groups/pod/worker/cpu.max": "1000 10000\n"})
    group = ControlGroup.current(tmp_path)
    assert group.cores == cpu_quota(group).sample() == 0.1
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
def test_late_quota_is_seen(tmp_path, quiet, stat, throttled):
    """As ``docker update --cpus`` sets it, or the bursts of ``paceline live``."""
    version = VERSION_1 if "cpuacct" in stat else VERSION_2
    made(tmp_path, {**version, **quiet, stat: throttled.format(0)})
    assert ControlGroup.current(tmp_path).cores is None
    covariate = named(default_covariates(root=tmp_path), "throttled")
    assert twice(covariate, lambda: (tmp_path / stat).write_text(throttled.format(2_000_000))) > 0
    assert covariate.sample() == 0


@pytest.mark.parametrize(
    ("told", "folder"),
    [
        ("/kubepods/pod7/c0ffee", "groups"),  # the mount is the container's own group
        ("/kubepods/pod7/c0ffee/job", "groups/job"),  # and the worker is in a group inside it
        ("/../elsewhere", "groups"),  # out of what is find_mounts here
        ("/", "groups"),
    ],
)
def test_group_path_as_host_sees_it(tmp_path, told, folder):
    made(tmp_path, {**VERSION_2, "proc/self/cgroup": f"0::{told}\n", "elsewhere/cpu.max": "1 1\n"})
    assert ControlGroup.current(tmp_path).cpu == tmp_path / folder
