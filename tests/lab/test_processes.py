"""Processes, control groups and competitors of a live experiment."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from paceline.lab.processes import Process, quota_placement, wait_for_processes

PERIOD = 5000  # microseconds


def children():
    """The processes that this one started and that still run."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text("utf-8").split()


def test_no_control_groups_no_place(tmp_path):
    with quota_placement(0.4, root=tmp_path) as place:
        assert place is None


def mount(folder, mounts):
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mounts").write_text(mounts)
    for line in mounts.splitlines():
        (folder / line.split()[1].lstrip("/")).mkdir()


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        (
            "cgroup /cpu cgroup rw,cpu 0 0\ncgroup /cpuacct cgroup rw,cpuacct 0 0\ncgroup2 /unified cgroup2 rw 0 0\n",
            {"cpu/cpu.cfs_quota_us": f"{0.4 * PERIOD:.0f}", "cpu/cpu.cfs_period_us": f"{PERIOD}"},
        ),
        ("cgroup2 /groups cgroup2 rw 0 0\n", {"groups/cpu.max": f"{0.4 * PERIOD:.0f} {PERIOD}"}),
    ],
)
def test_quota_is_set_in_both_cgroup_versions(tmp_path, mounts, expected):
    mount(tmp_path, mounts)
    with quota_placement(0.4, root=tmp_path) as place:
        assert len(place.folders) == len(mounts.splitlines())
        for name, value in expected.items():
            folder, _, setting = name.partition("/")
            file = tmp_path / folder / f"paceline-{os.getpid()}-0" / setting
            assert file.read_text("utf-8") == value
            file.unlink()  # the kernel's files vanish with their group, these do not
    assert not list(tmp_path.glob("*/paceline-*"))


def test_groups_are_removed_after_a_failure(tmp_path):
    mount(tmp_path, "cgroup /cpu cgroup rw,cpu 0 0\ncgroup /cpuacct cgroup rw,cpuacct 0 0\n")
    (tmp_path / "cpuacct" / f"paceline-{os.getpid()}-0").write_text("a file where a group should be")
    with quota_placement(0.4, root=tmp_path) as place:
        assert place is None
    assert not list(tmp_path.glob("cpu/paceline-*"))


def test_remove_stale_removes_groups_of_dead_processes(tmp_path):
    mount(tmp_path, "cgroup2 /groups cgroup2 rw 0 0\n")
    (tmp_path / "proc" / str(os.getpid())).mkdir()
    others = {f"paceline-{os.getpid()}-0", "somebody-4194305-0"}
    for name in ("paceline-4194305-0", *others):
        (tmp_path / "groups" / name).mkdir()
    with quota_placement(0.4, root=tmp_path) as place:
        assert place is None, "no kernel makes its files here"
    assert {path.name for path in (tmp_path / "groups").glob("*-*")} == others


@pytest.mark.processes
def test_competitor_is_busy_until_its_parent_ends(tmp_path):
    before = children()
    process = Process("paceline.lab.competitor", 0, tmp_path, {"place": {}})
    competitor, deadline = psutil.Process(process.pid), time.monotonic() + 60
    while sum(competitor.cpu_times()[:2]) < 1.5 and process.status() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sum(competitor.cpu_times()[:2]) >= 1.5, process.last_output()
    process.end()
    assert not competitor.is_running()
    assert children() == before


@pytest.mark.processes
def test_wait_reports_the_output_of_a_failed_process(tmp_path, monkeypatch):
    (tmp_path / "failing.py").write_text("raise MemoryError('the batch does not fit')")
    monkeypatch.syspath_prepend(tmp_path)
    process = Process("failing", 3, tmp_path, {})
    try:
        with pytest.raises(RuntimeError, match=r"failing 3 ended with status 1:\n(.|\n)*the batch does not fit"):
            wait_for_processes([process])
    finally:
        process.end()


@pytest.mark.processes
def test_process_without_parent_ends_before_its_work():
    code = "import sys; from paceline.lab.processes import die_with_parent\n"
    code += "sys.stdin.read(); die_with_parent(); sum(range(10**11))"  # holds the GIL, so no thread would notice
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        try:
            process.communicate(b"go\n", timeout=60)
            assert process.returncode == 1
        finally:
            process.kill()
