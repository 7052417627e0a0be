"""Frames with times, gaps, names and units of their own become traces, or are refused in a sentence."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.datasets import Trace, read_traces

FRAME = pd.DataFrame({"worker": "a", "iteration": [0, 1], "samples": 8.0, "seconds": [0.5, 0.25]})


def test_timedeltas_and_datetimes_become_seconds():
    began = pd.Series(pd.to_datetime(["1970-01-01 00:00:01.5", "1970-01-02 00:00:00.0"]))
    frame = FRAME.assign(seconds=pd.to_timedelta([100, 200], unit="ms"), start=began, wait_seconds=pd.Timedelta("2s"))
    trace = Trace.from_frame(frame)
    np.testing.assert_allclose(trace.speed, [[80], [40]])
    np.testing.assert_allclose(trace.start, [[1.5], [86400]])
    np.testing.assert_allclose(trace.wait_seconds, 2.0)
    objects = frame.astype({"seconds": object, "start": object})  # as a frame made of Python's own times has them
    np.testing.assert_allclose(Trace.from_frame(objects).seconds, trace.seconds)
    np.testing.assert_allclose(Trace.from_frame(objects).start, trace.start)
    in_berlin = frame.assign(start=began.dt.tz_localize("Europe/Berlin"))
    np.testing.assert_allclose(Trace.from_frame(in_berlin).start, trace.start - 3600)


def test_a_missing_time_is_no_report():
    trace = Trace.from_frame(
        FRAME.assign(seconds=pd.to_timedelta(["1s", None]), start=pd.to_datetime([None, "1970-01-02"]))
    )
    np.testing.assert_array_equal(trace.speed, [[8], [np.nan]])
    np.testing.assert_array_equal(trace.start, [[np.nan], [86400]])


@pytest.mark.parametrize(
    ("column", "values", "sentence"),
    [
        (
            "seconds",
            pd.to_datetime(["2024-01-01", "2024-01-02"]),
            "'seconds' must hold numbers or durations, got dates",
        ),
        ("samples", pd.to_timedelta(["1s", "2s"]), "'samples' must hold numbers, got durations"),
        ("start", pd.to_timedelta(["1s", "2s"]), "'start' must hold numbers, got durations"),
        ("start", [1_700_000_000, 1_700_000_000_000_000_000], r"row 1 holds .*after the year 2100; name its unit"),
    ],
)
def test_wrong_kinds_of_times_refused(column, values, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trace.from_frame(FRAME.assign(**{column: values}))


@given(st.sets(st.integers(-1000, 1000), min_size=1, max_size=20))
def test_iterations_keep_their_distance(numbers):
    frame = pd.DataFrame({"worker": "a", "iteration": sorted(numbers), "samples": 1, "seconds": 1})
    rows = np.flatnonzero(np.isfinite(Trace.from_frame(frame).speed[:, 0]))
    assert (rows + min(numbers)).tolist() == sorted(numbers)


def test_columns_and_units_are_mapped():
    frame = pd.DataFrame({"rank": ["x"], "step": 3, "duration_ms": 250, "waited": 100, "began": 1_700_000_000_000})
    columns = {"worker": "rank", "iteration": "step", "seconds": "duration_ms", "wait_seconds": "waited"}
    trace = Trace.from_frame(frame, columns={**columns, "start": "began", "samples": 8}, unit="ms", start_unit="ms")
    assert (trace.workers, trace.speed[0, 0], trace.wait_seconds[0, 0]) == (("x",), 32.0, pytest.approx(0.1))
    assert trace.start[0, 0] == 1.7e9
    assert trace.covariate_names == ()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"columns": {"speed": "x"}}, r"\['speed'\] are not columns of a trace; those that can be mapped"),
        ({"columns": {"start": "x"}}, r"columns \['x'\] are missing"),
        ({"columns": {"seconds": "samples"}}, r"columns \['seconds'\] exist already"),
        ({"unit": "fortnights"}, "unit must be one of"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trace.from_frame(FRAME, **arguments)


@pytest.mark.slow
def test_long_worker_name_refused(tmp_path):
    rows = "".join(f"a,{k},1,1\n" for k in range(3000))
    (tmp_path / "t.csv").write_text(f"worker,iteration,samples,seconds\n{'b' * 500_000},0,1,1\n{rows}a,0,1,1\n")
    with pytest.raises(ValueError, match="names of at most 1000 characters"):
        read_traces(tmp_path / "t.csv")


def test_repeated_column_names_refused(tmp_path):
    for name in ("start", "samples", "iteration"):
        frame = FRAME.assign(start=[1.0, 2.0])
        frame = pd.concat([frame, frame[[name]]], axis=1)
        with pytest.raises(ValueError, match=rf"columns \['{name}'\] appear more than once; rename all but one"):
            Trace.from_frame(frame)
    with pytest.raises(ValueError, match=r"columns \['1'\] appear more than once"):
        Trace.from_frame(FRAME.assign(**{"1": 0.0}).assign(one=1.0).rename(columns={"one": 1}))
    table = pa.table([pa.array(frame.iloc[:, k]) for k in range(frame.shape[1])], names=list(frame.columns))
    pq.write_table(table, tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=r"twice\.parquet: columns .* appear more than once"):
        Trace.load(tmp_path / "twice.parquet")
    for column in ("seconds", "load", "load "):
        (tmp_path / "twice.csv").write_text(f"iteration,worker,samples,seconds,load,{column}\n0,a,8,1,2,3\n")
        with pytest.raises(ValueError, match=rf"twice\.csv: columns \['{column.strip()}'\] appear more than once"):
            read_traces(tmp_path / "twice.csv")


def test_trace_copies_changeable_arrays():
    trace = Trace(np.full((2, 1), 8.0), np.full((2, 1), 0.5))
    assert replace(trace, meta={"job": "again"}).seconds is trace.seconds
    made = Trace.from_frame(FRAME)
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


@pytest.mark.parametrize("kind", ["float64", "float32", "Int64", "Float32", "object", "str", "int64[pyarrow]"])
@pytest.mark.parametrize("name", ["samples", "seconds", "comm_seconds"])
def test_number_types_read_alike(kind, name):
    plain = pd.DataFrame({"worker": list("abab"), "iteration": [0, 0, 1, 1], "samples": [8.0, 4.0, 8.0, 4.0]})
    plain["seconds"], plain["comm_seconds"] = [2.0, 4.0, 6.0, 8.0], [1.0, 2.0, 3.0, 4.0]
    plain.loc[2, name] = np.nan
    other = plain.astype({name: kind}) if kind != "str" else plain.assign(**{name: plain[name].map("{:.0f}".format)})
    other.loc[2, name] = None
    expected, found = Trace.from_frame(plain), Trace.from_frame(other)
    for array in ("samples", "seconds", "comm_seconds"):
        assert getattr(found, array).dtype == np.float64
        np.testing.assert_array_equal(getattr(found, array), getattr(expected, array))


NAN = float("nan")
ROWS = pd.DataFrame({"worker": ["a", "b"], "iteration": [0, 0], "samples": [8, 4], "seconds": [1.0, 2.0]})


@pytest.mark.parametrize("name", ["samples", "seconds", "comm_seconds", "wait_seconds", "work"])
def test_negative_amounts_refused(name):
    frame = ROWS.assign(start=-3, load=-4, comm_seconds=0, wait_seconds=0, work=0)
    trace = Trace.from_frame(frame)
    assert (trace.start == -3).all()
    assert (trace.covariates == -4).all()
    with pytest.raises(ValueError, match=f"^column '{name}' must hold numbers from 0 to .*, but row 1 holds"):
        Trace.from_frame(frame.assign(**{name: [0.0, -1e-9]}))


def test_worker_names_in_number_order():
    for names, expected in (
        (["10", "9", "08"], ["08", "9", "10"]),
        (["1" + "0" * 17, "9"], ["9", "1" + "0" * 17]),
        (["1" + "0" * 18, "9"], ["1" + "0" * 18, "9"]),
        (["10", "9", "b"], ["10", "9", "b"]),
        (["10", "9", "-1"], ["-1", "10", "9"]),
        (["10", "9", "²"], ["10", "9", "²"]),
    ):
        frame = pd.DataFrame({"worker": names, "iteration": 0, "samples": range(len(names)), "seconds": 1})
        trace = Trace.from_frame(frame)
        assert trace.workers == tuple(expected)
        assert trace.samples[0].tolist() == [names.index(name) for name in expected]


def test_a_number_and_its_text_are_one_worker():
    frame = pd.DataFrame({"worker": [1, "1", 10, 2], "iteration": [0, 1, 0, 0], "samples": [5, 6, 7, 8], "seconds": 1})
    trace = Trace.from_frame(frame)
    assert trace.workers == ("1", "2", "10")
    np.testing.assert_array_equal(trace.samples, [[5, 8, 7], [6, NAN, NAN]])
