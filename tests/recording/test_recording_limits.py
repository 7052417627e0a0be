"""Kernel files, covariates, places and merged records at their limits, each by hand."""

import gc
import json
import math
import os

import numpy as np
import pytest
from machine_files import NESTED_1, NESTED_2, made

from paceline.recording import control_group
from paceline.recording import launch as places
from paceline.recording.control_group import ControlGroup, File, cores_granted, field, number, quota_files, used_seconds
from paceline.recording.covariates import (
    CPUBusy,
    CPUQuota,
    MemoryAvailable,
    RunDelay,
    Runnable,
    Throttled,
    ThrottledTime,
)
from paceline.recording.launch import Place
from paceline.recording.merging import _named, merge, merge_what_is_sound, phase_table

NAN = float("nan")


def test_a_kernel_file_is_read_anew_each_time_and_closed_with_its_owner(tmp_path):
    path = tmp_path / "counter"
    path.write_text("12 us\n")
    file = File(path)
    assert (file.text(), file.number()) == (b"12 us\n", 12.0)
    path.write_text("7" * ((1 << 16) + 5))
    assert len(file.text()) == 1 << 16
    handle = file._handle
    os.fstat(handle)
    del file
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
    none = File(tmp_path / "none")
    assert none.text() == b""
    assert math.isnan(none.number())


def test_a_file_may_have_the_handle_zero_and_its_subject_may_go(monkeypatch):
    closed = []
    monkeypatch.setattr(control_group.os, "open", lambda path, flags: 0)
    monkeypatch.setattr(control_group.os, "close", closed.append)
    monkeypatch.setattr(control_group.os, "pread", lambda handle, count, at: b"%d %d %d" % (handle, count, at))
    file = File("/x")
    assert file.text() == b"0 65536 0"

    def gone(*arguments):
        raise OSError("gone")

    monkeypatch.setattr(control_group.os, "pread", gone)
    assert file.text() == b""
    del file
    gc.collect()
    assert closed == [0]


@pytest.mark.parametrize(
    ("text", "found"),
    [(b"42", 42), (b" 7\n8", 7), (b"", NAN), (b"  ", NAN), (b"-1", NAN), (b"x 3", NAN), (b"1.5", NAN)],
)
def test_the_number_of_a_text_is_its_first_word(text, found):
    assert number(text) == pytest.approx(found, nan_ok=True)
    assert field(b"key " + text, b"key") == pytest.approx(found, nan_ok=True)
    assert math.isnan(field(text, b"absent"))


def test_the_quota_of_a_group_is_read_in_both_versions(tmp_path):
    made(tmp_path, {"two/cpu.max": "150000 100000\n", "one/cpu.cfs_quota_us": "5\n", "one/cpu.cfs_period_us": "10\n"})
    assert [path.name for path in quota_files(tmp_path / "two")] == ["cpu.max"]
    assert [path.name for path in quota_files(tmp_path / "one")] == ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    assert [cores_granted(text) for text in (b"1 2 3", b"max 5", b"-1 5", b"0 5")] == [0.5, None, None, 0]
    assert used_seconds(b"user_usec 3\nusage_usec 1500000\n") == pytest.approx(1.5)
    assert used_seconds(b"1500000000\n") == pytest.approx(1.5)
    assert math.isnan(used_seconds(b""))


@pytest.mark.parametrize("files", [NESTED_1, NESTED_2], ids=["version 1", "version 2"])
def test_the_root_of_a_whole_tree_is_left_out(tmp_path, files):
    made(tmp_path, files)
    tree = tmp_path / ("groups" if files is NESTED_2 else "groups/cpu")
    inside = (tree / "pod" / "worker", tree / "pod")
    group = ControlGroup.around_this_process(tmp_path)
    assert group.lineage == (*inside, tree)
    assert group.above == group.lineage[1:]
    (tree / "release_agent").touch()
    group = ControlGroup.around_this_process(tmp_path)
    assert (group.cpu, group.lineage) == (inside[0], inside)
    told = (tmp_path / "proc/self/cgroup").read_text().replace("/pod/worker", "/")
    (tmp_path / "proc/self/cgroup").write_text(told)
    assert ControlGroup.around_this_process(tmp_path).lineage == (tree,)


def test_of_a_group_and_its_parents_the_smallest_quota_and_all_throttled_times_count(tmp_path):
    made(
        tmp_path,
        {
            "a/b/c/cpu.max": "30000 10000\n", "a/b/c/cpu.stat": "throttled_usec 1000000\n",
            "a/b/cpu.max": "5000 10000\n", "a/b/cpu.stat": "usage_usec 1\n",
            "a/cpu.max": "max 10000\n", "a/cpu.stat": "throttled_usec 500000\n",
        },
    )  # fmt: skip
    folders = (tmp_path / "a/b/c", tmp_path / "a/b", tmp_path / "a")
    group = ControlGroup(folders[0], tmp_path / "usage", folders[0], folders[1:])
    quota, throttled = CPUQuota(group), ThrottledTime(group)
    assert (quota.sample(), group.cores, throttled.seconds()) == (0.5, 0.5, 1.5)
    made(tmp_path, {"a/b/cpu.max": "max 10000\n", "a/cpu.stat": "throttled_usec 2500000\n"})
    assert (quota.sample(), throttled.seconds()) == (3.0, 3.5)
    made(tmp_path, {"a/b/c/cpu.max": "max 10000\n"})
    assert quota.sample() == os.cpu_count()
    alone = ControlGroup(tmp_path / "none", tmp_path / "usage", tmp_path)
    assert math.isnan(CPUQuota(alone).sample())
    assert math.isnan(ThrottledTime(alone).seconds())
    assert (CPUQuota(None).sample(), ThrottledTime(None).seconds()) == (os.cpu_count(), 0.0)
    assert [Throttled(None).sample() for _ in range(2)] == [0.0, 0.0]


def test_a_machine_that_does_not_tell_its_cores_has_one(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert CPUQuota(None).sample() == 1.0


def test_all_counters_of_a_core_are_busy_but_the_two_of_idling_and_those_of_guests(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3})
    core = "1 2 4 8 16 32 64 128 256 512"
    lines = "\n".join(["cpu 9 9", f"cpu0 {core}", f"cpu1 {core}", f"cpu3 {core}", f"cpu30 {core}", "intr 5"])
    covariate = CPUBusy(root=made(tmp_path, {"proc/stat": lines}))
    assert covariate._used() == pytest.approx(2 * (1 + 2 + 4 + 32 + 64 + 128) / os.sysconf("SC_CLK_TCK"))
    assert covariate._cores == 2


@pytest.mark.parametrize(("text", "known"), [("", False), ("5", False), ("5 7", True)])
def test_a_delay_that_is_not_told_is_not_known(tmp_path, text, known):
    covariate = RunDelay(made(tmp_path, {"proc/self/schedstat": text}))
    assert math.isnan(covariate.sample())
    assert math.isnan(covariate.sample()) is not known


def test_the_machine_tells_its_running_tasks_and_the_share_of_its_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    made(tmp_path, {"proc/loadavg": "0.5 0.4 0.3 7/100 5\n", "proc/meminfo": "MemTotal: 80 kB\nMemAvailable: 20 kB\n"})
    assert Runnable(None, tmp_path).sample() == 1.5
    assert MemoryAvailable(tmp_path).sample() == 0.25
    made(tmp_path, {"proc/loadavg": "0.5 0.4 0.3\n", "proc/meminfo": "MemTotal: 0 kB\nMemAvailable: 20 kB\n"})
    assert math.isnan(Runnable(None, tmp_path).sample())
    assert math.isnan(MemoryAvailable(tmp_path).sample())


def test_a_worker_enters_its_groups_and_stays_on_its_cores(tmp_path, monkeypatch):
    pinned = []
    monkeypatch.setattr(places.os, "sched_setaffinity", lambda who, cores: pinned.append((who, cores)))
    Place(cores=(1, 3)).enter()
    Place().enter()
    Place(folders=[str(tmp_path)]).enter()
    assert pinned == [(0, (1, 3))]
    assert (tmp_path / "cgroup.procs").read_text() == str(os.getpid())


COLUMNS = ["iteration", "samples", "seconds", "comm_seconds", "wait_seconds", "start"]


def record(path, *rows, worker="a", columns=COLUMNS, **more):
    header = {"schema_version": 1, "worker": worker, "columns": columns, "covariates": [], "meta": {}, **more}
    path.write_text("".join(f"{line}\n" for line in (json.dumps(header), *rows)))
    return path


def test_merge_fills_columns_some_workers_lack(tmp_path):
    row = "[0, 1, 1, 0, 0, 0]"
    paths = [record(tmp_path / name, row, worker=name) for name in "ab"]
    more = {"columns": [*COLUMNS, "work", "forward", "gpu_busy"], "covariates": ["gpu_busy"], "phases": ["forward"]}
    paths.append(record(tmp_path / "c", row[:-1] + ", 5, .5, 0.75]".replace(" .5", " 0.5"), worker="c", **more))
    trace = merge(paths)
    np.testing.assert_array_equal(trace.work, [[np.nan, np.nan, 5]])
    np.testing.assert_array_equal(trace.covariates[:, :, 0], [[np.nan, np.nan, 0.75]])
    np.testing.assert_array_equal(phase_table(paths)["forward"], [np.nan, np.nan, 0.5])
    with pytest.raises(ValueError, match=r"^worker a recorded no phases; an adapter such as `watch` records them$"):
        phase_table(paths[:2])
    assert [_named(list("abcd")[:count]) for count in range(5)] == ["", "a", "a, b", "a, b, c", "a, b, c and 1 more"]
    with pytest.raises(ValueError, match=r"^nothing to merge: no iteration in no files$"):
        merge([])


@pytest.mark.parametrize(
    ("first", "taken"),
    [("0", True), (2**53 - 1, True), (2**53, False), (-1, False), ("true", False), ("1.0", False), ("null", False)],
)
def test_an_iteration_is_a_whole_number_from_zero_that_a_float_holds(tmp_path, first, taken):
    path = record(tmp_path / "a", f"[{first}, 1, 1, 0, null, 0.5]")
    if taken:
        trace = merge([path])
        assert (len(trace), trace.start.item()) == (1, 0.5)
        assert math.isnan(trace.wait_seconds.item())
        return
    with pytest.raises(
        ValueError, match=r"^.*a, line 2: expected a list of 6 numbers, the first a whole one from 0, got"
    ):
        merge([path])


def test_rows_that_are_too_long_too_large_or_twice_are_refused(tmp_path):
    for row in ("[0, 1, 1, 0, 0]", "[0, 1, 1, 0, 0, 0, 0]", '[0, "1", 1, 0, 0, 0]', "[0, true, 1, 0, 0, 0]", "{}"):
        with pytest.raises(ValueError, match="line 2: expected a list of 6 numbers"):
            merge([record(tmp_path / "a", row)])
    with pytest.raises(ValueError, match="a: holds a number too large for float64"):
        merge([record(tmp_path / "a", f"[0, 1{'0' * 400}, 1, 0, 0, 0]")])
    with pytest.raises(ValueError, match="a: it holds an iteration twice"):
        merge([record(tmp_path / "a", "[3, 1, 1, 0, 0, 0]", "[4, 1, 1, 0, 0, 0]", "[3, 1, 1, 0, 0, 0]")])
    (tmp_path / "a").write_text("torn")
    with pytest.raises(ValueError, match="a holds no header: nothing was recorded in it"):
        merge([tmp_path / "a"])


def test_merge_what_is_sound_keeps_the_rest(tmp_path):
    """A recording that took hours is not refused for a broken row, a file without a header, or a negative time."""
    sound = [f"[{k}, 8, 0.5, 0, 0, {k}]" for k in range(4)]
    broken = [sound[0], "[1, 8, 0.", "[2, 8, -0.5, 0, 0, 2]", sound[0], sound[3]]
    paths = [record(tmp_path / "a", *sound), record(tmp_path / "b", *broken, worker="b")]
    paths += [tmp_path / "torn", record(tmp_path / "again", *sound), tmp_path / "gone"]
    paths[2].write_text("torn")
    trace, missing = merge_what_is_sound(paths)
    assert trace.workers == ("a", "b")
    np.testing.assert_array_equal(trace.seconds[:, 1], [0.5, np.nan, np.nan, 0.5])
    assert [str(path) in sentence for path, sentence in zip(paths[1:], missing, strict=True)] == [True] * 4
    assert "3 rows are left out; the first" in missing[0]
    assert merge_what_is_sound(paths[2:3]) == (None, missing[1:2])


def test_waiting_is_told_from_communication_only_where_all_workers_mixed_them(tmp_path):
    rows = ["[0, 1, 1, 3, 0, 0]", "[1, 1, 1, 2, 0, 0]"], ["[0, 1, 1, 5, 0, 0]", "[1, 1, 1, 1, 0, 0]"]
    for both in (True, False):
        paths = [
            record(tmp_path / name, *each, worker=name, wait_in_comm=name == "a" or both)
            for name, each in zip("ab", rows, strict=True)
        ]
        trace = merge(paths)
        assert trace.comm_seconds.tolist() == ([[3, 3], [1, 1]] if both else [[3, 5], [2, 1]])
        assert trace.wait_seconds.tolist() == ([[0, 2], [1, 0]] if both else [[0, 0], [0, 0]])


def test_work_that_nobody_knew_is_left_out(tmp_path):
    columns = [*COLUMNS, "work"]
    unknown = record(tmp_path / "a", "[0, 1, 1, 0, 0, 0, null]", columns=columns)
    known = record(tmp_path / "b", "[0, 1, 1, 0, 0, 0, 7]", worker="b", columns=columns)
    assert merge([unknown]).work is None
    assert merge([unknown, known]).work[0, 1] == 7
