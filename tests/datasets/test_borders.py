"""Where readers draw a line: sizes of files, headers, what is infinite, and how much a sentence lists."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from paceline.datasets import Trace, bounded_parquet, growth, read_traces
from paceline.datasets.formats.tables import _is_chart


@pytest.mark.parametrize("spoilt", [[], [(0, 0, 0)], [(1, 1, 1), (2, 0, 0)]])
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_an_infinite_covariate_is_unknown_and_all_others_stay(spoilt, value):
    panel = np.arange(12.0).reshape(3, 2, 2)
    panel[0, 1, 0] = np.nan
    wanted = panel.copy()
    for place in spoilt:
        panel[place], wanted[place] = value, np.nan
    trace = Trace(np.ones((3, 2)), np.ones((3, 2)), covariates=panel, covariate_names=["x", "y"])
    np.testing.assert_array_equal(trace.covariates, wanted)
    assert not trace.covariates.flags.writeable


@pytest.mark.parametrize(
    ("size", "most"), [(0, 64 << 20), (335544, 64 << 20), (335545, 67109000), (1 << 30, 200 << 30)]
)
def test_a_file_may_grow_to_64_mb_or_200_times_its_size(tmp_path, size, most):
    with (tmp_path / "a.parquet").open("wb") as file:
        file.truncate(size)
    assert growth.most_bytes(tmp_path / "a.parquet") == most


def test_a_file_may_grow_to_the_limit_and_not_by_a_byte_beyond(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"x": np.ones(10_000)}), tmp_path / "a.parquet")
    held = bounded_parquet.read_table(tmp_path / "a.parquet", ["x"]).nbytes
    monkeypatch.setattr(growth, "MOST_TIMES", 0)
    monkeypatch.setattr(growth, "FREE_BYTES", held)
    assert bounded_parquet.read_table(tmp_path / "a.parquet", ["x"]).num_rows == 10_000
    monkeypatch.setattr(growth, "FREE_BYTES", held - 1)
    with pytest.raises(ValueError, match=f"grows to more than {held - 1} bytes"):
        bounded_parquet.read_table(tmp_path / "a.parquet", ["x"])


@pytest.mark.parametrize(
    ("header", "is_chart"),
    [("Step,a,a__MIN,a__MAX", True), ("Step,a,a__MIN", False), ("Step,a,a__MAX", False), ("a,a__MIN,b,b__MAX", False)],
)
def test_a_chart_has_the_least_and_the_largest_of_one_line(header, is_chart):
    assert _is_chart(Path("x.csv"), f"{header}\n1,2,3,4\n") is is_chart


def test_a_header_that_names_a_column_twice_is_refused(tmp_path):
    head = '"Dstat 0.7.2 CSV output"\n"total cpu usage",,\n"usr","sys","{}"\n1,1,98\n2,1,97\n'
    (tmp_path / "dstat.csv").write_text(head.format("idl"))
    assert len(list(read_traces(tmp_path / "dstat.csv"))) == 1
    (tmp_path / "dstat.csv").write_text(head.format("usr"))
    with pytest.raises(ValueError, match=r"the header repeats the columns \['cpu_usr'\]"):
        list(read_traces(tmp_path / "dstat.csv"))


@pytest.mark.parametrize("bad", [1, 5, 6, 9])
def test_of_ranks_without_metrics_five_are_named(tmp_path, bad):
    rows = {str(rank): {"metrics": None} for rank in range(bad)}
    told = {
        "schema_version": 1.6,
        "primary_diagnosis": {},
        "step_time": {"groups": {"by": "global_rank", "rows": rows}},
    }
    (tmp_path / "s.json").write_text(json.dumps(told))
    named = re.escape(str([str(rank) for rank in range(min(bad, 5))]))
    with pytest.raises(ValueError, match=f"ranks {named} have no metrics"):
        list(read_traces(tmp_path / "s.json"))
