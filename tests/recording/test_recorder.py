"""Kernel files, covariates, places and merged records at their limits, each by hand."""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.datasets import Trace
from paceline.recording import Recorder, merge, phase_table


class Counting:
    name, unit = "count", "samples so far"

    def __init__(self):
        self.asked = 0

    def sample(self):
        self.asked += 1
        return math.nan if self.asked == 2 else float(self.asked)


def record(path, worker="0", iterations=3, first=0, **settings):
    with Recorder(path, worker, **settings) as recorder:
        recorder.next_iteration = first
        for _ in range(iterations):
            with recorder.iteration(samples=64):
                pass
    return path


def test_waiting_and_communication_excluded(tmp_path, monkeypatch):
    moments = iter([10.0, 10.1, 10.3, 10.3, 10.7, 11.0])
    with Recorder(tmp_path / "0.jsonl", "0") as recorder:
        monkeypatch.setattr(time, "perf_counter", lambda: next(moments))
        with recorder.iteration(samples=8) as step:
            with step.waiting():
                pass
            with step.communicating():
                pass
        monkeypatch.undo()
    trace = merge([tmp_path / "0.jsonl"])
    assert trace.wait_seconds[0, 0] == pytest.approx(0.2)
    assert trace.comm_seconds[0, 0] == pytest.approx(0.4)
    assert trace.seconds[0, 0] == step.seconds == pytest.approx(0.4)
    assert abs(trace.start[0, 0] - time.time()) < 60


def test_covariates_sampled_before_iteration(tmp_path):
    with Recorder(tmp_path / "0.jsonl", "0", covariates=[Counting()]) as recorder:
        for _ in range(3):
            with recorder.iteration(samples=8) as step:
                assert len(step.covariates) == 1
    trace = merge([tmp_path / "0.jsonl"])
    assert trace.covariate_names == ("count",)
    np.testing.assert_array_equal(trace.covariates[:, 0, 0], [1, math.nan, 3])


def test_the_header_explains_the_columns(tmp_path):
    path = record(tmp_path / "0.jsonl", "gpu-7", covariates=[Counting()], meta={"job": "tiny"})
    header = json.loads(path.read_text("utf-8").splitlines()[0])
    assert header["worker"] == "gpu-7"
    assert header["columns"][0] == "iteration"
    assert header["units"]["count"] == "samples so far"
    assert set(header["columns"][1:]) == set(header["units"])
    assert merge([path]).meta == {"job": "tiny"}


def test_mixed_waiting_separated_when_merged(tmp_path):
    """The exchange ends for all together, so the worker that came last did not wait."""
    exposed = {"a": [0.5, 0.2, 0.3], "b": [0.1, 0.6, None]}
    for name, times in exposed.items():
        with Recorder(tmp_path / f"{name}.jsonl", name) as recorder:
            recorder.wait_in_comm = True
            for seconds in filter(None, times):
                step = recorder.begin()
                step.seconds, step.comm_seconds = 1.0, seconds
                recorder.write(step, 8)
    trace = merge(tmp_path / f"{name}.jsonl" for name in exposed)
    np.testing.assert_allclose(trace.comm_seconds, [[0.1, 0.1], [0.2, 0.2], [0.3, math.nan]])
    np.testing.assert_allclose(trace.wait_seconds, [[0.4, 0.0], [0.0, 0.4], [0.0, math.nan]])


def test_a_record_is_never_overwritten(tmp_path):
    path = record(tmp_path / "0.jsonl")
    before = path.read_text("utf-8")
    with pytest.raises(FileExistsError, match=r"0\.jsonl already exists"):
        record(path)
    assert path.read_text("utf-8") == before


def test_merge_aligns_by_iteration(tmp_path):
    whole = record(tmp_path / "a.jsonl", "a", iterations=4)
    late = record(tmp_path / "b.jsonl", "b", iterations=2, first=3)
    trace = merge([whole, late])
    assert trace.workers == ("a", "b")
    np.testing.assert_array_equal(trace.samples.T, [[64, 64, 64, 64, math.nan], [math.nan] * 3 + [64, 64]])


def test_a_torn_last_line_is_left_out(tmp_path):
    path = record(tmp_path / "0.jsonl", iterations=3)
    whole = path.read_bytes()
    for cut in range(1, 20):
        path.write_bytes(whole[:-cut])
        assert len(merge([path])) == 2


def test_files_that_cannot_be_merged_are_named(tmp_path):
    plain, driven = record(tmp_path / "a.jsonl", "a"), record(tmp_path / "b.jsonl", "b", covariates=[Counting()])
    np.testing.assert_array_equal(np.isfinite(merge([plain, driven]).covariates[0, :, 0]), [False, True])
    with pytest.raises(ValueError, match=r"no iteration in .*jsonl"):
        merge([record(tmp_path / "c.jsonl", iterations=0)])
    with pytest.raises(ValueError, match=r"a\.jsonl and .*a\.jsonl: .*worker"):
        merge([plain, plain])
    (tmp_path / "other.jsonl").write_text("[]\n")
    with pytest.raises(ValueError, match=r"other\.jsonl, line 1: not the header"):
        merge([tmp_path / "other.jsonl"])


HEADER = {
    "schema_version": 1,
    "worker": "0",
    "columns": ["iteration", "samples", "seconds", "comm_seconds", "wait_seconds", "start", "count"],
    "covariates": ["count"],
    "meta": {},
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema_version", 2),
        ("columns", None),
        ("columns", ["iteration", "samples"]),
        ("covariates", ["other"]),
        ("covariates", [["count"]]),
        ("worker", 7),
        ("meta", []),
        ("phases", "forward"),
        ("phases", ["forward"]),
    ],
)
def test_unexplained_columns_named_by_file(tmp_path, field, value):
    path = tmp_path / "0.jsonl"
    path.write_text(json.dumps(HEADER) + "\n[0, 8, 0.5, 0, 0, 1, 2]\n")
    assert merge([path]).seconds[0, 0] == 0.5
    path.write_text(json.dumps({**HEADER, field: value}) + "\n[0, 8, 0.5, 0, 0, 1, 2]\n")
    with pytest.raises(ValueError, match=r"0\.jsonl, line 1: not the header"):
        merge([path])


@given(st.integers(0, 10_000), st.binary(max_size=6), st.integers(0, 30))
def test_damaged_file_read_or_refused(at, instead, removed):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.jsonl"
        whole = (json.dumps(HEADER) + "\n" + "[0, 8, 0.5, 0, 0, 1, null]\n[1, 8, 0.5, 0, 0, 1, 2.5]\n").encode()
        at %= len(whole)
        path.write_bytes(whole[:at] + instead + whole[at + removed :])
        try:
            assert len(merge([path])) in (1, 2)
        except ValueError as error:
            sentence = str(error)
            assert any(word in sentence for word in ("0.jsonl", "none of the 1 files", "must be finite")), sentence


ENDLESS = """
import sys
from paceline.recording.recorder import Recorder
with Recorder(sys.argv[1], "0") as recorder:
    while True:
        with recorder.iteration(samples=8):
            pass
        print(recorder.next_iteration, flush=True)
"""


def test_killed_recorder_keeps_ended_iterations(tmp_path):
    path = tmp_path / "0.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        told = 0
        while told < 200:
            told = int(process.stdout.readline())
        process.kill()
        told = max([told, *(int(line) for line in process.stdout.read().split(b"\n")[:-1])])
    trace = merge([path])
    assert len(trace) >= told
    assert not np.isnan(trace.seconds).any()


COLUMNS = ["iteration", "samples", "seconds", "comm_seconds", "wait_seconds", "start"]


def file_of(path, *rows, worker="a", columns=COLUMNS, **more):
    header = {"schema_version": 1, "worker": worker, "columns": columns, "covariates": [], "meta": {}, **more}
    path.write_text("".join(f"{line}\n" for line in (json.dumps(header), *rows)))
    return path


def test_merge_fills_columns_some_workers_lack(tmp_path):
    row = "[0, 1, 1, 0, 0, 0]"
    paths = [file_of(tmp_path / name, row, worker=name) for name in "ab"]
    more = {"columns": [*COLUMNS, "work", "forward", "gpu_busy"], "covariates": ["gpu_busy"], "phases": ["forward"]}
    paths.append(file_of(tmp_path / "c", row[:-1] + ", 5, .5, 0.75]".replace(" .5", " 0.5"), worker="c", **more))
    trace = merge(paths)
    np.testing.assert_array_equal(trace.work, [[np.nan, np.nan, 5]])
    np.testing.assert_array_equal(trace.covariates[:, :, 0], [[np.nan, np.nan, 0.75]])
    np.testing.assert_array_equal(phase_table(paths)["forward"], [np.nan, np.nan, 0.5])
    with pytest.raises(ValueError, match=r"^worker a recorded no phases: record with an adapter such as `watch`$"):
        phase_table(paths[:2])
    with pytest.raises(ValueError, match=r"^nothing to merge: no iteration in no files$"):
        merge([])


@pytest.mark.parametrize(
    ("first", "taken"),
    [("0", True), (2**53 - 1, True), (2**53, False), (-1, False), ("true", False), ("1.0", False), ("null", False)],
)
def test_iteration_number_is_whole(tmp_path, first, taken):
    path = file_of(tmp_path / "a", f"[{first}, 1, 1, 0, null, 0.5]")
    if taken:
        trace = merge([path])
        assert (len(trace), trace.start.item()) == (1, 0.5)
        assert math.isnan(trace.wait_seconds.item())
        return
    with pytest.raises(
        ValueError, match=r"^.*a, line 2: expected a list of 6 numbers that begins with an iteration, got"
    ):
        merge([path])


def test_long_large_or_repeated_rows_refused(tmp_path):
    for row in ("[0, 1, 1, 0, 0]", "[0, 1, 1, 0, 0, 0, 0]", '[0, "1", 1, 0, 0, 0]', "[0, true, 1, 0, 0, 0]", "{}"):
        with pytest.raises(ValueError, match="line 2: expected a list of 6 numbers"):
            merge([file_of(tmp_path / "a", row)])
    with pytest.raises(ValueError, match="a, line 2: a number is too large for float64"):
        merge([file_of(tmp_path / "a", f"[0, 1{'0' * 400}, 1, 0, 0, 0]")])
    with pytest.raises(ValueError, match="a, line 4: iteration 3 was recorded before"):
        merge([file_of(tmp_path / "a", "[3, 1, 1, 0, 0, 0]", "[4, 1, 1, 0, 0, 0]", "[3, 1, 1, 0, 0, 0]")])
    (tmp_path / "a").write_text("torn")
    with pytest.raises(ValueError, match="a has no complete line, so nothing was recorded in it"):
        merge([tmp_path / "a"])


def test_record_keeps_what_is_sound(tmp_path):
    """A recording that took hours is not refused for a broken row, a file without a header, or a negative time."""
    made, sound = tmp_path / "made", [f"[{k}, 8, 0.5, 0, 0, {k}]" for k in range(4)]
    made.mkdir()
    file_of(made / "rank0.jsonl", *sound)
    file_of(made / "rank1.jsonl", sound[0], "[1, 8, 0.", "[2, 8, -0.5, 0, 0, 2]", sound[0], sound[3], worker="b")
    (made / "rank2.jsonl").write_text("torn\ntorn\n")
    file_of(made / "rank3.jsonl", *sound)
    written = ["cp", "-r", f"{made}/.", str(tmp_path / "train")]
    done = CliRunner().invoke(app, ["record", "--out", str(tmp_path), "--name", "train", "--", *written])
    assert done.exit_code == 0, done.output
    trace, said = Trace.load(tmp_path / "train.parquet"), done.output.replace("\n", "")
    assert trace.workers == ("a", "b")
    np.testing.assert_array_equal(trace.seconds[:, 1], [0.5, np.nan, np.nan, 0.5])
    assert "rank1.jsonl: 3 rows are left out; the first" in said
    assert "left out: " in said.partition("rank2.jsonl")[0]
    assert "rank3.jsonl, as an earlier file holds worker a already" in said
