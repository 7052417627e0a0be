"""The file of a live run: what a job writes into it is read back, whatever has become of either."""

import json
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bounded import bounded
from hypothesis import example, given
from hypothesis import strategies as st
from recorded_runs import iterations, written

from paceline.coordinator import LoadBalancer
from paceline.predictors import EWMA, Report
from paceline.recording import JsonLines, RunReader, newest_run_file, read_run, summary
from paceline.recording.records import Iteration


@pytest.mark.slow
def test_gain_is_against_equal_batches(tmp_path):
    *_, last = iterations(5)
    assert last.sizes.tolist() == [40, 20]
    numbers = summary(last)
    assert numbers["equal_seconds"] == pytest.approx(30 / 500)
    assert numbers["gain"] == pytest.approx(1 - 0.040 / 0.060)
    assert numbers["waiting_share"] == pytest.approx(0)
    written(tmp_path / "run.jsonl", iterations(200)).close()
    assert read_run(tmp_path / "run.jsonl").saved_share == pytest.approx(1 / 3, abs=0.01)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from recorded_runs import JsonLines, iterations
sink = JsonLines({path!r})
for record in iterations(7):
    sink(record)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.checkout
def test_killed_process_keeps_written_iterations(tmp_path, request):
    path = tmp_path / "run.jsonl"
    code = KILLED.format(tests=str(request.path.parent), path=str(path))
    environment = {"PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == -signal.SIGKILL
    assert len(read_run(path)) == 7


def test_resumed_run_continues_after_cut_line(tmp_path):
    path = tmp_path / "run.jsonl"
    written(path, iterations(4)).close()
    path.write_bytes(path.read_bytes()[:-40])
    assert len(read_run(path)) == 3
    written(path, iterations(2, workers=("gpu0", "gpu1", "gpu2"), speeds=(1000.0, 500.0, 500.0), first=3)).close()
    run = read_run(path)
    assert run.fleet_columns["index"].tolist() == [0, 1, 2, 3, 4]
    assert run.workers == ("gpu0", "gpu1", "gpu2")
    assert np.isnan(run.sizes[:3, 2]).all()
    assert np.isfinite(run.sizes[3:]).all()
    assert np.isfinite(run.makespan).all()


def test_reader_follows_growing_and_new_files(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = written(path, iterations(2))
    reader = RunReader(path)
    assert (reader.poll(), reader.poll()) == (2, 0)
    for record in iterations(3, first=2):
        sink(record)
    assert reader.poll() == 3
    assert reader.run().fleet_columns["index"].tolist() == [0, 1, 2, 3, 4]
    sink.close()
    path.unlink()
    written(path, iterations(1)).close()
    assert reader.poll() == 1
    assert len(reader) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "holds no iteration yet"),
        ("a,b\n1,2\n", "is not the record of a run"),
        ('{"seconds": [1]}\n', "is not the record of a run"),
        ('{"paceline_run": 99, "version": "9.1", "workers": ["a"]}\n', "written by paceline 9.1"),
    ],
)
def test_a_file_that_is_no_run_is_refused_by_name(tmp_path, content, sentence):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.jsonl .*" + sentence):
        read_run(path)


def test_the_newest_file_of_a_folder_is_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.jsonl file"):
        newest_run_file(tmp_path)
    for age, name in enumerate(("new.jsonl", "old.jsonl")):
        written(tmp_path / name, iterations(1)).close()
        import os

        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert newest_run_file(tmp_path).name == "new.jsonl"
    assert newest_run_file(tmp_path / "old.jsonl").name == "old.jsonl"


LARGE = """
import sys
import threading
from paceline.recording import RunReader, read_run
limit(megabytes={megabytes}, cpu_seconds=60)
reader = RunReader(sys.argv[1], keep={keep})
reader.poll()
print(len(reader), reader.skipped_lines, len(reader.run()))
"""


def test_long_run_takes_little_memory(tmp_path):
    path = tmp_path / "run.jsonl"
    written(path, iterations(1)).close()
    header, line, _ = path.read_bytes().splitlines(keepends=True)
    count = 50_000
    path.write_bytes(header + line * count)
    # As objects of Python these lines took 120 MB.
    assert bounded(LARGE.format(megabytes=48, keep=None), path) == f"{count} 0 {count}"
    assert bounded(LARGE.format(megabytes=12, keep=100), path) == f"{count} 0 100"


def test_work_round_trip_tells_waiting(tmp_path):
    records = [replace(record, work=record.sizes * np.array([1.0, 2.0])) for record in iterations(6)]
    written(tmp_path / "run.jsonl", records).close()
    run = read_run(tmp_path / "run.jsonl")
    assert run.trace().work.tolist() == [record.work.tolist() for record in records]
    last = summary(records[-1])  # the second worker's samples cost twice as much, so it is as fast as the first
    assert last["waiting_from_workers"] == pytest.approx(0)
    assert last["waiting_from_work"] == pytest.approx(last["waiting_share"])
    assert run.waiting(last=1).from_work == pytest.approx(last["waiting_from_work"])


def test_own_coordinator_record():
    balancer = LoadBalancer(EWMA(), workers=["a", "b"], global_batch=60)
    used, report = balancer.plan, Report(samples=[30, 30], seconds=[0.5, 1.0], comm_seconds=[0.25, 0.125])
    record = Iteration.of(used, report, balancer.step(report), time=5.0)
    assert (record.index, record.worker, record.time, record.agreed) == (0, "a", 5.0, True)
    assert record.sizes.tolist() == [30, 30]
    np.testing.assert_array_equal(record.forecast_seconds, used.seconds)
    np.testing.assert_array_equal(record.comm_seconds, [0.25, 0.125])
    again = Report(samples=record.plan.sizes, seconds=[0.5, np.nan])
    second = Iteration.of(record.plan, again, balancer.step(again))
    assert second.index == 1
    assert np.isnan(second.comm_seconds).all()
    assert np.isnan(second.wall_seconds)
    with pytest.raises(ValueError, match="before workers join or leave"):
        Iteration.of(second.plan, again, balancer.join("c"))


@pytest.mark.slow
@pytest.mark.checkout
def test_the_page_on_embedding_runs_as_it_stands(tmp_path, monkeypatch):
    """Its loops are cut to some iterations, and three workers of unequal speed train."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "howto" / "embedding.md").read_text("utf-8")
    codes = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(codes) == 2
    for code in codes:
        names = {"train": lambda sizes, weights: sizes / [300.0, 200.0, 100.0]}
        exec(code.replace("range(1000)", "range(20)"), names)
    names["outputs"][0].close()
    run = read_run(tmp_path / "run.jsonl")
    assert run.seconds.shape == (20, 3)


NAMES = st.lists(st.sampled_from(["a", "b", "gpu0", "gpu1"]), min_size=2, max_size=3, unique=True)


@pytest.mark.slow
@given(st.lists(st.tuples(NAMES, st.integers(1, 25), st.integers(0, 3), st.booleans()), min_size=2, max_size=4))
@example([(["a", "b"], 2, 0, True), (["c", "d"], 3, 0, True)])
@example([(["a", "b"], 2, 0, False), (["c", "d"], 9, 1, False)])
def test_reader_sees_replaced_files(runs):
    with tempfile.TemporaryDirectory() as folder:
        path, reader = Path(folder, "run.jsonl"), None
        for workers, first, more, in_place in runs:
            other = Path(folder, "other.jsonl")
            sink = written(other, iterations(first, workers, range(500, 500 + len(workers))))
            sink.close()
            path.write_bytes(other.read_bytes()) if in_place else other.replace(path)
            other.unlink(missing_ok=True)
            reader = reader or RunReader(path)
            reader.poll()
            sink = written(path, iterations(more, workers, range(500, 500 + len(workers)), first=first))
            sink.close()
            reader.poll()
            seen, held = reader.run(), read_run(path)
            assert seen.workers == held.workers
            np.testing.assert_array_equal(seen.fleet_columns["index"], held.fleet_columns["index"])
            np.testing.assert_array_equal(seen.seconds, held.seconds)


@pytest.mark.processes
def test_second_writer_is_refused_and_names_the_first(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    code = "import sys; sys.path[:0] = {}; from recorded_runs import iterations\n"
    code += "from paceline.recording import JsonLines\n"
    code += "sink = JsonLines(sys.argv[1]); [sink(one) for one in iterations(3)]; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code.format(sys.path), str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout.readline() == "ready\n"
        before = path.read_bytes()
        sink = JsonLines(path)
        for one in iterations(2):
            sink(one)
        assert path.read_bytes() == before
        assert re.search(rf"written by process {first.pid} on .* which started at \d{{4}}-", caplog.text)
        first.communicate("\n")
    sink = JsonLines(path)
    for one in iterations(2):
        sink(one)
    sink.close()
    assert len(read_run(path)) == 5


def test_two_sinks_of_one_process_share_a_file(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        sink = JsonLines(path)
        for one in iterations(2):
            sink(one)
    assert len(read_run(path)) == 4
    assert not caplog.text


def lines_of(path, batch, count):
    sink = JsonLines(path)
    for one in iterations(count):
        sink(one)
    sink.close()
    header, *rows, _ = map(json.loads, path.read_text("utf-8").splitlines())
    header["workers"], header["global_batch"] = [f"{batch}-{name}" for name in header["workers"]], batch
    total = sum(rows[0]["planned"])
    rows = [
        {**row, "planned": [batch - total + row["planned"][0], *row["planned"][1:]], "index": batch} for row in rows
    ]
    return header, rows


def test_interleaved_lines_read_by_own_header(tmp_path):
    """A file of a disk without locks: lines are the right job's."""
    one, two = (lines_of(tmp_path / f"{batch}.jsonl", batch, 5) for batch in (60, 90))
    mixed = [one[0], two[0], *(row for pair in zip(one[1], two[1], strict=True) for row in pair)]
    path = tmp_path / "both.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in mixed))
    run = read_run(path)
    index = run.fleet_columns["index"]
    for w, worker in enumerate(run.workers):
        of_worker = np.isfinite(run.seconds[:, w])
        assert set(index[of_worker]) <= {float(worker.partition("-")[0])}
    assert (len(run), run.skipped_lines) == (10, 0)
