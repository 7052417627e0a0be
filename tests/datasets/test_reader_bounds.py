"""Bounds of readers, each with what lies just within and just beyond it: sizes, times, trainings, rows of blocks."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
from test_readers_fuzz import GOOD, OPTIONS

from paceline.datasets import Trace, read_traces
from paceline.datasets.formats import cluster_traces, profilers
from paceline.datasets.formats.training_logs import trainings
from paceline.datasets.profiles import read_profiles
from paceline.datasets.readers import FORMATS, csv_rows, json_tables
from paceline.datasets.readers.files import numbered_lines
from paceline.datasets.readers.panel import Rows
from paceline.datasets.readers.tally import Tally
from paceline.datasets.units import TIMES, seconds_of


def test_every_unit_of_time_is_its_number_of_seconds():
    wanted = dict.fromkeys(("ns", "nsec", "nanoseconds"), 10.0**-9)
    wanted |= dict.fromkeys(("us", "usec", "microseconds"), 10.0**-6)
    wanted |= dict.fromkeys(("ms", "msec", "milliseconds"), 10.0**-3)
    wanted |= {"s": 1, "sec": 1, "seconds": 1, "min": 60, "minutes": 60, "h": 60 * 60, "hours": 60 * 60}
    assert {name: seconds_of(name) for name in TIMES} == pytest.approx(wanted, rel=1e-15)
    with pytest.raises(ValueError, match=re.escape(f"unit must be one of {list(wanted)}, got 'weeks'")):
        seconds_of("weeks")


# -- profiles ----------------------------------------------------------------------------------------------------


def test_communication_of_a_profile_may_take_no_time_and_never_less(tmp_path):
    path, header = tmp_path / "a.csv", "source,device,model,batch,seconds,comm_seconds,held\n"
    path.write_text(f"{header}x,gpu,net,8,0.5,0,\nx,gpu,net,9,0.5,,\n")
    assert read_profiles(path)["comm_seconds"].tolist() == pytest.approx([0.0, np.nan], nan_ok=True)
    path.write_text(f"{header}x,gpu,net,8,0.5,-1,\n")
    with pytest.raises(ValueError, match=r"a\.csv, row 2: comm_seconds must be a number, at least 0, got '-1'"):
        read_profiles(path)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_size_that_a_profile_scales_down_lies_below_a_thousand_million_millions(tmp_path, sign):
    path, most = tmp_path / "a_lstm.json", sign * 1e15
    within = float(np.nextafter(most, 0))
    path.write_text(f'{{"X": [[{within!r}, 1, 1, 1]], "Y": [[1]]}}')
    assert read_profiles(path, "flash")["held"].tolist() == [f"in {within * 1000:.0f}, out 1000, steps 10"]
    path.write_text(f'{{"X": [[{most!r}, 1, 1, 1]], "Y": [[1]]}}')
    with pytest.raises(ValueError, match="row 1: X must hold 4 numbers"):
        read_profiles(path, "flash")


# -- files -------------------------------------------------------------------------------------------------------


def test_lines_are_numbered_and_only_the_first_loses_its_mark_of_utf_8(tmp_path):
    path, mark = tmp_path / "a.txt", "\ufeff"
    path.write_bytes(f"{mark}a\r\nb\rc\n\n{mark}d\n".encode())
    assert list(numbered_lines(path)) == [(1, "a"), (2, "b"), (3, "c"), (4, ""), (5, f"{mark}d")]


def reader(name, **options):
    """Read a file as of a format, to the end."""
    return lambda path: list(FORMATS[name].read([path], **options))


@pytest.mark.parametrize(
    ("module", "name", "most", "read", "advice"),
    [
        (profilers, "PROFILE_BYTES", 1 << 30, reader("torch_profiler"), "profile fewer steps"),
        (profilers, "SUMMARY_BYTES", 1 << 26, reader("traceml_summary"), "this is no summary of a run"),
        (cluster_traces, "JSON_BYTES", 1 << 29, reader("fedscale"), "export it as CSV"),
        (json_tables, "JSON_BYTES", 1 << 29, reader("json"), "write one object a line instead, or CSV"),
        (json_tables, "JSON_BYTES", 1 << 29, reader("prometheus", values="rate"), "query a shorter range"),
        (cluster_traces, "JOB_LOG_BYTES", 1 << 30, cluster_traces.read_job_log, "cut it into lists of jobs"),
    ],
)
def test_a_json_file_that_is_read_whole_is_bounded_and_the_advice_is_its_own(
    tmp_path, monkeypatch, module, name, most, read, advice
):
    assert getattr(module, name) == most
    monkeypatch.setattr(module, name, 7)
    (tmp_path / "a.json").write_text("[\n1, 2]")
    (tmp_path / "b.json").write_text("[\n1, 23]")

    def refusal(path):
        with pytest.raises(ValueError, match=path.name) as refused:
            read(path)
        return str(refused.value)

    assert "larger" not in refusal(tmp_path / "a.json")
    assert refusal(tmp_path / "b.json").endswith(f"b.json: is larger than 7 bytes; {advice}")


# -- tables of usage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["supercloud_cpu", "supercloud_gpu"])
def test_only_the_workers_asked_for_are_read(tmp_path, name):
    header, row = GOOD[name].splitlines()[:2]
    place = header.split(",").index("Node" if name == "supercloud_cpu" else "gpu_index")
    cells = row.split(",")
    cells[place] += "9"
    path = tmp_path / "x.csv"
    path.write_text("\n".join([header, row, ",".join(cells)]) + "\n")
    options = OPTIONS.get(name, {})
    (whole,) = read_traces(path, name, **options)
    assert len(whole.workers) == 2
    for worker in whole.workers:
        (one,) = read_traces(path, name, workers=[worker], **options)
        assert one.workers == (worker,)
        np.testing.assert_array_equal(one.covariates, whole.select(workers=[worker]).covariates)


def test_events_before_and_after_a_google_trace_are_left_out_and_counted():
    time, tally = np.array([0.0, 1.0, np.nextafter(2.0**63, 0), 2.0**63 - 1, -1.0]), Tally()
    worker = pd.Series(list("abcde"), dtype="str")
    found = cluster_traces._within_the_trace(Rows(worker, time, np.arange(5.0)[:, None]), tally)
    assert found.worker.tolist() == ["b", "c"]
    assert found.time == pytest.approx(time[1:3] * 1e-6, rel=1e-15)
    assert found.values.tolist() == [[1.0], [2.0]]
    assert tally.meta()["dropped"] == "3 rows before or after the trace's time"


@pytest.mark.parametrize("headed", [True, False])
def test_a_wrong_time_in_a_later_block_of_rows_is_named_by_its_row(tmp_path, monkeypatch, headed):
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 200)
    rows = [f"2017-10-03 00:{k:02}:00 PDT,m1,{k}\n" for k in range(40)]
    rows[30] = "soon,m1,30\n"
    path = tmp_path / "cluster_cpu_util"
    path.write_text("".join([*(["time,machine_id,cpu_util\n"] if headed else []), *rows]))
    with pytest.raises(ValueError, match=f"row {32 if headed else 31}, column 'time': must be a time"):
        read_traces(path, "philly_cpu")


def test_mini_batches_of_nobody_are_refused_in_a_sentence(tmp_path):
    path = tmp_path / "job_1_norm.csv"
    path.write_text(",worker,gpu,time,batch_time_norm\n0,,25,1,500\n1,1,25,,250\n")
    with pytest.raises(ValueError, match=r"job_1_norm\.csv: has no row with a worker and a time"):
        read_traces(path, "pai_minibatch")


def test_a_speed_of_nothing_in_no_time_is_unknown_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        speed = Trace([[0.0, 1.0, 4.0]], [[0.0, 0.0, 2.0]]).speed
    np.testing.assert_array_equal(speed, [[np.nan, np.nan, 2.0]])


# -- scalars of one training -------------------------------------------------------------------------------------


def scalar(wall, step, value):
    return pd.DataFrame({"Wall time": wall, "Step": step, "Value": value}, dtype=float)


def are_one(tmp_path, long, short):
    return len(trainings({tmp_path / "long.csv": long, tmp_path / "short.csv": short})) == 1


@pytest.mark.parametrize(
    ("beside", "same"),
    [
        *(([-10.0], True), ([-10.1], True), ([-10.0, -9.0], True), ([-10.1, -10.0], True), ([-10.1, -10.2], False)),
        *(([200.0], True), ([200.0, 199.0], True), ([200.1, 200.0], True), ([200.1, 200.2], False), ([], True)),
    ],
)
def test_scalars_are_of_one_training_if_nine_in_ten_lie_within_a_usual_row_of_it(tmp_path, beside, same):
    """The longest of the rows is ten times as long as the usual one."""
    wall = np.array([*np.arange(0.0, 100.0, 10.0), 190.0])
    inside = np.linspace(1.0, 89.0, 10 - len(beside))
    short = np.sort([*inside, *beside])
    long = scalar(wall, wall / 2, np.arange(11.0))
    assert are_one(tmp_path, long, scalar(short, short / 2, -np.arange(10.0))) is same


@pytest.mark.parametrize(("off", "same"), [(10.0, True), (-10.0, True), (10.1, False), (-10.1, False)])
def test_scalars_are_of_one_training_if_steps_differ_by_two_usual_increments_at_most(tmp_path, off, same):
    wall = np.arange(0.0, 200.0, 10.0)
    step = np.cumsum([0.0, 40.0, *[5.0] * 18])  # one increment is far from usual
    long, short = scalar(wall, step, np.arange(20.0)), scalar(wall[5:], step[5:] + off, -np.ones(15))
    assert are_one(tmp_path, long, short) is same
    short.loc[3, "Step"] += 10_000  # one step does not count
    short.loc[4:, "Value"] = np.nan  # nor does a value
    short.loc[len(short)] = [np.nan, 1.0, 1.0]
    assert are_one(tmp_path, long, short) is same


@pytest.mark.parametrize(
    ("begins", "wrong", "by", "same"),
    [
        *((0.999, 0, 0, True), (-0.999, 0, 0, True), (1.0, 0, 0, False)),
        *((0.0, 1, 1e-5, True), (0.0, 2, 1e-5, False), (0.0, 2, 1e-7, True)),
    ],
)
def test_a_copy_with_other_times_is_of_the_training_whose_values_it_holds(tmp_path, begins, wrong, by, same):
    wall, step, value = np.arange(70.0, 180.0, 10.0), np.arange(11.0), np.linspace(0, 1, 11).round(3)
    copied = value[:10] + by * (np.arange(10) < wrong)
    long, short = scalar(wall, step, value), scalar(70 + begins + 500 * np.arange(10), step[:10], copied)
    assert are_one(tmp_path, long, short) is same
    assert not are_one(tmp_path, long, short[:1]), "one row tells nothing"
    assert wrong or are_one(tmp_path, long, short[:2]) is same
