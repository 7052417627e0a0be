"""Processes, control groups and competitors of a live experiment."""

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from paceline.lab.experiment_worker import compete
from paceline.lab.processes import quota_placement, start_until_exit

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
        assert len(place) == len(mounts.splitlines())
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
def test_processes_end_with_the_stack():
    before = set(children())
    with ExitStack() as stack:
        (pid,) = start_until_exit(stack, compete, [min(os.sched_getaffinity(0))], 1).pids()
        competitor, deadline = psutil.Process(pid), time.monotonic() + 60
        while sum(competitor.cpu_times()[:2]) < 3.0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sum(competitor.cpu_times()[:2]) >= 3.0
    assert not competitor.is_running()
    assert str(pid) not in set(children()) - before


@pytest.mark.processes
def test_processes_end_when_their_parent_is_killed():
    code = """
import os, time
from contextlib import ExitStack
from paceline.lab.experiment_worker import compete
from paceline.lab.processes import start_until_exit

if __name__ == "__main__":
    with ExitStack() as stack:
        print(*start_until_exit(stack, compete, [min(os.sched_getaffinity(0))], 1).pids(), flush=True)
        time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        competitor = psutil.Process(int(process.stdout.readline()))
        process.kill()
    competitor.wait(timeout=60)
