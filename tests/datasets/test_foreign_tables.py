"""Tables that other people's loggers write: rows in any order, sparse rows, text, units, columns of many times."""

import csv
import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline.cli.main import app
from paceline.datasets import Trace, read_profiles, read_traces

TIDY = "worker,iteration,samples,seconds"


@given(
    order=st.permutations([(step, worker) for step in range(6) for worker in "ab"]),
    again=st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab")), max_size=4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_rows_order_and_copies_change_nothing(tmp_path_factory, order, again, data):
    rows = [*order, *again] if again else order
    rows = data.draw(st.permutations(rows))
    kind = data.draw(st.sampled_from(["csv", "jsonl", "parquet"]))
    table = pd.DataFrame(
        [(worker, step, 64, 1 + step / 10 + ord(worker)) for step, worker in rows], columns=TIDY.split(",")
    )
    path = tmp_path_factory.getbasetemp() / f"shuffled.{kind}"
    if kind == "parquet":
        table.to_parquet(path)
    else:
        path.write_text(table.to_csv(index=False) if kind == "csv" else table.to_json(orient="records", lines=True))
    (trace,) = read_traces(path)
    expected = [[1 + step / 10 + ord(worker) for worker in "ab"] for step in range(6)]
    np.testing.assert_allclose(trace.seconds, expected)
    assert "restarts" not in trace.meta
    assert int(trace.meta["rows_dropped"]) == len(again)


def test_sorting_and_dropping_are_reported(made, caplog):
    (trace,) = read_traces(made("a.csv", f"{TIDY}\na,2,1,1\na,1,1,1\na,0,1,1\na,1,1,1\n"))
    assert "out of order" in trace.meta["changed"]
    assert "1 rows that repeat another" in caplog.text
    assert "out of order" in caplog.text
    caplog.clear()
    read_traces(made("a.csv", f"{TIDY}\na,0,1,1\na,1,1,1\n"))
    assert not caplog.records


def test_same_step_with_other_values_is_refused(made):
    path = made("a.csv", f"{TIDY}\na,0,1,1\na,1,1,1\na,1,1,2\na,2,1,1\n")
    with pytest.raises(ValueError, match=r"worker a reports iteration 1 more than once"):
        read_traces(path)


def test_epochs_that_count_anew_are_no_restarts(made):
    rows = [f"{epoch},{step},{1 + epoch / 10}" for epoch in range(3) for step in (10, 20, 30)]
    path = made("a.csv", "\n".join(["epoch,iter,time", *rows]))
    (trace,) = read_traces(path, iteration="iter", seconds="time", samples=1)
    assert "restarts" not in trace.meta
    assert np.isfinite(trace.seconds).sum() == 9


def test_wandb_rows_in_any_order_are_no_restarts(made):
    rows = [f"{step},{step},{1_700_000_000 + step},{0.5 + step / 100}" for step in (4, 1, 3, 0, 2, 3)]
    path = made("run.csv", "\n".join(["_step,_runtime,_timestamp,step_time", *rows]))
    (trace,) = read_traces(path, seconds="step_time")
    np.testing.assert_allclose(trace.seconds[:, 0], 0.5 + np.arange(5) / 100)
    assert "restarts" not in trace.meta


def test_rows_of_other_kinds_are_dropped_and_counted(made):
    lines = ['{"seed": 0}', *(f'{{"iter": {k}, "time": {0.1 * k}}}' for k in (1, 2)), '{"iter": 2, "AP": 3}']
    (trace,) = read_traces(made("a.json", "\n".join(lines)), iteration="iter", seconds="time", samples=16)
    np.testing.assert_allclose(trace.seconds[:, 0], [0.1, 0.2])
    assert trace.meta["rows_dropped"] == "2"


@pytest.mark.parametrize("options", [{}, {"start": "when", "period": 1.0}])
@pytest.mark.parametrize("column", ["power", "rate"])
def test_text_cell_named_by_row_and_column(made, column, options):
    cells = {"power": "5,[N/A]", "rate": "[N/A],5"}[column]
    text = f"when,step,gpu,rate,power\n2024-09-08 13:03:31,0,0,5,5\n2024-09-08 13:03:32,1,0,{cells}\n"
    given = options or {"iteration": "step"}
    path = made("a.csv", text.replace("when,step", "when,count") if options else text.replace("when", "note"))
    with pytest.raises(ValueError, match=rf"a\.csv: column '{column}' must hold numbers, but row 3 holds '\[N/A\]'"):
        read_traces(path, worker="gpu", rate="rate", **given)


@pytest.mark.parametrize(("unit", "scale"), [("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_unit_of_timestamps_is_the_one_that_fits(made, unit, scale):
    rows = [f"{(1_729_990_680 + 60 * k) * scale:.0f},a,100" for k in range(3)]
    path = made("a.csv", "\n".join(["timestamp,host,tokens_per_sec", *rows]))
    options = {"worker": "host", "start": "timestamp", "period": 60, "rate": "tokens_per_sec"}
    with pytest.raises(ValueError, match=f"start_unit={unit}$"):
        read_traces(path, **options)
    assert len(read_traces(path, start_unit=unit, **options)[0]) == 3


def test_parquet_of_others_is_a_table_like_any(tmp_path):
    when = pd.to_datetime(["2024-09-08 13:03:31", "2024-09-08 13:03:32"] * 2)
    rows = pd.DataFrame({"ts": when, "host": list("aabb"), "imgs_per_s": [100, 101, 88, 85]}, index=[4, 2, 9, 7])
    rows.to_parquet(tmp_path / "rates.parquet")
    (trace,) = read_traces(tmp_path / "rates.parquet", worker="host", start="ts", period=1, rate="imgs_per_s")
    np.testing.assert_array_equal(trace.speed, [[100, 88], [101, 85]])
    assert trace.covariate_names == ()
    pd.DataFrame({"rank": [0, 1], "step": 0, "step_time_ms": [100, 200]}).to_parquet(tmp_path / "clear.parquet")
    np.testing.assert_allclose(read_traces(tmp_path / "clear.parquet")[0].seconds, [[0.1, 0.2]])
    with pytest.raises(ValueError, match="its columns suggest --with worker=host --with start=ts"):
        read_traces(tmp_path / "rates.parquet")


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_separators_are_read(made, delimiter):
    text = f"{TIDY}\na,0,32,0.5\nb,0,32,0.25\n".replace(",", delimiter)
    assert read_traces(made("a.csv", text))[0].speed.tolist() == [[64, 128]]
    text = text.replace(".", ",") if delimiter == ";" else text
    assert read_traces(made("b.csv", text))[0].speed.tolist() == [[64, 128]]


@pytest.mark.parametrize(
    "text", ["cmd = run --split 2,4,4\n[2025-04-18 01:46:50,171] [INFO] speed=1\n", '{"a": 1, "lr": 2}\n']
)
def test_prose_and_json_are_no_headers(made, text):
    with pytest.raises(ValueError, match="matches no known format") as error:
        read_traces(made("log.txt", text))
    assert "its columns suggest" not in str(error.value)


@pytest.mark.parametrize("read", [read_profiles, read_traces])
@pytest.mark.parametrize("text", ["{bad", '{"a": 1', "a,b\n1\n1,2,3,4\n", '"a,b\n1', ""])
def test_no_reader_passes_on_what_a_parser_raised(made, read, text):
    with pytest.raises(ValueError, match=r"a\.json") as error:
        read(made("a.json", text))
    assert not {"tokenizing", "Expecting", "Traceback"} & set(str(error.value).split())


def test_clear_table_is_read_and_reported(made, caplog):
    path = made("a.csv", "step,rank,wait_time_ms,step_time_ms\n0,0,3,100\n0,1,43,50\n")
    with caplog.at_level(logging.WARNING):
        (trace,) = read_traces(path)
    assert trace.speed.tolist() == [[10, 20]]
    assert "--with seconds=step_time_ms" in trace.meta["read_as"]
    assert trace.meta["read_as"] in caplog.text
    assert read_traces(path, samples=32)[0].speed.tolist() == [[320, 640]]


def test_nvidia_smi_is_read_with_its_units_and_dates(made):
    text = "timestamp, index, name, utilization.gpu [%], power.draw [W]\n"
    text += "".join(
        f"2024/09/08 13:03:3{k}.000, {gpu}, A100, {10 * gpu + k}%, [N/A]\n" for k in range(3) for gpu in (0, 1)
    )
    (trace,) = read_traces(made("smi.csv", text))
    assert trace.meta["format"] == "nvidia_smi"
    assert trace.workers == ("0", "1")
    np.testing.assert_array_equal(trace.covariates[:, :, 0], [[0, 10], [1, 11], [2, 12]])
    assert np.isnan(trace.speed).all()


def test_long_usage_table_is_read_by_worker(made):
    rows = [f"2024/09/08 13:03:3{k},{gpu},{k + gpu}" for k in range(3) for gpu in (0, 1)]
    path = made("usage.csv", "\n".join(["timestamp,gpu,busy", *rows]))
    (trace,) = read_traces(path, worker="gpu", start="timestamp", period=1.0, values="usage")
    assert trace.covariates[:, :, 0].tolist() == [[0, 1], [1, 2], [2, 3]]


RANKS = {
    "csv": "rank{}.csv",
    "json": "rank{}/metrics.jsonl",
    "parquet": "run_rank{}.parquet",
    "pytorch_log": "log-rank{}.txt",
}


def write_rank(folder, kind, rank, steps=range(5), named=True):
    """A file of one rank, which takes a second more than the one before."""
    path = folder / RANKS[kind].format(rank)
    path.parent.mkdir(exist_ok=True, parents=True)
    rows = [{"worker": rank if named else 0, "iteration": k, "samples": 8, "seconds": 1.0 + rank} for k in steps]
    if kind == "csv":
        pd.DataFrame(rows).to_csv(path, index=False)
    elif kind == "json":
        pd.DataFrame(rows).to_json(path, orient="records", lines=True)
    elif kind == "parquet":
        Trace.from_frame(pd.DataFrame(rows)).save(path)
    else:
        path.write_text("".join(f"Epoch: [0][{k}/99]\tTime {1.0 + rank} (1.0)\tSpeed 8 (8)\n" for k in steps))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", RANKS)
def test_one_file_per_rank_is_joined(tmp_path, kind, named):
    for rank in (0, 1, 2, 10):
        write_rank(tmp_path, kind, rank, named=named)
    (trace,) = read_traces(tmp_path)
    assert trace.workers == ("0", "1", "2", "10")
    np.testing.assert_allclose(trace.seconds, np.tile([1, 2, 3, 11], (5, 1)))
    assert trace.meta["joined"] == "4 files, one for each rank"


def test_ranks_are_joined_by_their_iterations(tmp_path):
    write_rank(tmp_path, "csv", 0, range(5))
    write_rank(tmp_path, "csv", 1, range(2, 4))
    (trace,) = read_traces(tmp_path)
    np.testing.assert_array_equal(np.isfinite(trace.seconds[:, 1]), [False, False, True, True, False])


def test_a_folder_of_unknown_tables_names_the_options(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}.csv").write_text("step,step_time_ms,loss\n0,100,3\n1,101,2\n")
    with pytest.raises(ValueError, match=r"rank0\.csv.* suggest --with iteration=step --with seconds=step_time_ms"):
        read_traces(tmp_path)
    (trace,) = read_traces(tmp_path, iteration="step", seconds="step_time_ms", unit="ms", samples=1)
    assert trace.workers == ("0", "1")


def test_files_of_several_workers_are_jobs(tmp_path):
    for gpus in (4, 8):
        rows = [{"worker": w, "iteration": 0, "samples": 8, "seconds": 1.0} for w in range(gpus)]
        pd.DataFrame(rows).to_csv(tmp_path / f"job_gpu{gpus}.csv", index=False)
    assert sorted(len(trace.workers) for trace in read_traces(tmp_path)) == [4, 8]


@pytest.mark.parametrize("column", ["samples", "seconds", "wait_seconds"])
def test_impossible_number_is_refused_with_its_row(made, column):
    values = {"samples": 8, "seconds": 1.0, "wait_seconds": 0.0} | {column: 1e308}
    lines = [
        "worker,iteration,samples,seconds,wait_seconds",
        "a,0,8,1,0",
        ",".join(["a", "1", *map(str, values.values())]),
    ]
    with pytest.raises(ValueError, match=rf"column '{column}' must hold numbers from 0 to .* row 3 holds 1e\+308"):
        read_traces(made("a.csv", "\n".join(lines)))
    with pytest.raises(ValueError, match=f"{column} must be a number from 0 to"):
        Trace(**{name: [[value]] for name, value in values.items()})


NAMES = ["=cmd()", "+1+1", "-2+3", "@sum", "'=a", "''=b", "plain", "'quoted'", "\tx"]


def test_names_are_no_formulas_for_a_spreadsheet(tmp_path):
    trace = Trace(
        *(np.ones((2, len(NAMES))) for _ in range(2)),
        workers=NAMES,
        covariates=np.ones((2, len(NAMES), 1)),
        covariate_names=["=HYPERLINK()"],
    )
    trace.save(tmp_path / "a.parquet")
    CliRunner().invoke(
        app, ["data", "load", str(tmp_path / "a.parquet"), "-o", str(tmp_path / "a.csv")], catch_exceptions=False
    )
    with (tmp_path / "a.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not [cell for cell in cells if cell[:1] in "=+-@\t\r" and cell]
    (back,) = read_traces(tmp_path / "a.csv")
    assert sorted(back.workers) == sorted(NAMES)
    assert back.covariate_names == ("=HYPERLINK()",)
