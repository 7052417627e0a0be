"""Tables in any layout: one panel is the same trace however it is written, and a table says how it can be read."""

import json
import shlex
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readings import only
from typer.testing import CliRunner

from paceline.cli.main import app

BEGAN = 1746090360.0


def tidy(seconds_TW):
    """Rows of worker, iteration, milliseconds and rate."""
    for k, row_W in enumerate(seconds_TW):
        for w, seconds in enumerate(row_W):
            yield {"rank": f"r{w}", "step": k, "ms": 1e3 * seconds, "rate": 8 / seconds, "at": BEGAN + 60 * k}


def long_csv(path, seconds_TW):
    pd.DataFrame(tidy(seconds_TW)).to_csv(path, index=False)
    return {"worker": "rank", "iteration": "step", "seconds": "ms", "unit": "ms", "samples": 8}


def rates(path, seconds_TW):
    pd.DataFrame(tidy(seconds_TW)).drop(columns="ms").to_csv(path, index=False)
    return {"worker": "rank", "iteration": "step", "rate": "rate"}


def rates_per_minute(path, seconds_TW):
    pd.DataFrame(tidy(seconds_TW)).assign(per_minute=lambda t: 60 * t["rate"]).to_csv(path, index=False)
    return {"worker": "rank", "iteration": "step", "rate": "per_minute", "unit": "min"}


def json_lines(path, seconds_TW):
    path.write_text("".join(json.dumps({**row, "level": "INFO", "tags": [1]}) + "\n" for row in tidy(seconds_TW)))
    return {"worker": "rank", "iteration": "step", "seconds": "ms", "unit": "ms", "samples": 8}


def json_list(path, seconds_TW):
    path.write_text(json.dumps(list(tidy(seconds_TW)), indent=1))
    return {"worker": "rank", "iteration": "step", "seconds": "ms", "unit": "ms", "samples": 8}


def json_columns(path, seconds_TW):
    path.write_text(json.dumps(pd.DataFrame(tidy(seconds_TW)).to_dict("list")))
    return {"worker": "rank", "iteration": "step", "seconds": "ms", "unit": "ms", "samples": 8}


def by_time(path, seconds_TW):
    """Each worker reports at its own moment of the minute."""
    frame = pd.DataFrame(tidy(seconds_TW))
    frame["at"] += np.tile(np.linspace(0, 50, seconds_TW.shape[1]), len(seconds_TW))
    frame.drop(columns="step").to_csv(path, index=False)
    return {"worker": "rank", "start": "at", "period": 60, "rate": "rate"}


def wide_csv(path, seconds_TW):
    columns = {f"r{w}": seconds_TW[:, w] for w in range(seconds_TW.shape[1])}
    pd.DataFrame({"step": range(len(seconds_TW)), **columns}).to_csv(path, index=False)
    return {"values": "seconds", "iteration": "step", "samples": 8}


def wide_without_a_counter(path, seconds_TW):
    columns = {f"r{w}": 8 / seconds_TW[:, w] for w in range(seconds_TW.shape[1])}
    pd.DataFrame({**columns, "loss": 1.0, "note": "x"}).to_csv(path, index=False)
    return {"values": "rate", "workers": list(columns)}


def chart(path, seconds_TW):
    columns = {"Step": np.arange(len(seconds_TW)) * 50}
    for w in range(seconds_TW.shape[1]):
        columns |= {f"r{w} - t{end}": seconds_TW[:, w] for end in ("", "__MIN", "__MAX")}
    pd.DataFrame(columns).to_csv(path, index=False)
    return {"values": "seconds", "samples": 8}


def prometheus(path, seconds_TW):
    series = [
        {
            "metric": {"job": "train", "gpu": f"r{w}"},
            "values": [[BEGAN + 15 * k, str(8 / s)] for k, s in enumerate(column)],
        }
        for w, column in enumerate(seconds_TW.T)
    ]
    if len(series) == 1:
        series[0]["metric"] = {}
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}}))
    return {"values": "rate"}


LAYOUTS = (
    *(long_csv, rates, rates_per_minute, json_lines, json_list, json_columns, by_time),
    *(wide_csv, wide_without_a_counter, chart, prometheus),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.slow
def test_a_panel_is_the_same_trace_in_every_layout(tmp_path, layout):
    path = tmp_path / "x.txt"

    @settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(2, 9), st.integers(1, 12), st.integers(0, 9))
    def check(iterations, workers, seed):
        seconds_TW = np.random.default_rng(seed).uniform(0.1, 2.0, (iterations, workers))
        options = layout(path, seconds_TW)
        trace = only(path, **options)
        np.testing.assert_allclose(trace.speed[:, np.argsort(_places(trace))], 8 / seconds_TW)

    check()


def _places(trace):
    """Columns are sorted by name, as text."""
    return [int("".join(filter(str.isdigit, name)) or 0) for name in trace.workers]


# -- what is dropped, averaged or refused --------------------------------------------------------------------------


def test_non_object_lines_counted_texts_named(made):
    text = 'starting\n{"iteration": 0, "s": 0.5, "msg": "a"}\n[1]\n\n{"iteration": 1, "s": 0.25, "msg": "b"}\n{"iterat'
    trace = only(made("log.jsonl", '{"iteration": 5, "s": 1}\n' + text), seconds="s", samples=2)
    assert trace.workers == ("0",)
    assert trace.meta["dropped"] == "3 lines that hold no complete JSON object"
    assert trace.meta["columns_dropped"] == "msg: no numbers"
    assert trace.name == "log"


def test_rows_of_one_period_are_averaged_and_counted(made):
    text = "time_anon,host,ms\n0,a,10\n20,a,30\n40,b,5\n70,a,8\n,a,9\n"
    options = {"worker": "host", "start": "time_anon", "seconds": "ms", "samples": 1, "unit": "ms", "period": 57}
    trace = only(made("a.csv", text), **options)
    np.testing.assert_allclose(trace.speed, [[50, 200], [125, np.nan]])
    assert trace.meta["changed"] == "1 rows were averaged with others of their period"
    assert trace.meta["dropped"] == "1 rows without a time"


def test_rates_that_are_none_are_counted(made):
    text = "worker,iteration,v\na,0,5\na,1,0\na,2,-1\na,3,inf\na,4,\n"
    trace = only(made("a.csv", text), rate="v")
    np.testing.assert_array_equal(trace.speed[:, 0], [5, np.nan, np.nan, np.nan, np.nan])
    assert trace.meta["dropped"] == "3 rates that are not positive and finite"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"values": "speeds"}, "values must be one of .*got 'speeds'"),
        ({"workers": ["a"], "seconds": "s", "iteration": "k"}, "set values= to what these hold"),
        ({"rate": "s", "seconds": "s", "iteration": "k"}, "pass one of them"),
        ({"seconds": "s", "samples": 1, "iteration": "k", "period": 0}, "period must be a positive number"),
        ({"seconds": "s", "samples": 1, "period": 5}, "period= .*: pass start="),
        (
            {"values": "seconds", "samples": 1, "workers": ["q"]},
            "must have a column of numbers for each worker, but lacks .*'q'",
        ),
        ({"seconds": "s", "iteration": "k"}, r"\['samples'\] are missing"),
    ],
)
def test_options_that_say_nothing_are_refused(made, options, sentence):
    with pytest.raises(ValueError, match=rf"a\.csv: .*{sentence}"):
        only(made("a.csv", "k,s\n0,1\n1,2\n"), **options)


@pytest.mark.parametrize(
    "answer",
    [
        '{"data": {"resultType": "vector", "result": [{"metric": {}, "value": [1, "2"], "values": 3}]}}',
        '{"data": {"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "2", 3]]}]}}',
        '{"data": {"resultType": "matrix", "result": [{"metric": {}, "values": []}, {"metric": {}, "values": []}]}}',
    ],
)
def test_another_answer_of_prometheus_is_refused(made, answer):
    with pytest.raises(ValueError, match=r"range\.json(: each series must have|: series must differ| must be)"):
        only(made("range.json", answer), "prometheus", values="rate")


# -- times with an offset ------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(st.datetimes(datetime(1971, 1, 1), datetime(2099, 1, 1)), st.integers(-14 * 60, 14 * 60), st.sampled_from(" T"))
def test_iso_8601_start_equals_python(tmp_path_factory, moment, minutes, between):
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    path = tmp_path_factory.getbasetemp() / "iso.csv"
    path.write_text(f"worker,iteration,samples,seconds,start\na,0,8,1,{zoned.isoformat(between)}\n")
    assert only(path).start[0, 0] == pytest.approx(zoned.timestamp(), abs=2e-6)


def test_mixed_offsets_read_wrong_one_named(made):
    head = "worker,iteration,samples,seconds,start\n"
    rows = "a,0,8,1,1970-01-01T01:00:00+0100\na,1,8,1,1970-01-01 00:00:05 UTC\na,2,8,1,1969-12-31T16:00:10.5-08\n"
    assert only(made("a.csv", head + rows)).start[:, 0].tolist() == [0, 5, 10.5]
    with pytest.raises(
        ValueError, match=r"an offset like \+02:00, or none, but row \d+ holds '1970-01-01T01:00:00\+1:00'"
    ):
        only(made("b.csv", head + "a,0,8,1,1970-01-01T01:00:00+1:00\n"))


# -- what a table says of itself -----------------------------------------------------------------------------------

ITERATIONS = ["step", "iteration", "global_step", "Iter", "step_idx"]
WORKERS = ["rank", "worker_id", "hostname", "local_rank", "GPU", "node name"]
UNITS = {"us": 1e-6, "msec": 1e-3, "ms": 1e-3, "milliseconds": 1e-3, "sec": 1.0, "s": 1.0, "minutes": 60.0}
SPANS = [f"{word}_{unit}" for word in ("step_time", "duration", "latency") for unit in UNITS] + ["iter time", "seconds"]
RATES = ["tokens_per_sec", "samples/s", "throughput", "it/s", "images_per_second"]
OTHERS = ["loss", "lr", "grad_norm", "epoch_loss", "note"]


def loaded(path, *options):
    return CliRunner().invoke(app, ["data", "load", str(path), "-o", str(path.with_suffix(".parquet")), *options])


@pytest.mark.slow
@given(st.data())
@settings(max_examples=50, deadline=None)
def test_the_line_that_an_error_names_reads_the_table(tmp_path_factory, data):
    measured = data.draw(st.sampled_from([*SPANS, *RATES]), "measured")
    columns = [
        measured,
        data.draw(st.sampled_from(ITERATIONS)),
        *data.draw(st.lists(st.sampled_from(OTHERS), unique=True)),
    ]
    columns += [data.draw(st.sampled_from(WORKERS))] if (several := data.draw(st.booleans())) else []
    columns += ["batch_size"] if data.draw(st.booleans()) else []
    columns = data.draw(st.permutations(columns))
    cells = {"note": ["x"] * 4, "batch_size": [8] * 4, measured: [2, 4, 2, 4]}
    cells |= {name: [0, 0, 1, 1] if several else [0, 1, 2, 3] for name in ITERATIONS}
    cells |= {name: ["a", "b", "a", "b"] for name in WORKERS}
    path = tmp_path_factory.getbasetemp() / "hinted.csv"
    table = pd.DataFrame({name: cells.get(name, [1.5, 2, 3, 4]) for name in columns})
    table.to_csv(path, index=False) if data.draw(st.booleans()) else table.to_json(path, orient="records", lines=True)
    refused = str(loaded(path).exception or "")
    line = refused.partition("suggest ")[2].partition(" (samples=1")[0].partition("; other")[0]
    done = loaded(path, *shlex.split(line))
    assert done.exit_code == 0, refused
    trace = only(path.with_suffix(".parquet"))
    assert len(trace.workers) == 1 + several
    unit = 1.0 if measured in RATES else next((UNITS[u] for u in UNITS if measured.endswith(f"_{u}")), 1.0)
    speed = trace.speed[0, 0]
    batch = 8 if "batch_size" in columns else 1
    assert speed == pytest.approx(2 if measured in RATES else batch / (2 * unit))


def test_missing_column_suggests_stand_ins(made):
    path = made("a.csv", "worker,iteration,took_ms,duration_ms\na,0,1,2\n")
    with pytest.raises(
        ValueError, match=r"\['samples', 'seconds'\] are missing.*seconds=took_ms --with unit=ms .*\['duration_ms'\]"
    ):
        only(path)
