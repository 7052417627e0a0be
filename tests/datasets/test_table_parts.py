"""Tables from others, part by part: rates, periods, workers in columns, and what their names suggest."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.datasets.readers import read_traces
from paceline.datasets.readers.arrangement import Arrangement, holds_numbers, without_texts
from paceline.datasets.readers.nearest import names_in
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.tidy import is_table_with

KEPT = Path(__file__).parent / "results.json"
NAN = float("nan")


def arranged(table, **how):
    tally = Tally()
    return Arrangement(**how).applied(Path("x"), pd.DataFrame(table), tally), tally.meta()


def test_rates_are_the_samples_of_a_second_and_those_that_are_none_are_counted():
    rates = [4.0, 0.0, -1.0, np.inf, NAN, 1e-9]
    table, told = arranged({"iteration": range(6), "tps": rates, "x": 1}, rate="tps")
    np.testing.assert_array_equal(table["samples"], [4, NAN, NAN, NAN, NAN, 1e-9])
    assert (table["seconds"] == 1).all()
    assert (table["worker"] == "0").all()
    assert set(table.columns) == {"iteration", "x", "worker", "samples", "seconds"}
    assert told["dropped"] == "3 rates that are not positive and finite"
    with pytest.raises(ValueError, match=r"^columns \['tps'\] are missing; there are \['iteration'\]$"):
        arranged({"iteration": [1]}, rate="tps")


def test_rows_of_a_period_are_averaged_from_the_first_time_on():
    times = [100.0, 159.9, 159.95, 160.0, NAN, 400.0]
    table, told = arranged(
        {"worker": list("aaabab"), "at": times, "samples": [1, 3, 5, 7, 9, 11], "seconds": 2, "text": "x"}
        | {"load": range(6)},
        columns={"start": "at"}, period=60.0,
    )  # fmt: skip
    rows = table.set_index(["worker", "iteration"])
    assert rows["samples"].to_dict() == {("a", 0): 2.0, ("a", 1): 5.0, ("b", 1): 7.0, ("b", 5): 11.0}
    assert rows["load"].to_dict() == {("a", 0): 0.5, ("a", 1): 2.0, ("b", 1): 3.0, ("b", 5): 5.0}
    assert rows["start"].to_dict()["a", 0] == pytest.approx(129.95)
    assert "text" not in rows
    assert told["dropped"] == "1 rows without a time"
    assert told["changed"] == "1 rows were averaged with others of their period"
    in_ms, _ = arranged({"worker": "a", "start": [0, 60_000], "samples": 1, "seconds": 1}, period=60.0, start_unit="ms")
    assert in_ms["iteration"].tolist() == [0, 1]
    for wrong in ({"iteration": [1], "start": [1.0]}, {"x": [1.0]}):
        with pytest.raises(ValueError, match=r"^a period needs the column of times"):
            arranged({"worker": ["a"], "samples": 1, "seconds": 1, **wrong}, period=60.0)
    with pytest.raises(ValueError, match=r"^no row has a time$"):
        arranged({"worker": ["a"], "start": [NAN], "samples": 1, "seconds": 1}, period=60.0)


@pytest.mark.parametrize("values", ["seconds", "rate", "usage"])
def test_a_column_per_worker_becomes_a_row_for_each_cell(values):
    table = {"step": [4, 5], "a": [1.0, 2.0], "b": [3.0, 4.0], "text": "x", "start": [10.0, 20.0]}
    how = {"values": values, "columns": {"iteration": "step", **({"samples": 8} if values == "seconds" else {})}}
    found, _ = arranged(table, **how)
    assert found["worker"].tolist() == list("aabb")
    assert found["iteration"].tolist() == [4, 5, 4, 5]
    assert found["start"].tolist() == [10, 20, 10, 20]
    cells = [1.0, 2.0, 3.0, 4.0]
    expected = {"seconds": ([8] * 4, cells), "rate": (cells, [1] * 4), "usage": ([NAN] * 4, [NAN] * 4)}[values]
    np.testing.assert_array_equal(found["samples"], expected[0])
    np.testing.assert_array_equal(found["seconds"], expected[1])
    if values == "usage":
        assert found["usage"].tolist() == cells
    only, _ = arranged({"b": [3.0, 4.0], "a": [1.0, 2.0]}, values="usage", workers=["a"])
    assert (only["worker"].tolist(), only["iteration"].tolist()) == (["a", "a"], [0, 1])
    for workers, lacking in ((["a", "z"], r"\['z'\]"), ([], "none")):
        with pytest.raises(ValueError, match=f"^there must be a column for each worker, but {lacking} is none of "):
            arranged({"a": [1.0]}, values="usage", workers=workers)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"values": "times"}, r"values must be one of \['seconds', 'rate', 'usage'\], got 'times'"),
        ({"workers": ["a"]}, "workers are columns of a table with a column per worker"),
        ({"period": 0.0}, "period must be a positive number of seconds, got 0.0"),
        ({"period": np.inf}, "period must be a positive number of seconds, got inf"),
        ({"rate": "r", "values": "rate"}, "rate stands for samples and seconds"),
        ({"rate": "r", "columns": {"samples": 8}}, "rate stands for samples and seconds"),
        ({"rate": "r", "columns": {"seconds": "s"}}, "rate stands for samples and seconds"),
    ],
)
def test_options_that_cannot_hold_together_are_refused(how, said):
    with pytest.raises(ValueError, match=f"^{said}"):
        Arrangement(**how)
    assert not Arrangement().speaks
    assert all(Arrangement(**one).speaks for one in ({"rate": "r"}, {"values": "rate"}, {"columns": {"samples": 1}}))
    assert Arrangement(rate="r", columns={"worker": "w"}).period is None


def test_columns_without_a_number_are_left_out_and_named():
    table = pd.DataFrame(
        {"a": ["x", "2"], "b": ["x", "y"], "c": [None, None], "d": [True, False], "worker": ["v", "w"]}
    )
    left, texts = without_texts(table)
    assert (list(left.columns), texts) == (["a", "c", "d", "worker"], ["b"])
    assert not holds_numbers(pd.Series(["x", None]))
    assert holds_numbers(pd.Series([1.5]))


NAMES = [
    "step",
    "iter",
    "Iteration",
    "global_step",
    "timestamp",
    "time",
    "start_time",
    "event time",
    "date",
    "loss",
    "rank",
    "hostName",
    "gpu_id",
    "worker",
    "rank0",
    "gpu 1",
    "node-2",
    "7",
    "step_time_ms",
    "duration",
    "seconds",
    "elapsed_us",
    "latency",
    "time_s",
    "epoch_seconds",
    "ms",
    "batch_size",
    "tokens",
    "images",
    "tokens/s",
    "img_per_sec",
    "throughput",
    "samples",
    "its/second",
    "speed",
    "x",
    "",
]


@pytest.mark.parametrize(
    ("first", "options", "is_one"),
    [
        ("worker,iteration", {}, True),
        ("worker,x", {}, False),
        ("iteration,x", {}, False),
        ("w,k", {"worker": "w", "iteration": "k"}, True),
        ("w,iteration", {"worker": "w"}, True),
        ("ms", {"seconds": "ms"}, True),
        ("ms", {"seconds": "s"}, False),
        ("seconds,n", {"samples": "n"}, True),
        ("seconds,n", {}, False),
        ("seconds", {"samples": "n"}, False),
        ("r", {"rate": "r"}, True),
        ("a,b", {"values": "rate"}, True),
        ("n", {"samples": "n"}, False),
        ('[{"worker": 0, "iteration": 1}]', {}, True),
    ],
)
def test_a_table_is_one_if_workers_and_iterations_or_what_was_measured_have_columns(first, options, is_one):
    assert is_table_with(names_in(first), options) is is_one


def test_every_option_names_its_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("w,k,n,s,c,i,b\nx,3,8,250,50,60,1000\n")
    named = {"worker": "w", "iteration": "k", "samples": "n", "seconds": "s", "comm_seconds": "c", "wait_seconds": "i"}
    (trace,) = read_traces(path, "csv", **named, start="b", unit="ms", start_unit="min")
    assert (trace.workers, trace.samples.item(), trace.seconds.item()) == (("x",), 8, 0.25)
    assert (trace.comm_seconds.item(), trace.wait_seconds.item(), trace.start.item()) == (0.05, 0.06, 60_000)
    assert trace.covariate_names == ()


@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 1])
def test_a_megabyte_is_read_from_beside_a_table(tmp_path, size):
    path = tmp_path / "t.csv"
    path.write_text("worker,iteration,samples,seconds\nx,3,8,250\n")
    about = json.dumps({"licence": "y"})
    (tmp_path / "t.csv.meta.json").write_text(about + " " * (size - len(about)))
    if size == 1 << 20:
        assert read_traces(path)[0].meta["licence"] == "y"
    else:
        with pytest.raises(ValueError, match="is larger than 1048576 bytes; it is not what paceline wrote"):
            read_traces(path)
