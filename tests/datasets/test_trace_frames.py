"""Frames with times, gaps, names and units of their own become traces, or are refused in a sentence."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace, from_frame, read_traces
from paceline.datasets.bounded_parquet import read_frame
from paceline.datasets.frame import panels_of, require_dense
from paceline.datasets.health import health
from paceline.datasets.readers.plain import plain_table

FRAME = pd.DataFrame({"worker": "a", "iteration": [0, 1], "samples": 8.0, "seconds": [0.5, 0.25]})


def test_timedeltas_are_seconds_and_datetimes_seconds_since_1970():
    began = pd.Series(pd.to_datetime(["1970-01-01 00:00:01.5", "1970-01-02 00:00:00.0"]))
    frame = FRAME.assign(seconds=pd.to_timedelta([100, 200], unit="ms"), start=began, wait_seconds=pd.Timedelta("2s"))
    trace = from_frame(frame)
    np.testing.assert_allclose(trace.speed, [[80], [40]])
    np.testing.assert_allclose(trace.start, [[1.5], [86400]])
    np.testing.assert_allclose(trace.wait_seconds, 2.0)
    objects = frame.astype({"seconds": object, "start": object})  # as a frame made of Python's own times has them
    np.testing.assert_allclose(from_frame(objects).seconds, trace.seconds)
    np.testing.assert_allclose(from_frame(objects).start, trace.start)
    in_berlin = frame.assign(start=began.dt.tz_localize("Europe/Berlin"))
    np.testing.assert_allclose(from_frame(in_berlin).start, trace.start - 3600)


@pytest.mark.parametrize("precision", ["s", "ms", "us", "ns"])
def test_a_time_is_the_same_in_every_precision_of_numpy(precision):
    frame = FRAME.assign(
        seconds=np.array([2, 4], dtype="timedelta64[s]").astype(f"timedelta64[{precision}]"),
        start=np.array([10, 20], dtype="datetime64[s]").astype(f"datetime64[{precision}]"),
    )
    trace = from_frame(frame)
    np.testing.assert_array_equal(trace.seconds, [[2], [4]])
    np.testing.assert_array_equal(trace.start, [[10], [20]])


def test_a_missing_time_is_no_report():
    trace = from_frame(FRAME.assign(seconds=pd.to_timedelta(["1s", None]), start=pd.to_datetime([None, "1970-01-02"])))
    np.testing.assert_array_equal(trace.speed, [[8], [np.nan]])
    np.testing.assert_array_equal(trace.start, [[np.nan], [86400]])


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        ("seconds", pd.to_datetime(["2024-01-01", "2024-01-02"]), "'seconds' must not hold dates"),
        ("samples", pd.to_timedelta(["1s", "2s"]), "'samples' must not hold durations"),
        ("start", pd.to_timedelta(["1s", "2s"]), "'start' must not hold durations"),
        ("start", [1_700_000_000, 1_700_000_000_000_000_000], r"row 1 holds .*after the year 2100; name its unit"),
    ],
)
def test_times_of_the_wrong_kind_are_refused_and_never_guessed(column, values, sentence):
    with pytest.raises(ValueError, match=sentence):
        from_frame(FRAME.assign(**{column: values}))


def test_iterations_that_no_worker_reported_stay_a_gap_and_are_counted(tmp_path):
    frame = pd.DataFrame({"worker": "a", "iteration": [0, 1, 7], "samples": 8, "seconds": 1})
    trace = from_frame(frame)
    assert np.isfinite(trace.speed[:, 0]).tolist() == [True, True, *[False] * 5, True]
    assert trace.meta["absent"] == "5 of 8 iterations, for all workers"
    assert "no worker reported 5 of 8 iterations, for all workers" in health(trace).concerns
    again = Trace.load(trace.save(tmp_path / "t.parquet"))
    assert again.meta == trace.meta


@given(st.sets(st.integers(-1000, 1000), min_size=1, max_size=20))
def test_every_iteration_stands_as_far_from_the_first_as_its_number(numbers):
    frame = pd.DataFrame({"worker": "a", "iteration": sorted(numbers), "samples": 1, "seconds": 1})
    rows = np.flatnonzero(np.isfinite(from_frame(frame).speed[:, 0]))
    assert (rows + min(numbers)).tolist() == sorted(numbers)


@pytest.mark.parametrize("number", [1e30, 2.0**63, 2.0**53 + 2, -1e19, np.inf])
def test_iterations_beyond_what_a_whole_number_can_hold_are_refused(number):
    with pytest.raises(ValueError, match="'iteration' must hold whole numbers of at most 9007199254740992, but row 1"):
        from_frame(FRAME.assign(iteration=[0.0, number]))


def test_a_gap_that_would_fill_memory_is_refused():
    with pytest.raises(ValueError, match="a panel that would be nearly empty"):
        from_frame(FRAME.assign(iteration=[0, 10**12]))


@given(st.integers(1, 300_000), st.integers(1, 1000))
def test_a_panel_may_have_a_hundred_places_for_each_row_or_ten_million_and_not_one_more(rows, workers):
    most = max(10_000_000, 100 * rows) // workers
    require_dense(rows, most, workers)
    with pytest.raises(ValueError, match=f"{rows} rows name {workers} workers and {most + 1} iterations"):
        require_dense(rows, most + 1, workers)


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("iteration", 0.5, "row 1 holds 0.5"),
        ("iteration", np.nan, "row 1 holds nan"),
        ("seconds", "x", "row 1 holds 'x'"),
        ("start", 1e18, r"row 1 holds 1e\+18, after"),
    ],
)
def test_a_cell_that_is_refused_is_shown_as_it_was_written(column, value, said):
    with pytest.raises(ValueError, match=said):
        from_frame(FRAME.assign(**{column: [0, value]}))


def test_columns_and_units_are_mapped():
    frame = pd.DataFrame({"rank": ["x"], "step": 3, "duration_ms": 250, "waited": 100, "began": 1_700_000_000_000})
    columns = {"worker": "rank", "iteration": "step", "seconds": "duration_ms", "wait_seconds": "waited"}
    trace = from_frame(frame, columns={**columns, "start": "began", "samples": 8}, unit="ms", start_unit="ms")
    assert (trace.workers, trace.speed[0, 0], trace.wait_seconds[0, 0]) == (("x",), 32.0, pytest.approx(0.1))
    assert trace.start[0, 0] == 1.7e9
    assert trace.covariate_names == ()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"columns": {"speed": "x"}}, r"\['speed'\] are not a trace's; they can be mapped"),
        ({"columns": {"start": "x"}}, r"columns \['x'\] are missing"),
        ({"columns": {"seconds": "samples"}}, r"columns \['seconds'\] are there already"),
        ({"unit": "fortnights"}, "unit must be one of"),
        ({"start_unit": "x"}, None),  # there is no start, so its unit is not needed
    ],
)
def test_a_mapping_that_cannot_be_is_refused(arguments, sentence):
    if sentence is None:
        assert len(from_frame(FRAME, **arguments)) == 2
        return
    with pytest.raises(ValueError, match=sentence):
        from_frame(FRAME, **arguments)


def test_a_csv_file_takes_the_same_names_and_units_and_dates(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("rank,step,duration_ms,at\nx,0,250,2024-05-01 12:00:00\nx,1,500,2024-05-01T12:00:01.5\n")
    columns = {"worker": "rank", "iteration": "step", "seconds": "duration_ms", "start": "at", "samples": 8}
    (trace,) = read_traces(path, "csv", unit="ms", **columns)
    np.testing.assert_array_equal(trace.speed, [[32], [16]])
    assert np.diff(trace.start[:, 0]) == [1.5]
    assert trace.start[0, 0] == pd.Timestamp("2024-05-01 12:00:00").timestamp()


@pytest.mark.slow
def test_a_long_name_of_a_worker_does_not_fill_memory(tmp_path):
    rows = "".join(f"a,{k},1,1\n" for k in range(3000))
    (tmp_path / "t.csv").write_text(f"worker,iteration,samples,seconds\n{'b' * 500_000},0,1,1\n{rows}a,0,1,1\n")
    with pytest.raises(ValueError, match="names of at most 1000 characters"):
        read_traces(tmp_path / "t.csv")


def test_columns_that_are_numbered_are_covariates():
    trace = from_frame(FRAME.assign(**{"x": 1.0}).rename(columns={"x": 7}))
    assert trace.covariate_names == ("7",)


CELLS = [
    "1",
    "2.5",
    "007",
    "-3e2",
    "",
    "NA",
    "nan",
    "inf",
    "0x1F",
    "1_0",
    " 4",
    "a",
    "b c",
    '"d, e"',
    "TRUE",
    "1\n",
    "9" * 20,
]


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(CELLS), min_size=3, max_size=5), min_size=1, max_size=4), st.booleans())
@settings(max_examples=300, derandomize=True)
def test_plain_csv_is_read_as_pandas_reads_it_or_left_to_pandas(rows, numbers_only):
    if numbers_only:  # otherwise nearly every table would be left to pandas
        rows = [[row[0], "3", *["0.5" if cell in CELLS[4:] else cell for cell in row[2:4]]] for row in rows]
    header = ["worker", "iteration", "seconds", "load"][: max(map(len, rows))]
    text = "\n".join([",".join(header), *(",".join(row) for row in rows)]) + "\n"
    found = plain_table(io.BytesIO(text.encode()), len(text), header, "worker")
    if found is None:
        return
    expected = pd.read_csv(io.StringIO(text))
    assert list(found.columns) == list(expected.columns)
    assert list(found["worker"].astype(str)) == list(expected["worker"].astype(str))
    for name in header[1:]:
        np.testing.assert_array_equal(found[name].to_numpy(float), expected[name].to_numpy(float))


def test_plain_csv_is_not_left_to_pandas():
    text = "iteration,worker,samples,seconds,load\n0,a,8,0.5,\n0,b,8,1e-3,1\n"
    found = plain_table(io.BytesIO(text.encode()), len(text), text.splitlines()[0].split(","), "worker")
    assert list(found["worker"]) == ["a", "b"]
    np.testing.assert_array_equal(found["load"], [np.nan, 1.0])


@given(st.lists(st.sampled_from(["a", "b", "c d", "é", "10", "9"]), min_size=1, max_size=60), st.integers(1, 8))
@settings(max_examples=60, derandomize=True)
def test_the_workers_of_plain_csv_are_known_in_any_order_and_block(names, rounds):
    text = "worker,load\n" + "".join(f"{name},{n}\n" for n, name in enumerate(names * rounds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.datasets.readers.plain.BLOCK_BYTES", 64)
        found = plain_table(io.BytesIO(text.encode()), len(text), ["worker", "load"], "worker")
    assert found["worker"].tolist() == names * rounds
    assert found["load"].tolist() == list(range(len(names) * rounds))


def test_columns_of_one_name_are_refused_in_frames_and_files(tmp_path):
    for name in ("start", "samples", "iteration"):
        frame = FRAME.assign(start=[1.0, 2.0])
        frame = pd.concat([frame, frame[[name]]], axis=1)
        with pytest.raises(ValueError, match=rf"columns \['{name}'\] appear more than once; give each column"):
            from_frame(frame)
    with pytest.raises(ValueError, match=r"columns \['1'\] appear more than once"):
        from_frame(FRAME.assign(**{"1": 0.0}).assign(one=1.0).rename(columns={"one": 1}))
    table = pa.table([pa.array(frame.iloc[:, k]) for k in range(frame.shape[1])], names=list(frame.columns))
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=r"twice\.parquet: columns .* appear more than once"):
        Trace.load(tmp_path / "twice.parquet")
    for column in ("seconds", "load", "load "):
        (tmp_path / "twice.csv").write_text(f"iteration,worker,samples,seconds,load,{column}\n0,a,8,1,2,3\n")
        with pytest.raises(ValueError, match=rf"twice\.csv: columns \['{column.strip()}'\] appear more than once"):
            read_traces(tmp_path / "twice.csv")


def test_columns_of_parquet_that_are_read_one_by_one_are_those_that_pandas_reads(tmp_path, monkeypatch):
    frame = FRAME.assign(flag=[True, None], text=["x", None], count=[1, 2], load=[0.5, np.nan])
    frame.to_parquet(tmp_path / "plain.parquet")
    frame.rename(columns={"load": "text.load"}).to_parquet(tmp_path / "dotted.parquet")
    monkeypatch.setattr("paceline.datasets.bounded_parquet.PORTION_NUMBERS", 1)
    for name in ("plain", "dotted"):
        found, expected = read_frame(tmp_path / f"{name}.parquet")[0], pd.read_parquet(tmp_path / f"{name}.parquet")
        pd.testing.assert_frame_equal(found.astype(object), expected.astype(object))


def test_a_trace_shares_what_nobody_can_change_and_copies_the_rest():
    seconds = np.full((2, 1), 0.5)
    trace = Trace(np.full((2, 1), 8.0), seconds)
    seconds[0] = 9.0
    assert trace.seconds[0, 0] == 0.5
    assert replace(trace, meta={"job": "again"}).seconds is trace.seconds
    made = from_frame(FRAME)
    assert not made.seconds.flags.writeable
    FRAME.loc[0, "seconds"] += 1.0
    assert made.seconds[0, 0] == 0.5
    FRAME.loc[0, "seconds"] -= 1.0
    view = np.full((2, 2), 1.0)
    frozen = view[:, :1]
    frozen.setflags(write=False)
    held = Trace(frozen, frozen)
    view[0, 0] = 7.0  # a view that is read-only may still change
    assert held.samples[0, 0] == 1.0


def test_panels_put_together_from_a_table_are_taken_by_a_trace_without_a_copy():
    full = pd.DataFrame({"iteration": [0, 0, 1, 1], "worker": list("baba"), "samples": 8.0, "seconds": range(4)})
    for frame in (full, full[:3]):  # workers in another order, and a gap
        panels = panels_of(frame)
        made = Trace(panels["samples"], panels["seconds"], workers=panels["workers"])
        assert made.samples is panels["samples"]
        assert made.seconds is panels["seconds"]


@pytest.mark.parametrize("kind", ["float64", "float32", "Int64", "Float32", "object", "str", "int64[pyarrow]"])
@pytest.mark.parametrize("name", ["samples", "seconds", "comm_seconds"])
def test_numbers_of_every_type_are_read_alike_and_what_is_missing_is_nan(kind, name):
    plain = pd.DataFrame({"worker": list("abab"), "iteration": [0, 0, 1, 1], "samples": [8.0, 4.0, 8.0, 4.0]})
    plain["seconds"], plain["comm_seconds"] = [2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0]
    plain.loc[2, name] = np.nan
    other = plain.astype({name: kind}) if kind != "str" else plain.assign(**{name: plain[name].map("{:.0f}".format)})
    other.loc[2, name] = None
    expected, found = Trace.from_frame(plain), Trace.from_frame(other)
    for array in ("samples", "seconds", "comm_seconds"):
        assert getattr(found, array).dtype == np.float64
        np.testing.assert_array_equal(getattr(found, array), getattr(expected, array))
