"""``paceline data``, with what takes long replaced: files that are written, and what is known of a trace in short."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_small_commands import Narrow, job, refused, run

from paceline.cli import data_command
from paceline.datasets import Trace

NAN = float("nan")


@pytest.fixture
def streams(monkeypatch):
    files = [io.StringIO(), io.StringIO()]
    for name, file in zip(("out", "err"), files, strict=True):
        monkeypatch.setattr(data_command, name, Narrow(file=file, width=60))
    return SimpleNamespace(out=lambda: files[0].getvalue().splitlines(), err=lambda: files[1].getvalue().splitlines())


@pytest.fixture
def found(monkeypatch):
    """What a name stands for, whatever it is."""
    traces = []
    monkeypatch.setattr("paceline.cli.named_sources.find_traces", lambda *given, **how: iter(traces))
    return traces


def test_traces_go_into_files_of_their_names_and_none_is_written_over(streams, found, tmp_path):
    found += [job("a/b"), job("c", dropped="1 row")]
    folder = tmp_path / "in" / "new"
    run("data", "load", "x", "--out", folder)
    assert sorted(file.name for file in folder.iterdir()) == ["a_b.parquet", "c.parquet"]
    said = " ".join(streams.out()).replace(" ", "")
    assert f"{folder}/a_b.parquet:3iterationsof2workers;dropped:None" in said
    assert f"{folder}/c.parquet:3iterationsof2workers;dropped:1row" in said
    run("data", "load", "x", "--out", folder)
    found.append(job("c"))
    assert refused("data", "load", "x", "--out", folder) == (
        "x holds several traces named 'c': read its files one by one"
    )
    assert refused("data", "load", "x", "--out", tmp_path / "a.parquet") == (
        f"x holds more than one trace: give a folder with --out instead of {tmp_path}/a.parquet"
    )
    found.clear()
    assert refused("data", "load", "x", "--out", folder) == "x holds no trace to write"


def test_a_fetch_says_what_it_fetches_and_prints_the_paths(monkeypatch, streams):
    monkeypatch.setattr("paceline.datasets.remote.fetch", lambda *given, **how: [Path("a b"), Path("c")])
    result = run("data", "fetch", "[set]")
    assert result.stdout == "a b\nc\n"
    assert streams.err() == [r"<fetching \[set] ...>", "<>"]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_figure_is_of_a_single_trace(monkeypatch, streams, count):
    monkeypatch.setattr(
        "paceline.eval.pages.health_figure.health_figure", lambda trace, path: f"{path} of {trace.name}"
    )
    if count == 1:
        data_command._drawn([job()], Path("x.png"))
        assert streams.err() == ["written to x.png of a"]
        return
    with pytest.raises(ValueError, match=r"^--figure draws a single trace, but there are several: load them into a"):
        data_command._drawn([job()] * count, Path("x.png"))


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("median seconds", 0.000123456, "0.0001235"),
        ("iterations", 1234567, "1,234,567"),
        ("rows_read", "1234567", "1,234,567"),
        ("rows_dropped", "1234", "1,234"),
        ("rows_read", "1" * 15, "111,111,111,111,111"),
        ("rows_read", "1" * 16, "1" * 16),
        ("rows_read", "12 rows", "12 rows"),
        ("job", "1234567", "1234567"),
        ("first_time", "0 s since 1970 (UTC)", "0 s since 1970 (UTC), 1970-01-01 00:00:00"),
        ("any", "86399.5 s since 1970 (UTC)", "86399.5 s since 1970 (UTC), 1970-01-01 23:59:59"),
        ("any", "99999999999 s since 1970 (UTC)", "99999999999 s since 1970 (UTC)"),
        ("any", "at 5 s since 1970 (UTC)", "at 5 s since 1970 (UTC)"),
    ],
)
def test_what_is_known_of_a_trace_is_shown_as_people_read_it(key, value, shown):
    assert data_command._readable(key, value) == shown


def test_a_series_is_a_row_of_short_numbers_and_what_is_not_known_a_dash():
    numbers = {"missing": 0.126, "repeated": 0.0, "outliers": 0.0126, "variation": 0.126, "lag_one": -0.126}
    one = SimpleNamespace(name="cpu\x1b", **numbers, predictable=1.0, with_speed=0.994)
    cells = {
        "series": r"cpu\x1b", "missing": "13%", "same": "0%", "far": "1.3%", "CV": "0.13", "lag-1": "-0.13",
        "signal": "100%", "~speed": "0.99",
    }  # fmt: skip
    assert data_command._short(one) == cells
    for value in (NAN, np.inf):
        unknown = SimpleNamespace(name="cpu", **dict.fromkeys([*numbers, "predictable", "with_speed"], value))
        assert data_command._short(unknown) == {"series": "cpu", **dict.fromkeys(list(cells)[1:], "-")}


def test_a_trace_is_summed_up_over_workers_that_were_measured():
    seconds = np.array([[1.0, 2.0, NAN], [2.0, 2.0, NAN], [4.0, NAN, NAN]])
    trace = Trace(np.where(np.isnan(seconds), NAN, 8.0), seconds, meta={"job": "a", "split": "fit", "pattern": "p"})
    found = data_command._summary(trace)
    each = np.array([8.0, 4.0, 2.0])
    assert found.pop("variation of speed") == pytest.approx((each.std() / each.mean() + 0.0) / 2)
    assert found == {
        "job": "a", "split": "fit", "pattern": "p", "iterations": 3, "workers": 3, "covariates": 0,
        "median seconds": 2.0,
    }  # fmt: skip
    idle = data_command._summary(replace(trace, seconds=np.full((3, 3), NAN), samples=np.full((3, 3), NAN), meta={}))
    assert (idle["median seconds"], idle["variation of speed"], idle["split"], idle["pattern"]) == (None, None, "", "")


@pytest.mark.parametrize(
    ("what", "left_out"),
    [("shipped", []), ("formats", ["files"]), ("tables", []), ("remote", ["files", "about", "address"])],
)
def test_a_list_for_people_leaves_out_what_is_too_wide(monkeypatch, what, left_out):
    printed = []
    row = {"name": "a", "files": 3, "about": "b", "address": "c", "job": "d"}
    monkeypatch.setattr("paceline.cli.show.print_rows", lambda *given: printed.append(given))
    monkeypatch.setattr(data_command, f"_{what}", lambda: [row])
    run("data", "list", *[what] * (what != "shipped"))
    run("data", "list", what, "--json")
    short = {key: value for key, value in row.items() if key not in left_out}
    assert printed == [(what, [short], False), (what, [row], True)]
    assert refused("data", "list", "x") == (
        "there is no list of 'x'; there are ['shipped', 'formats', 'tables', 'remote']"
    )


def test_what_is_listed_of_formats_tables_and_public_sets():
    from paceline.datasets.readers import FORMATS, TABLES
    from paceline.datasets.remote_sets import REMOTE_SETS

    for made, known in ((data_command._formats(), FORMATS), (data_command._tables(), TABLES)):
        assert [row["name"] for row in made] == list(known)
        assert all(row[key] == getattr(known[row["name"]], key) for row in made for key in row)
    assert list(data_command._formats()[0]) == ["name", "gives", "about", "files"]
    assert list(data_command._tables()[0]) == ["name", "files"]
    rows = data_command._remote()
    assert list(rows[0]) == ["name", "files", "licence", "format", "about", "selection", "address"]
    for row, one in zip(rows, REMOTE_SETS.values(), strict=True):
        assert row.pop("files") == len(one.files)
        assert all(row[key] == getattr(one, key) for key in row)
