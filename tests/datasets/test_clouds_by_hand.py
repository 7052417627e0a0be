"""Sets of many machines on rows made here and read by hand: ByteDance's operations, and usage as of Google."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import read_traces
from paceline.datasets.formats import cluster_traces
from paceline.datasets.readers import FORMATS, read_table
from paceline.datasets.readers.csv_rows import NUMBER, frame
from paceline.datasets.readers.tally import Tally

NAN = float("nan")

# -- ByteDance -----------------------------------------------------------------------------------------------------


def operation(rank, step_, kind="forward-compute", duration=1.0, seq=0, stage=0):
    return {"rank": rank, "stage": stage, "step": step_, "optype": kind, "duration": duration, "seq_id": seq}


def parquet(path, rows):
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_operations_of_bytedance_are_summed_by_step_and_cut_at_gaps_of_more_than_a_hundred(tmp_path):
    rows = [
        operation(3, 101, duration=0.5),
        operation(3, 1, duration=0.25),
        operation(3, 1, "backward-compute", 0.125),
        operation(1, 1, duration=2.0),
        operation(1, 202, duration=4.0),
        operation(1, 1, "optimizer", 7.0),
        operation(1, 101, duration=-1.0),
        operation(1, 101, "backward-compute", float("inf")),
        operation(1, 101, "backward-compute", NAN),
        operation(3, 302, duration=0.0),
        operation(1, 1, duration=1.0, seq=NAN),
        operation(5, 9, duration=3.0, stage=2),
    ]
    traces = read_traces(parquet(tmp_path / "trace-job.1.parquet", rows), "bytedance_llm")
    names = [f"bytedance-job-stage{stage}-window{window}" for stage, window in ((0, 0), (0, 1), (2, 0))]
    assert [trace.name for trace in traces] == names
    assert [trace.workers for trace in traces] == [("rank 1", "rank 3")] * 2 + [("rank 5",)]
    np.testing.assert_array_equal(traces[0].seconds, [[2.0, 0.375], [NAN, 0.5]])
    np.testing.assert_array_equal(traces[0].samples, [[1.0, 1.0], [NAN, 1.0]])
    np.testing.assert_array_equal(traces[1].seconds, [[4.0, NAN], [NAN, 0.0]])
    np.testing.assert_array_equal(traces[2].seconds, [[3.0]])
    assert [trace.meta["steps"] for trace in traces] == [
        "2 recorded of 1 to 101",
        "2 recorded of 202 to 302",
        "1 recorded of 9 to 9",
    ]
    assert traces[0].meta["rows_read"] == "12"
    assert traces[0].meta["dropped"] == (
        "1 operations other than forward and backward computing, 3 operations with a negative or unknown duration"
    )


def test_forward_micro_batches_of_bytedance_stand_in_the_order_of_their_steps(tmp_path):
    rows = [
        *(operation(0, 2, duration=0.5 + seq, seq=seq) for seq in (1, 0)),
        *(operation(0, 1, duration=8.5 + seq, seq=seq) for seq in (0, 1)),
        *(operation(1, 1, duration=4.5 + seq, seq=seq) for seq in (2, 0, 1)),
        operation(1, 1, "backward-compute", 99.0),
    ]
    (trace,) = read_traces(parquet(tmp_path / "trace-a.parquet", rows), "bytedance_llm", micro_batches=True)
    np.testing.assert_array_equal(trace.seconds, [[8.5, 4.5], [9.5, 5.5], [NAN, 6.5], [0.5, NAN], [1.5, NAN]])


def test_a_job_of_bytedance_that_was_started_again_goes_on_after_its_first_run(tmp_path):
    rows = [operation(rank, s, duration=1.0 + s) for s in (5, 6, 7) for rank in (0, 1)]
    rows += [operation(rank, s, duration=11.0 + s) for s in (6, 7) for rank in (0, 1)]
    (trace,) = read_traces(parquet(tmp_path / "trace-a.parquet", rows), "bytedance_llm")
    np.testing.assert_array_equal(trace.seconds, np.repeat([[6.0], [7.0], [8.0], [17.0], [18.0]], 2, axis=1))
    assert (trace.meta["restarts"], trace.meta["steps"]) == ("1", "5 recorded of 5 to 9")


def test_what_is_wrong_with_a_table_of_bytedance_is_said(tmp_path):
    path = tmp_path / "trace-a.parquet"
    for rows, said in (
        ([operation(0, 1, "optimizer")], r"holds no forward or backward computing$"),
        ([operation("x", 1)], r"columns \['rank'\] must hold numbers$"),
        ([{k: v for k, v in operation(0, 1).items() if k != "stage"}], r"columns \['stage'\] are missing; it has \['r"),
    ):
        with pytest.raises(ValueError, match=rf"trace-a\.parquet: {said}"):
            read_traces(parquet(path, rows), "bytedance_llm")
    says = FORMATS["bytedance_llm"].recognises
    assert says(parquet(path, [operation(0, 1)]), "PAR1")
    assert not says(path, "PAR2")
    assert not says(parquet(path, [{"optype": "x", "rank": 1, "stage": 2}]), "PAR1")
    path.write_bytes(b"PAR1 and no more")
    assert not says(path, "PAR1")


# -- Google --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_at_once", [2, 50_000])
def test_instances_of_google_are_named_by_both_numbers_and_have_a_row_every_five_minutes(
    tmp_path, monkeypatch, rows_at_once
):
    monkeypatch.setattr(cluster_traces, "BLOCK_ROWS", rows_at_once)
    rows = [
        {"start_time": "600000000", "collection_id": 7, "instance_index": 0, "average_usage": {"cpus": 0.5}},
        {"start_time": 900000000, "collection_id": 7, "instance_index": 0, "average_usage.cpus": "0.25"},
        {"start_time": 600000000, "collection_id": 7, "instance_index": 1, "sample_rate": 1e999},
        {"start_time": 900000000, "collection_id": 7, "instance_index": 1, "assigned_memory": "", "sample_rate": None},
        {"start_time": 600000000, "collection_id": 7, "sample_rate": 0.5},
        {"start_time": 600000000, "instance_index": 7, "sample_rate": 0.5},
        {"start_time": 0, "collection_id": 7, "instance_index": 1, "sample_rate": 0.5, "average_usage": 3},
    ]
    path = tmp_path / "instance_usage-0.json"
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    (trace,) = read_traces(path, "google_2019")
    assert trace.workers == ("7/0", "7/1")
    cpus = trace.covariates[..., trace.covariate_names.index("average_usage.cpus")]
    np.testing.assert_array_equal(cpus, [[0.5, NAN], [0.25, NAN]])
    assert (trace.meta["rows_read"], trace.meta["rows_dropped"]) == ("7", "3")
    assert "1 rows before or after the trace's time" in trace.meta["dropped"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "must be one JSON object, but "),
        ("[1]", "must be one JSON object, got a list"),
        ('{"start_time": [1]}', "field 'start_time': must be a number, got [1]"),
        ('{"start_time": "soon"}', "field 'start_time': must be a number, got 'soon'"),
        ('{"average_usage": {"cpus": {}}}', "field 'average_usage.cpus': must be a number, got {}"),
        ('{"start_time": 1' + 400 * "0" + "}", "field 'start_time': must be a number, got 1"),
    ],
)
def test_a_wrong_line_of_google_is_named_by_its_number(tmp_path, line, said):
    path = tmp_path / "instance_usage-0.json"
    path.write_text('{"start_time": 600000000, "collection_id": 7, "instance_index": 0}\n\n' + line)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - all of it is compared
        read_traces(path, "google_2019")
    assert str(refused.value).startswith(f"{path}: line 3")
    assert said in str(refused.value)


def test_rows_of_google_may_be_a_table_with_some_of_its_columns(tmp_path):
    path = tmp_path / "usage.csv"
    path.write_text("start_time,collection_id,instance_index,average_usage.cpus\n600000000,7,0,0.5\n900000000,7,0,\n")
    (trace,) = read_traces(path, "google_2019")
    assert (trace.workers, len(trace)) == (("7/0",), 2)
    known = {name: trace.covariates[0, 0, d] for d, name in enumerate(trace.covariate_names)}
    assert {name for name, value in known.items() if np.isfinite(value)} == {"average_usage.cpus"}
    says = FORMATS["google_2019"].recognises
    head = path.read_text()
    assert says(path, head)
    assert not says(path, head.replace("instance_index", "x"))
    assert not says(path, head.replace("average_usage.cpus", "x"))
    for text, known_by in (('{"collection_id": 1, "average_usage": 1}', True), ('{"collection_id": 1}', False)):
        assert says(path, f"  {text}") is known_by
    assert not says(path, '{"average_usage": 1}')
    assert FORMATS["google_2019"].job(Path("in/here/usage.csv")) == "in/here"


def test_machine_events_of_google_are_a_row_each(tmp_path):
    path = tmp_path / "machine_events-0.json"
    path.write_text('{"time": 5, "machine_id": 7, "type": 1, "capacity": {"cpus": 0.5}}\n{"capacity.memory": 2}\n')
    table = read_table(path, "google_machine_events")
    assert table.columns.tolist() == list(cluster_traces.EVENT)
    first = table.iloc[0]
    assert [first[name] for name in cluster_traces.EVENT[:4]] == [5, 7, 1, 0.5]
    assert table["capacity.memory"].tolist()[1] == 2


# -- any table -----------------------------------------------------------------------------------------------------


def test_a_wrong_cell_of_several_lines_is_named_by_its_row_and_column(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,c\n1,2\n3,"x\ny"\n')
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - all of it is compared
        frame(path, {"c": NUMBER}, Tally())
    assert str(refused.value) == f"{path}: row 3, column 'c': must hold a number, got " + repr("x\ny")
