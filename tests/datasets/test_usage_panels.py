"""Rows of usage on a grid, against a slow definition: one row at a time, whatever buckets they go through."""

import os
from contextlib import ExitStack
from itertools import pairwise
from math import floor

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets.readers import panel
from paceline.datasets.readers.panel import Buckets, Coded, Layout, Rows, usage_traces
from paceline.datasets.readers.tally import Tally

NAN = float("nan")
LAYOUT = Layout(covariates={"x": "%", "y": "s"}, period=10.0, meta={"source": "made"})
CELLS = st.sampled_from([NAN, 1.0, 2.0, 5.0])
ROWS = st.tuples(
    st.sampled_from(["b", "a", "c", None]), st.sampled_from([NAN, 0, 1, 5, 10, 10, 24.5, 29.995, 40, 70]), CELLS, CELLS
)


def blocks(rows, size=3):
    for k in range(0, len(rows), size):
        part = rows[k : k + size]
        yield Rows(
            pd.Series([row[0] for row in part], dtype="object"),
            np.array([row[1] for row in part], dtype=float),
            np.array([row[2:] for row in part], dtype=float),
        )


def mean_of(values):
    return np.mean(values) if values else NAN


def slow(rows, step, only):
    """The panel of each worker, and what was dropped and changed, in words."""
    known = [row for row in rows if row[0] is not None and np.isfinite(row[1])]
    wanted = [row for row in known if only is None or row[0] in only]
    series = {}
    for worker, time, *values in wanted:
        series.setdefault(worker, []).append((float(time), values))
    back = sum(b[0] < a[0] for each in series.values() for a, b in pairwise(each))
    single = {worker: dict(reversed(each)) for worker, each in series.items()}
    repeated = sum(map(len, series.values())) - sum(map(len, single.values()))
    origin = floor(min((time for each in single.values() for time in each), default=0) / step) * step
    panels, merged = {}, 0
    for worker, each in single.items():
        places = {}
        for time in sorted(each):
            places.setdefault(floor((time - origin) / step + 1e-3), []).append(each[time])
        merged += sum(len(group) - 1 for group in places.values())
        panels[worker] = {
            k: [mean_of([v for v in column if np.isfinite(v)]) for column in zip(*group, strict=True)]
            for k, group in places.items()
        }
    dropped = [
        (len(rows) - len(known), "rows without worker or time"),
        (len(known) - len(wanted), "rows of workers that were not asked for"),
        (repeated, "repeated rows of a worker and time, of which the first counts"),
    ]
    changed = [
        (back, "rows whose time went backwards were put in order"),
        (merged, "rows were averaged with others of their period"),
    ]
    told = [", ".join(f"{count} {what}" for count, what in each if count) for each in (dropped, changed)]
    return panels, origin, told, sum(count for count, _ in dropped)


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=14), st.sampled_from([None, 5.0, 30]), st.sampled_from([None, "a", "abz"]))
@settings(max_examples=80)
def test_a_usage_trace_is_that_of_the_slow_definition(tmp_path_factory, rows, period, only):
    path = tmp_path_factory.getbasetemp() / "job.more.csv"
    path.touch()
    tally, step = Tally(), period or 10.0
    tally.read(len(rows))
    panels, origin, (dropped, changed), count = slow(rows, step, only)
    made = usage_traces(
        [path], blocks(rows), LAYOUT, tally, period=period, workers=None if only is None else list(only)
    )
    if not panels:
        with pytest.raises(ValueError, match=r"job\.more\.csv: no row with a worker and a time is left; dropped: \d"):
            list(made)
        return
    (trace,) = made
    assert trace.workers == tuple(panels)
    expected = np.full((1 + max(max(each) for each in panels.values()), len(panels), 2), NAN)
    for w, each in enumerate(panels.values()):
        for k, values in each.items():
            expected[k, w] = values
    np.testing.assert_allclose(trace.covariates, expected)
    assert np.isnan(trace.samples).all()
    assert np.isnan(trace.seconds).all()
    assert trace.start is None
    assert dict(trace.meta) == {
        "source": "made", "job": "job", "units": "x: %; y: s", "period_seconds": f"{step:g}",
        "rows_read": str(len(rows)), "first_time": f"{origin:.17g} s since the beginning of the set",
        "rows_dropped": str(count), "dropped": dropped or "nothing", **({"changed": changed} if changed else {}),
    }  # fmt: skip


def many(workers=5):
    return [(f"w{w}", 10.0 * k, float(w), float(k)) for k in range(4) for w in range(workers)]


def test_buckets_on_disk_and_groups_that_fit_hold_the_same_series_as_one_trace(tmp_path, monkeypatch):
    path = tmp_path / "job.csv"
    path.write_bytes(b"x" * 100)
    (whole,) = usage_traces([path], blocks(many()), LAYOUT, Tally())
    for bucket_bytes, values, parts in ((1 << 20, 3 * 4 * 4, [3, 2]), (100, 10**6, [3, 2]), (30, 4 * 4, [1] * 5)):
        monkeypatch.setattr(panel, "BUCKET_BYTES", bucket_bytes)
        monkeypatch.setattr(panel, "PANEL_VALUES", values)
        found = list(usage_traces([path], blocks(many()), LAYOUT, Tally()))
        assert [len(each.workers) for each in found] == parts
        assert [each.name for each in found] == [f"job-part{n}" for n in range(1, len(parts) + 1)]
        assert sorted(name for each in found for name in each.workers) == list(whole.workers)
        for each in found:
            np.testing.assert_array_equal(each.covariates, whole.select(workers=each.workers).covariates)


@pytest.mark.parametrize(
    ("size", "name", "count"),
    [
        ((8 << 20) - 1, "x.csv", 1),
        (8 << 20, "x.csv", 2),
        ((8 << 20) // 10, "x.gz", 1),
        ((8 << 20) // 10 + 1, "x.gz", 2),
        (199 * (8 << 20) - 1, "x.csv", 199),
        (300 * (8 << 20), "x.csv", 200),
    ],
)
def test_there_is_a_bucket_for_eight_megabytes_and_two_hundred_at_most(tmp_path, monkeypatch, size, name, count):
    path = tmp_path / name
    path.touch()
    os.truncate(path, size)
    monkeypatch.setattr(panel, "TemporaryFolder", lambda: ExitStack())
    with ExitStack() as stack:
        monkeypatch.setattr(stack, "enter_context", lambda context: tmp_path)
        monkeypatch.setattr("pyarrow.OSFile", lambda *arguments: None)
        monkeypatch.setattr("pyarrow.ipc.new_stream", lambda *arguments, **named: None)
        assert Buckets([path], 1, stack).count == count
        (tmp_path / "other.csv").touch()
        assert Buckets([path, tmp_path / "other.csv"], 1, stack).count == count


def coded(times, workers=None):
    times = np.asarray(times, dtype=float)
    return Coded(np.zeros(len(times), int) if workers is None else np.array(workers), times, times[:, None])


def test_a_grid_may_have_a_million_iterations_or_four_for_each_row(tmp_path):
    path = tmp_path / "x"
    assert panel._length(path, coded([3, 1_000_002]), 1.0) == 1_000_000
    assert panel._length(path, coded([0, 19.99, 5]), 10.0) == 2
    with pytest.raises(
        ValueError, match=r"x: 2 rows from 3 s to 1e\+06 s would make 1e\+06 iterations of 1 s: a time or"
    ):
        panel._length(path, coded([3, 1_000_002.5]), 1.0)
    dense = np.append(np.zeros(299_999), 1_199_999)
    assert panel._length(path, coded(dense), 1.0) == 1_200_000
    with pytest.raises(ValueError, match="x: 300000 rows from 0 s to"):
        panel._length(path, coded(dense + (dense > 0)), 1.0)


def test_a_time_is_told_to_a_thousandth_of_the_period(tmp_path):
    time = 2.0**33
    step = 1000 * float(np.spacing(time))
    assert panel._length(tmp_path, coded([time, time]), step) == 1
    for times, said in (([time, time], "8.58993e"), ([-time, -5.0], "-8.58993e"), ([-5.0, time], "8.58993e")):
        with pytest.raises(ValueError, match=rf": a time or its unit is wrong: {said}\+09 s$"):
            panel._length(tmp_path, coded(times), step * 0.999)


@pytest.mark.parametrize(("values", "each"), [(11, 1), (12, 1), (23, 1), (24, 2), (35, 2), (36, 3), (10**6, 3)])
def test_as_many_workers_are_one_trace_as_fit_with_their_samples_and_seconds(tmp_path, monkeypatch, values, each):
    monkeypatch.setattr(panel, "PANEL_VALUES", values)
    rows = coded([0, 1, 2, 3, 0, 2, 3], [4, 4, 4, 4, 7, 8, 8])  # four iterations, one covariate
    groups = list(panel._groups_that_fit(tmp_path, rows, 1.0, 1))
    assert [len(np.unique(group.worker)) for group in groups] == [min(each, 3 - k) for k in range(0, 3, each)]
    for name in Coded._fields:
        np.testing.assert_array_equal(np.concatenate([getattr(one, name) for one in groups]), getattr(rows, name))
    assert list(panel._groups_that_fit(tmp_path, coded([]), 1.0, 1)) == []


@pytest.mark.parametrize("period", [0, -1.0, NAN, np.inf])
def test_a_period_is_positive(tmp_path, period):
    with pytest.raises(ValueError, match=f"^period must be a positive number of seconds, got {period}$"):
        list(usage_traces([tmp_path], [], LAYOUT, Tally(), period=period))


@pytest.mark.parametrize(("time", "taken"), [(0, True), (-0.5, False), (4_102_444_800, True), (4_102_444_801, False)])
def test_times_since_1970_lie_before_2100_and_others_may_be_any(tmp_path, time, taken):
    path = tmp_path / "job.csv"
    path.touch()
    rows = [("a", time, 1.0, 2.0)]
    dated = Layout(covariates=LAYOUT.covariates, period=10.0, since_1970=True)
    if taken:
        (trace,) = usage_traces([path], blocks(rows), dated, Tally())
        assert trace.start.tolist() == [[time]]
        assert trace.meta["first_time"] == f"{time} s since 1970 (UTC)"
    else:
        with pytest.raises(
            ValueError, match=f"must be seconds between 1970 and 2100, got {time}; the unit is mixed up"
        ):
            list(usage_traces([path], blocks(rows), dated, Tally()))
    (trace,) = usage_traces([path], blocks(rows), LAYOUT, Tally())
    assert trace.start is None


def test_starts_are_those_of_the_grid(tmp_path):
    path = tmp_path / "job.csv"
    path.touch()
    dated = Layout(covariates=LAYOUT.covariates, period=10.0, since_1970=True)
    rows = [("a", 47.0, 1.0, 2.0), ("b", 63.0, 1.0, 2.0)]
    (trace,) = usage_traces([path], blocks(rows), dated, Tally())
    assert trace.start.tolist() == [[40, 40], [50, 50], [60, 60]]
    assert trace.meta["first_time"] == "40 s since 1970 (UTC)"
