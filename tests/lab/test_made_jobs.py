import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.datasets import load
from paceline.lab import JOBS, MODELS, PATTERNS, USAGE, Job, places, plan, record_job
from paceline.lab.contention.competitor import KINDS
from paceline.lab.contention.patterns import OFF_SECONDS, ON_SECONDS
from paceline.lab.contention.stress import stress_ng
from paceline.lab.processes.places import PERIOD_SECONDS, remove_stale
from paceline.lab.processes.process import Process
from paceline.lab.record import made_job
from paceline.lab.record import made_worker as worker_module
from paceline.recording.control_group import mounted

PERIOD = round(PERIOD_SECONDS * 1e6)  # microseconds
TINY = {"name": "tiny", "model": "digits-mlp", "batch_size": 256, "workers": 2, "pattern": "none"}

plans = st.tuples(
    st.sampled_from(sorted(PATTERNS)), st.integers(1, 6), st.integers(1, 3), st.floats(1, 60), st.integers(0, 99)
)


def groups():
    return {folder for mount in set(mounted().values()) for folder in mount.glob(f"paceline-{os.getpid()}-*")}


def children():
    """The processes that this one started and that still run."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


@given(plans)
def test_a_plan_follows_from_its_seed(settings):
    assert plan(*settings) == plan(*settings)


@given(plans)
def test_spans_are_in_order_within_the_plan_and_beside_a_worker(settings):
    _, workers, _, seconds, _ = settings
    for competitor in plan(*settings):
        assert 0 <= competitor.worker < workers
        times = [moment for span in competitor.spans for moment in span]
        assert times == sorted(times)
        assert all(0 <= moment <= seconds for moment in times)


@pytest.mark.slow
@given(plans)
def test_a_longer_plan_begins_in_the_same_way(settings):
    pattern, workers, competitors, seconds, seed = settings
    longer = plan(pattern, workers, competitors, 2 * seconds, seed)
    for moment in np.linspace(0, seconds, 50, endpoint=False):
        assert busy(plan(*settings), moment) == busy(longer, moment)


def busy(competitors, moment):
    return sorted(c.worker for c in competitors if any(start <= moment < stop for start, stop in c.spans))


def test_another_seed_gives_another_plan():
    assert plan("bursty", 4, 1, 60, seed=0) != plan("bursty", 4, 1, 60, seed=1)


def test_without_contention_nobody_competes():
    assert plan("none", 4, 2, 60, 0) == []


def test_steady_competitors_are_always_there_beside_half_of_the_workers():
    competitors = plan("steady", 4, 2, 60, 0)
    assert len({c.worker for c in competitors}) == 2
    assert len(competitors) == 4
    assert all(c.spans == [(0.0, 60)] for c in competitors)


@pytest.mark.slow
def test_bursts_and_calms_have_their_mean_lengths_beside_every_worker():
    competitors = plan("bursty", 4, 1, 20_000, 0)
    assert [c.worker for c in competitors] == [0, 1, 2, 3]
    spans = [np.array(c.spans) for c in competitors]
    on = np.concatenate([s[:, 1] - s[:, 0] for s in spans])
    off = np.concatenate([s[1:, 0] - s[:-1, 1] for s in spans])
    assert on.mean() == pytest.approx(ON_SECONDS, rel=0.05)
    assert off.mean() == pytest.approx(OFF_SECONDS, rel=0.05)


@pytest.mark.parametrize("movers", [1, 2])
def test_movers_are_always_somewhere_and_visit_every_worker(movers):
    competitors = plan("moving", 4, movers, 300, 0)
    assert {c.worker for c in competitors} == {0, 1, 2, 3}
    assert all(len(busy(competitors, moment)) == movers for moment in np.linspace(0, 299, 200))


def test_an_unknown_pattern_is_answered_with_those_there_are():
    with pytest.raises(ValueError, match="bursty"):
        plan("sometimes", 4, 1, 60, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workers", 0),
        ("iterations", 0),
        ("competitors", 0),
        ("batch_size", 0),
        ("batch_size", (64,)),
        ("batch_size", (64, 0)),
        ("quota", 0.0),
        ("quota", float("nan")),
        ("pattern", "sometimes"),
        ("model", "digits-oracle"),
        ("kind", "network"),
        ("split", "both"),
    ],
)
def test_a_bad_job_is_an_error_that_names_the_field(field, value):
    with pytest.raises(ValueError, match=f"^{field} must"):
        Job(**{**TINY, field: value})


def test_the_shipped_jobs_cover_every_pattern_in_both_halves_with_different_models():
    fit, held_out = ([job for job in JOBS.values() if job.split == split] for split in ("fit", "held-out"))
    assert (len(fit), len(held_out)) == (4, 5)
    assert {job.pattern for job in fit} == set(PATTERNS)
    assert {job.pattern for job in held_out} == {*PATTERNS, USAGE}  # a usage trace is something never seen in fitting
    assert not {job.model for job in fit} & {job.model for job in held_out}
    assert len({job.seed for job in JOBS.values()}) == len(JOBS)
    assert all(name == job.name for name, job in JOBS.items())


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.slow
def test_every_model_learns(model, tmp_path):
    """One worker alone, in this process."""
    from torch import distributed

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        job = Job(name="tiny", model=model, batch_size=64, pattern="none", workers=1, iterations=60)
        losses = worker_module.record(job, 0, tmp_path)
    finally:
        distributed.destroy_process_group()
    assert len(losses) == 60 + worker_module.WARM_UP
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])


@pytest.mark.alone
def test_a_contended_worker_is_slower_and_nothing_is_left(tmp_path):
    """One worker has two competitors, the other has none."""
    before, seen = children(), []
    job = Job(**{**TINY, "pattern": "steady", "competitors": 2, "iterations": 12, "batch_size": 512})
    trace = record_job(job, tmp_path / "tiny.parquet", progress=seen.append)
    (contended,) = {c.worker for c in plan("steady", 2, 2, 1, 0)}
    speed_W = np.median(trace.speed, axis=0)
    assert speed_W[1 - contended] > 1.05 * speed_W[contended]  # about 2 to 3 with control groups, less when pinned
    assert seen == sorted(seen)
    assert seen[-1] == len(trace) == 12
    assert trace.covariates is not None
    assert trace.wait_seconds is not None
    assert dict(load(tmp_path / "tiny.parquet").meta) == dict(trace.meta)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.parquet"]
    assert children() == before
    assert not groups()


LIGHT = """
import json, sys, time
from pathlib import Path
told = json.loads(sys.stdin.readline())
with (Path(told["folder"]) / f"rank{told['rank']}.jsonl").open("w", buffering=1) as record:
    while True:
        record.write("{}\\n")
        if told["job"]["batch_size"][told["rank"]] > 10**12:
            raise MemoryError("there is no room for this batch")
        time.sleep(0.01)
"""
"""A worker that loads no library, and writes lines until it is ended, or given a batch that fits into no memory."""


@pytest.fixture
def nothing_left(tmp_path, monkeypatch):
    """Light workers, and a folder to record into: it is empty afterwards, and no process and no group is left."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "light_worker.py").write_text(LIGHT)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setattr(made_job, "WORKER", "light_worker")
    before, folder = children(), tmp_path / "traces"
    folder.mkdir()
    yield folder
    assert not list(folder.iterdir())
    assert children() == before
    assert not groups()


@pytest.mark.processes
def test_a_worker_that_dies_is_a_clear_error_and_nothing_is_left(nothing_left):
    job = Job(**{**TINY, "iterations": 10_000, "batch_size": (8, 10**13)})
    with pytest.raises(RuntimeError, match=r"worker 1 ended with status 1:\n(.|\n)*MemoryError: there is no room"):
        record_job(job, nothing_left / "tiny.parquet")


@pytest.mark.processes
def test_an_interrupted_recording_leaves_nothing(nothing_left):
    def interrupt(iterations):
        raise KeyboardInterrupt

    job = Job(**{**TINY, "iterations": 10_000, "batch_size": (8, 8)})
    with pytest.raises(KeyboardInterrupt):
        record_job(job, nothing_left / "tiny.parquet", progress=interrupt)


def test_a_recording_is_never_overwritten_nor_begun_without_a_place_to_write_to(tmp_path):
    (tmp_path / "there.parquet").write_text("precious")
    with pytest.raises(FileExistsError, match=r"there\.parquet exists"):
        record_job(Job(**TINY), tmp_path / "there.parquet")
    with pytest.raises(FileNotFoundError, match="no folder"):
        record_job(Job(**TINY), tmp_path / "nowhere" / "tiny.parquet")


def test_where_control_groups_cannot_be_written_workers_are_pinned_in_turn(tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    with places(len(cores) + 1, 0.4, root=tmp_path) as pinned:
        assert [place.cores for place in pinned] == [(core,) for core in [*cores, cores[0]]]
        assert "cannot be written" in pinned[0].isolation(0.4)


def made(folder, mounts):
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/mounts").write_text(mounts)
    for line in mounts.splitlines():
        (folder / line.split()[1].lstrip("/")).mkdir()
    return folder


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
def test_quotas_are_set_in_both_versions_of_control_groups(tmp_path, mounts, expected):
    made(tmp_path, mounts)
    with places(1, 0.4, root=tmp_path) as (place,):
        assert len(place.folders) == len(mounts.splitlines())
        for name, value in expected.items():
            folder, _, setting = name.partition("/")
            file = tmp_path / folder / f"paceline-{os.getpid()}-0" / setting
            assert file.read_text() == value
            file.unlink()  # the kernel's files vanish with their group, these do not
    assert not list(tmp_path.glob("*/paceline-*"))


def test_groups_are_removed_when_one_of_them_cannot_be_made(tmp_path):
    made(tmp_path, "cgroup2 /groups cgroup2 rw 0 0\n")
    (tmp_path / "groups" / f"paceline-{os.getpid()}-1").mkdir()
    blocked = tmp_path / "groups" / f"paceline-{os.getpid()}-0"
    blocked.write_text("a file where a group should be")
    with places(2, 0.4, root=tmp_path) as pinned:
        assert all(place.cores for place in pinned)


def test_quotas_beyond_the_cores_are_refused():
    cores = len(os.sched_getaffinity(0))
    with (
        pytest.raises(ValueError, match=f"quota must leave room for all workers on {cores} cores"),
        places(1, cores + 0.5),
    ):
        pass


def test_groups_of_recordings_that_were_killed_are_removed_at_the_next_start(tmp_path):
    """One was made by a process that is gone, one by this process, and one is none of ours."""
    made(tmp_path, "cgroup2 /groups cgroup2 rw 0 0\n")
    (tmp_path / "proc" / str(os.getpid())).mkdir()
    for name in ("paceline-4194305-0", f"paceline-{os.getpid()}-0", "somebody-4194305-0"):
        (tmp_path / "groups" / name).mkdir()
    assert remove_stale(tmp_path) == [tmp_path / "groups" / "paceline-4194305-0"]
    assert {path.name for path in (tmp_path / "groups").iterdir()} == {
        f"paceline-{os.getpid()}-0",
        "somebody-4194305-0",
    }


@pytest.mark.processes
@pytest.mark.parametrize("kind", [*sorted(KINDS), "stress-ng-cpu"])
def test_a_competitor_works_when_its_plan_says_and_ends_with_the_one_who_started_it(kind, tmp_path):
    """The plan is to work from the start on, for a minute; then its standard input is closed."""
    if kind == "stress-ng-cpu" and shutil.which("stress-ng") is None:
        pytest.skip("stress-ng is not installed")
    before = children()
    process = Process(
        "paceline.lab.contention.competitor", 0, tmp_path, {"place": {}, "kind": kind, "spans": [(0.0, 60.0)]}
    )
    process.tell("begin")
    family = psutil.Process(process.pid)
    deadline = time.monotonic() + 20
    while busy_or_stored(family) < 0.2 and not process.failed() and time.monotonic() < deadline:
        time.sleep(0.05)
    members = [family, *family.children(recursive=True)]
    assert busy_or_stored(family) >= 0.2
    assert not process.failed()
    process.end()
    assert not [member for member in members if member.is_running() and member.status() != "zombie"]
    assert children() == before


@pytest.mark.processes
def test_a_process_whose_parent_is_gone_before_it_looks_ends_whatever_it_does_next():
    """It would hold Python's lock, as torch does while ranks find each other, and no thread would notice."""
    code = "import sys; from paceline.lab.processes.orphan import die_with_parent\n"
    code += "sys.stdin.read(); die_with_parent(); sum(range(10**11))"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        try:
            process.communicate(b"go\n", timeout=30)
            assert process.returncode == 1
        finally:  # it would count for hours
            process.kill()


def busy_or_stored(family):
    """Return CPU seconds beyond Python's start, or blocks written, depending on the kind."""
    members = [family, *family.children(recursive=True)]
    seconds = sum(member.cpu_times().user + member.cpu_times().system for member in members)
    return max(seconds - 1.0, family.io_counters().write_bytes / 1e8)


def test_where_stress_ng_is_missing_its_kinds_say_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="'stress-ng-disk' need stress-ng"), stress_ng("stress-ng-disk"):
        pass
