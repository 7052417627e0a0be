"""Parts that many readers share, each against a slow computation of the same: times, restarts, grids, frozen rows."""

import itertools
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.datasets import Trace, read_traces
from paceline.datasets.frozen import frozen, sentence
from paceline.datasets.readers.csv_rows import _said
from paceline.datasets.readers.files import json_of
from paceline.datasets.readers.restarts import continued, increments, runs_of
from paceline.datasets.readers.timestamps import seconds_since_1970

ZONES = {"": 0, " UTC": 0, "Z": 0, " GMT": 0, " PDT": -420, " PST": -480, "+02:00": 120, "-0530": -330, "+09": 540}


@settings(max_examples=30)
@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2099, 1, 1)),
    st.sampled_from(sorted(ZONES)),
    st.sampled_from([" ", "T"]),
    st.sampled_from([0, 1, 3, 6]),
    st.sampled_from([".", ","]),
)
def test_a_written_time_is_the_one_that_python_reads(moment, zone, between, digits, point):
    text = f"{moment:%Y-%m-%d}{between}{moment:%H:%M:%S}"
    micro = f"{moment.microsecond:06}"[:digits]
    cell = text + (point + micro if digits else "") + zone
    offset = timezone(timedelta(minutes=ZONES[zone]))
    expected = moment.replace(microsecond=int(micro.ljust(6, "0")), tzinfo=offset) - datetime(1970, 1, 1, tzinfo=UTC)
    (found, empty) = seconds_since_1970(Path("x"), pd.Series([cell, None], dtype="str"), "time")
    assert found == pytest.approx(expected.total_seconds(), abs=2e-6)
    assert np.isnan(empty)


@pytest.mark.parametrize("bad", ["2024-13-01 00:00:00", "soon", "2024-01-01", "2024-01-01 00:00:00 CET"])
def test_a_time_that_is_none_is_named_with_its_row(bad):
    texts = pd.Series(["2024-01-01 00:00:00", bad, bad], dtype="str")
    for first, row in ((2, 3), (7, 8)):
        with pytest.raises(ValueError, match=f"x: row {row}, column 'at': must be a time like"):
            seconds_since_1970(Path("x"), texts, "at", first_row=first)


STEPS = st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True).map(sorted), min_size=1, max_size=4)


@settings(max_examples=50)
@given(STEPS)
def test_steps_of_restarted_runs_go_on_one_behind_the_other(runs):
    runs = [runs[0], *(run for before, run in itertools.pairwise(runs) if run[0] < before[-1])]
    runs = [run for k, run in enumerate(runs) if k == 0 or run[0] < runs[k - 1][-1]]
    step_T = np.array([float(step) for run in runs for step in run])
    run_T = runs_of(step_T)
    expected = [k for k, run in enumerate(runs) for _ in run]
    if any(later[0] >= run[-1] for run, later in itertools.pairwise(runs)):
        return  # nothing shows that such a run is another
    assert run_T.tolist() == expected
    begin, steps = runs[0][0], []
    for run in runs:
        steps += [begin + step - run[0] for step in run]
        begin += run[-1] - run[0] + 1
    assert continued(step_T, run_T).tolist() == steps


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=5), min_size=1, max_size=4), st.booleans())
def test_increments_of_restarted_totals_are_what_was_added_or_not_known(runs, resumed):
    totals, run_T, total = [], [], 0
    for run, added in enumerate(runs):
        total = total if resumed else 0
        for one in added:
            total += one
            totals.append(float(total))
            run_T.append(run)
    found = increments(np.array(totals), np.array(run_T))
    inside = [one for added in runs for one in added[1:]]
    most = 10 * median(inside) if inside else np.inf
    flat = [one for added in runs for one in added]
    for k, (one, value) in enumerate(zip(flat, found, strict=True)):
        if k and run_T[k] == run_T[k - 1]:
            assert value == one
        else:
            ahead = totals[k] - totals[k - 1] if k else np.nan
            plausible = [choice for choice in (ahead, totals[k]) if 0 < choice <= most]
            assert value == plausible[0] if plausible else np.isnan(value)


ROW = st.tuples(st.integers(0, 3), st.integers(0, 12), st.one_of(st.none(), st.integers(0, 99)))


@settings(max_examples=25)
@given(st.lists(ROW, min_size=1, max_size=30), st.sampled_from([1, 3, 10]))
def test_rows_on_a_grid_are_the_means_of_a_workers_rows_in_each_period(tmp_path_factory, rows, period):
    path = tmp_path_factory.getbasetemp() / "machine_usage.csv"
    path.write_text("".join(f"m{w},{time},{'' if cpu is None else cpu},1,,,1,1,1\n" for w, time, cpu in rows))
    (trace,) = read_traces(path, period=period)
    first, back = {}, 0
    for w, time, cpu in rows:
        first.setdefault((w, time), cpu)
    for w in range(4):
        times = [time for worker, time, _ in rows if worker == w]
        back += sum(later < one for one, later in itertools.pairwise(times))
    origin = min(time for _, time, _ in rows) // period
    groups = {}
    for (w, time), cpu in first.items():
        groups.setdefault((time // period - origin, w), []).append(cpu)
    names = list(dict.fromkeys(f"m{w}" for w, *_ in rows))
    assert trace.workers == tuple(names)
    found = trace.covariates_named(["cpu_util_percent", "mem_util_percent"])
    assert len(trace) == 1 + max(row for row, _ in groups)
    for k in range(len(trace)):
        for w in range(4):
            known = [cpu for cpu in groups.get((k, w), []) if cpu is not None]
            place = [k, names.index(f"m{w}")] if f"m{w}" in names else None
            if place:
                value, there = found[place[0], place[1]]
                assert value == (pytest.approx(np.mean(known)) if known else pytest.approx(np.nan, nan_ok=True))
                assert np.isfinite(there) == ((k, w) in groups)
    changed = trace.meta.get("changed", "")
    assert (f"{back} rows whose time went backwards" in changed) == (back > 0)
    averaged = len(first) - len(groups)
    assert (f"{averaged} rows were averaged" in changed) == (averaged > 0)
    assert trace.meta["rows_dropped"] == str(len(rows) - len(first))


@pytest.mark.parametrize(("usual", "least"), [(1, 20), (2, 20), (3, 30), (5, 50)])
def test_a_stretch_is_frozen_if_it_is_twenty_rows_and_ten_times_the_usual(usual, least):
    for length, expected in ((least - 1, {}), (least, {"a": least})):
        moving = np.repeat(np.arange(10.0), usual)
        load_T = np.concatenate([moving, np.full(length, 77.0)])
        ones = np.ones((len(load_T), 2))
        covariates = np.stack([load_T, np.arange(float(len(load_T)))], axis=1)[:, :, None]
        trace = Trace(ones, ones, workers=["a", "b"], covariates=covariates, covariate_names=["load"])
        assert frozen(trace) == expected


def test_a_sentence_names_five_workers_and_counts_the_others():
    rows = {f"w{k}": 20 + k for k in range(7)}
    assert sentence(rows).endswith("24 iterations of w4, and others of 2 more workers")
    assert sentence(dict(list(rows.items())[:5])).endswith("24 iterations of w4")


@pytest.mark.parametrize("length", [399, 400, 401])
def test_a_long_sentence_of_the_parser_is_cut_at_its_four_hundredth_character(length):
    assert _said("x" * length, []) == ("x" * length if length < 400 else "x" * 400 + " ...")


def test_a_json_file_may_have_as_many_bytes_as_said_and_not_one_more(tmp_path):
    path = tmp_path / "some.json"
    path.write_text('{"é": 1}', encoding="utf-8")
    assert json_of(path, 9, "split it") == {"é": 1}
    with pytest.raises(ValueError, match=r"some\.json: is larger than 8 bytes; split it"):
        json_of(path, 8, "split it")
