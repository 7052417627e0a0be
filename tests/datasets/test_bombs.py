"""Small files that would fill a memory: each is refused, and the kernel holds the reader to a bound while it reads.

The bounds are multiples of the files' sizes plus what every process needs, set on a process of its own.
"""

import numpy as np
import pytest
from bounded import bounded

READ = """
import sys
import pandas, pyarrow.csv, pyarrow.parquet, numpy
from paceline.datasets import read_traces
numpy.ones((50, 50)) @ numpy.ones((50, 50))
limit(megabytes=500, cpu_seconds=20)
try:
    read_traces(sys.argv[1], sys.argv[2])
    print("read")
except ValueError as error:
    assert sys.argv[1] in str(error), error
    print("refused")
"""


def parquet(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, compression="zstd")
    return path


def test_rows_of_parquet_that_take_no_room_are_refused(tmp_path):
    rows = 20_000_000
    zeros = np.zeros(rows)
    path = parquet(
        tmp_path / "bomb.parquet", worker=zeros, iteration=np.zeros(rows, np.int32), samples=zeros, seconds=zeros
    )
    assert path.stat().st_size < 1 << 20
    assert bounded(READ, path, "parquet") == "refused"


def test_one_long_parquet_text_refused(tmp_path):
    import pyarrow as pa

    rows = 100_000
    worker = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * 1_000_000]).cast(
        pa.dictionary(pa.int32(), pa.string())
    )
    path = parquet(
        tmp_path / "bomb.parquet",
        worker=worker,
        iteration=np.arange(rows),
        samples=np.ones(rows),
        seconds=np.ones(rows),
    )
    assert bounded(READ, path, "parquet") == "refused"


def test_nested_and_many_columns_refused(tmp_path):
    plain = {"worker": ["a"], "iteration": [0], "samples": [1.0], "seconds": [1.0]}
    assert bounded(READ, parquet(tmp_path / "good.parquet", **plain), "parquet") == "read"
    nested = parquet(tmp_path / "nested.parquet", **plain, extra=[[[1.0] * 10]])
    wide = parquet(tmp_path / "wide.parquet", **plain, **{f"c{k}": [0.0] for k in range(5000)})
    assert bounded(READ, nested, "parquet") == "refused"
    assert bounded(READ, wide, "parquet") == "refused"


def test_a_panel_that_would_be_nearly_empty_is_refused(tmp_path):
    rows = np.arange(40_000)
    path = parquet(
        tmp_path / "bomb.parquet", worker=rows.astype(str), iteration=rows, samples=rows * 1.0, seconds=rows * 1.0
    )
    assert bounded(READ, path, "parquet") == "refused"


@pytest.mark.parametrize("columns", [5_000, 100_000])
def test_far_too_many_columns_refused_at_once(tmp_path, columns):
    path = tmp_path / "wide.csv"
    names = ["worker", "iteration", "samples", "seconds", *(f"c{k}" for k in range(columns))]
    path.write_text(",".join(names) + "\n" + ",".join(["1"] * len(names)) + "\n")
    assert bounded(READ, path, "csv") == "refused"
