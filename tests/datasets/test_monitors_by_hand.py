"""Monitors, printed logs and profiles of ranks, each read by hand: headers, restarts, cells, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from paceline.datasets.formats.profilers import _covered, _is_span, alone
from paceline.datasets.formats.training_logs import parsed
from paceline.datasets.readers import FORMATS, read_traces

NAN = float("nan")


def written(tmp_path, text, name="m.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


HEAD = '"Dstat 0.7.4 CSV output"\n"Author:","Dag"\n'
NAMES = '"epoch","total cpu usage",,"dsk/total",,"own thing"\n"epoch","usr","sys","read","writ","x"\n'


def test_dstat_has_a_row_for_each_second_after_each_start(tmp_path):
    rows = "1,2,3,4,5,6\n2,3,4,5,,inf\n\n3,4,5,6,7,8\n" + HEAD + NAMES + "9,9,9,9,9,9\n4,5,6,7,8,9\n"
    (trace,) = read_traces(written(tmp_path, HEAD + NAMES + rows), "dstat")
    assert trace.covariate_names == ("epoch_epoch", "cpu_usr", "cpu_sys", "disk_read", "disk_writ", "own thing_x")
    np.testing.assert_array_equal(
        trace.covariates[:, 0], [[2, 3, 4, 5, NAN, NAN], [3, 4, 5, 6, 7, 8], [4, 5, 6, 7, 8, 9]]
    )
    assert trace.meta["units"] == (
        "epoch_epoch: as in the file; cpu_usr: percent; cpu_sys: percent; disk_read: B/s; disk_writ: B/s; "
        "own thing_x: as in the file"
    )
    assert (trace.meta["rows_read"], trace.meta["restarts"], trace.meta["period_seconds"]) == ("5", "1", "1")
    assert trace.meta["dropped"] == "2 first row, the mean since the machine booted"
    assert np.isnan(trace.speed).all()


def test_dstat_may_end_in_nul_bytes_or_with_a_header(tmp_path):
    begun = HEAD + NAMES + "1,2,3,4,5,6\n2,3,4,5,6,7\n"
    (cut,) = read_traces(written(tmp_path, begun + "3,4\0\0\n9,9,9,9,9,9\n"), "dstat")
    assert (len(cut), cut.meta["rows_read"], cut.meta["rows_dropped"]) == (1, "3", "2")
    (again,) = read_traces(written(tmp_path, begun + HEAD + NAMES), "dstat")
    assert (len(again), again.meta.get("restarts")) == (1, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + NAMES, "has no rows"),
        (HEAD + NAMES + "1,2,3,4,5,6\n", "has no row after the mean since boot"),
        (HEAD + NAMES + "1,2,3,4,5\n2,3,4,5,6,7\n", "row 5: must have 6 cells, got 5"),
        (HEAD + NAMES + "1,2,3,4,5,6\n2,3,x,5,6,7\n", "row 6, column 'cpu_sys': must hold a number, got 'x'"),
        (HEAD + "\n" * 8 + '"usr","sys"\n1,2\n3,4\n', "has no line of column names .usr, sys, .... in its first 10"),
        (HEAD + NAMES + "1,2,3,4,5,6\n" + HEAD + '"usr","sys"\n', "row 8: dstat was started again with other columns"),
    ],
)
def test_what_is_wrong_with_dstat_is_said(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read_traces(written(tmp_path, text), "dstat")


def test_the_tenth_line_of_dstat_may_name_its_columns(tmp_path):
    (trace,) = read_traces(written(tmp_path, HEAD + "\n" * 7 + '"usr","sys"\n1,2\n3,4\n'), "dstat")
    np.testing.assert_array_equal(trace.covariates[:, 0], [[3, 4]])


SAR = "# hostname;interval;timestamp;CPU;%user;%idle\n"


def test_sar_has_a_worker_for_each_core_and_one_for_all(tmp_path):
    rows = "h;-10;1700000005;-1;1;2\nh;10;1700000005;0;3;4\n\nh;0;1700000010;-1;;6\nh;10;1700000015;0;7;inf\n"
    (trace,) = read_traces(written(tmp_path, "h;9;1700000000;LINUX-RESTART\t(8 CPU)\n" + SAR + rows), "sar")
    assert trace.workers == ("h", "h cpu 0")
    assert trace.covariate_names == ("%user", "%idle")
    np.testing.assert_array_equal(trace.covariates[:, 0], [[1, 2], [NAN, 6]])
    np.testing.assert_array_equal(trace.covariates[:, 1], [[3, 4], [7, NAN]])
    assert trace.start[:, 0].tolist() == [1700000000, 1700000010]
    assert (trace.meta["rows_read"], trace.meta["restarts"]) == ("5", "1")
    assert trace.meta["dropped"] == "1 restarts of the machine"
    assert trace.meta["units"] == "%user: as sar names it; %idle: as sar names it"


def test_sar_may_hold_several_parts_and_only_some_workers_be_asked_for(tmp_path):
    plain = "# hostname;interval;timestamp;%memused\n"
    path = written(tmp_path, SAR + "h;10;1700000000;-1;1;2\n" + plain + "g;10;2023-11-14 22:13:20 UTC;5\n")
    cpu, memory = read_traces(path, "sar")
    assert (cpu.workers, cpu.covariates.tolist()) == (("h",), [[[1, 2]]])
    assert (memory.workers, memory.covariates.tolist()) == (("g",), [[[5]]])
    assert memory.start.tolist() == [[1700000000]]
    (only,) = read_traces(path, "sar", workers=["g"])
    assert (only.workers, only.meta["dropped"]) == (("g",), "1 rows of workers that were not asked for")
    with pytest.raises(ValueError, match=r"has no row of the workers \['z'\]"):
        read_traces(path, "sar", workers=["z"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SAR, "has no rows"),
        (SAR + "h;10;1700000000;-1;1\n", "row 2: must have 6 cells, got 5"),
        ("h;10;1700000000;-1;1;2\n", "row 1: a header such as '# hostname;interval;timestamp;...' must come first"),
        (SAR + "h;x;1700000000;-1;1;2\n", "row 2, column 'interval': must hold a number, got 'x'"),
        (SAR + "h;10;1700000000;-1;1;2\nh;10;1.7.0;-1;1;2\n", "row 3, column 'timestamp': must hold a number, got"),
        (SAR + "h;10;yesterday;-1;1;2\n", "row 2, column 'timestamp': must be a time like"),
    ],
)
def test_what_is_wrong_with_sar_is_said(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read_traces(written(tmp_path, text), "sar")


def test_monitors_are_recognised_near_their_beginning():
    at = Path("x")
    for before, found in ((0, True), (150, True), (300, False)):
        assert FORMATS["dstat"].recognises(at, " " * before + HEAD) is found
    assert not FORMATS["dstat"].recognises(at, "CSV output")
    assert not FORMATS["dstat"].recognises(at, "Dstat")
    for before, found in ((0, True), (900, True), (1000, False)):
        assert FORMATS["sar"].recognises(at, " " * before + SAR) is found


@pytest.mark.parametrize(
    ("kind", "line", "record"),
    [
        (
            *("pytorch_log", "Epoch: [3][ 10/500]\tTime 0.5 (0.6) Data 0.125 (0.1) Speed 64 (60)"),
            ("0", (3, 10), 32.0, 0.5, {"data_seconds": 0.125}),
        ),
        ("pytorch_log", "2: TRAIN [0][7/9]\tTime 0.25 (0.3) Tok/s 400 (1)", ("2", (0, 7), 100.0, 0.25, {})),
        ("pytorch_log", "Epoch: [3][10/500] | lr:0.1 Time 0.5", ("0", (3, 10), 1.0, 0.5, {})),
        ("pytorch_log", "Epoch: [3] Time 0.5", None),
    ],
)
def test_a_line_that_a_program_prints_is_a_record_of_its_numbers(kind, line, record):
    found = parsed(line)
    assert (None if found is None else tuple(found)) == record
    assert FORMATS[kind].recognises(Path("x"), f"first\r\n{line}\n") is (record is not None)
    assert not FORMATS[kind].recognises(Path("x"), " " * 4096 + line)


def test_what_a_line_says_of_data_is_known_a_line_later_in_the_same_run(tmp_path):
    lines = [
        *("Epoch: [0][0/9] Time 1.0 Data 0.5", "", "other", "Epoch: [0][1/9] Time 2.0"),
        *("Epoch: [0][2/9] Time 3.0 Data 0.7", "Epoch: [0][1/9] Time 4.0", "1: TRAIN [0][1/9] Time 5.0"),
        "Epoch: [0][2/9] Time 1e999",
    ]  # fmt: skip
    (trace,) = read_traces(written(tmp_path, "\n".join(lines) + "\n", "run.x.log"), "pytorch_log")
    assert trace.workers == ("0", "1")
    np.testing.assert_array_equal(trace.seconds, [[1, 5], [2, NAN], [3, NAN], [4, NAN]])
    np.testing.assert_array_equal(trace.covariates[:, 0, 0], [NAN, 0.5, NAN, NAN])
    told = {"job": "run", "rows_read": "7", "restarts": "1", "rows_dropped": "2"}
    assert {key: trace.meta[key] for key in told} == told
    assert trace.meta["dropped"] == "1 lines of other kinds, 1 lines with numbers that are not finite"
    with pytest.raises(ValueError, match="has no line with a speed or a time of this kind"):
        read_traces(written(tmp_path, "other\n"), "pytorch_log")


def slow_alone(collective, computing, began, ended):
    """Count half seconds in which a collective ran and no computing."""
    moments = np.arange(began, ended, 0.5) + 0.25

    def running(spans):
        return np.array([any(a <= at < b for a, b in spans) for at in moments], dtype=bool)

    return 0.5 * (running(collective) & ~running(computing)).sum()


def test_time_alone_is_that_of_every_half_second():
    rng = np.random.default_rng(0)
    for _ in range(100):
        spans = [np.sort(rng.integers(-2, 12, (rng.integers(0, 5), 2)) / 2.0, axis=1) for _ in range(2)]
        began, ended = np.sort(rng.integers(-1, 12, 2) / 2.0)
        assert alone(*spans, began, ended) == pytest.approx(slow_alone(*spans, began, ended))
    assert _covered(np.zeros((0, 2)), 0.0, 5.0) == 0.0


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        *(({}, True), ({"ph": "i"}, False), ({"ts": -1}, False), ({"dur": 0}, True), ({"ts": True}, False)),
        *(({"dur": "1"}, False), ({"ts": 1e18}, False), ({"ts": 9e17}, True), ({"dur": None}, False)),
        ({"dur": NAN}, False),
    ],
)  # fmt: skip
def test_a_span_of_a_profile_has_a_beginning_and_a_length(changed, taken):
    assert _is_span({"ph": "X", "ts": 5, "dur": 1.5, **changed}) is taken
    assert not _is_span([1])


def profile(path, rank, *spans):
    """An export with one step of 100 us, and these (name, category, beginning, length) on the device."""
    events = [("ProfilerStep#7", "user_annotation", 0, 100), ("ProfilerStep#7", "gpu_user_annotation", 0, 90), *spans]
    told = [{"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur} for name, cat, ts, dur in events]
    path.write_text(json.dumps({"traceEvents": told, **({} if rank is None else {"distributedInfo": {"rank": rank}})}))


def test_a_step_of_a_profile_is_without_the_time_of_collectives_alone(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    host = ("rccl", "cpu_op", 0, 99)
    profile(folder / "a.json", 1, ("ncclKernel", "kernel", 10, 30), ("gemm", "Kernel", 30, 50), host)
    profile(folder / "x_rank_0.json", None, ("RCCL", "kernel", 90, 50), ("copy", "gpu_memcpy", 95, 1))
    (trace,) = read_traces(folder, "torch_profiler")
    assert trace.workers == ("0", "1")
    np.testing.assert_allclose(trace.seconds, [[91e-6, 80e-6]])
    assert (trace.samples.tolist(), trace.meta["job"], trace.meta["rows_read"]) == ([[1, 1]], "job", "9")
