"""Parquet: what a trace's file says and how it is packed, and each limit of files from others on both sides."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.datasets import Trace, bounded_parquet, growth, parquet
from paceline.datasets.bounded_parquet import read_frame, read_table
from paceline.datasets.columns import UNITS


def test_a_saved_trace_says_what_it_holds_and_is_packed_by_columns(tmp_path):
    shape = (30, 2)
    rng = np.random.default_rng(0)
    trace = Trace(np.full(shape, 8), rng.uniform(1, 2, shape), work=rng.uniform(1, 2, shape), meta={"job": "x"})
    assert trace.save(str(tmp_path / "t.parquet")) == tmp_path / "t.parquet"
    file = pq.ParquetFile(tmp_path / "t.parquet")
    assert json.loads(file.schema_arrow.metadata[b"paceline"]) == {
        "schema_version": 1,
        "units": UNITS,
        "workers": ["0", "1"],
        "covariates": [],
        "meta": {"job": "x"},
    }
    assert list(file.schema_arrow.metadata) == [b"paceline"]
    assert file.schema_arrow.names == ["iteration", "worker", "samples", "seconds", "work"]
    columns = {name: file.metadata.row_group(0).column(k) for k, name in enumerate(file.schema_arrow.names)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    packed = {name: {"RLE_DICTIONARY", "BYTE_STREAM_SPLIT"} & set(column.encodings) for name, column in columns.items()}
    split, listed = {"BYTE_STREAM_SPLIT"}, {"RLE_DICTIONARY"}
    assert packed == {"iteration": set(), "worker": listed, "samples": listed, "seconds": split, "work": split}


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ("[1]", "what the file says about itself must be a JSON object"),
        ('{"schema_version": 2}', "written with trace schema 2, but this version of paceline reads 1"),
        ('{"schema_version": 0}', "written with trace schema 0, but this version of paceline reads 1"),
        ('{"meta": []}', "must hold meta, an object, and workers, a list of names"),
        ('{"workers": "ab"}', "must hold meta, an object, and workers, a list of names"),
        ('{"workers": ["a", 1]}', "must hold meta, an object, and workers, a list of names"),
    ],
)
def test_what_a_file_says_of_itself_has_its_form(about, said):
    with pytest.raises(ValueError, match=said):
        parquet._about({b"paceline": about.encode()})


@pytest.mark.parametrize("about", [{}, {"schema_version": 1, "meta": {"a": "b"}, "workers": ["x"]}, {"workers": []}])
def test_what_a_file_says_of_itself_may_lack_any_part(about):
    assert parquet._about({b"paceline": json.dumps(about).encode()}) == about
    assert parquet._about({}) == {}


def about(rows=1, columns=1, sizes=(0,), fields=()):
    """What a Parquet file says of itself, without the file."""
    groups = [SimpleNamespace(total_byte_size=size) for size in sizes]
    said = SimpleNamespace(num_rows=rows, num_columns=columns, num_row_groups=len(groups), row_group=groups.__getitem__)
    return SimpleNamespace(metadata=said, schema_arrow=list(fields))


FREE = 64 << 20


@pytest.mark.parametrize(
    ("within", "beyond"),
    [
        ({"rows": FREE // 8}, {"rows": FREE // 8 + 1}),
        ({"rows": FREE // 24, "columns": 3}, {"rows": FREE // 24 + 1, "columns": 3}),
        ({"rows": FREE // 8, "columns": 0}, {"rows": FREE // 8 + 1, "columns": 0}),
        ({"sizes": (FREE,)}, {"sizes": (FREE + 1,)}),
        ({"sizes": (FREE - 9, 9)}, {"sizes": (FREE - 9, 10)}),
        ({"sizes": (FREE, -5)}, {"sizes": (FREE + 1, -5)}),
    ],
)
def test_a_file_that_says_itself_that_it_is_too_large_is_refused(tmp_path, within, beyond):
    path = tmp_path / "small"
    path.touch()
    bounded_parquet._check_metadata(path, about(**within))
    with pytest.raises(
        ValueError, match=f"^grows to more than {FREE} bytes in memory, over 200 times its size; if that"
    ):
        bounded_parquet._check_metadata(path, about(**beyond))


def test_four_thousand_and_ninety_six_columns_are_read_and_not_one_more(tmp_path):
    path = tmp_path / "small"
    path.touch()
    bounded_parquet._check_metadata(path, about(columns=4096))
    with pytest.raises(ValueError, match=r"^has 4097 columns; at most 4096 are read$"):
        bounded_parquet._check_metadata(path, about(columns=4097))


PLAIN = [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.bool_(), pa.null(), pa.string(), pa.large_string()]
NESTED = [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.map_(pa.string(), pa.int8()), pa.binary(), pa.date32()]


def test_columns_of_plain_numbers_and_texts_are_read_and_others_named(tmp_path):
    path = tmp_path / "small"
    path.touch()
    kinds = [*PLAIN, pa.dictionary(pa.int8(), pa.string())]
    bounded_parquet._check_metadata(path, about(fields=[pa.field(str(kind), kind) for kind in kinds]))
    for kind in NESTED:
        with pytest.raises(
            ValueError, match=r"^columns \['x'\] must hold plain numbers, texts or times, not lists or other"
        ):
            bounded_parquet._check_metadata(path, about(fields=[pa.field("a", pa.int8()), pa.field("x", kind)]))


@pytest.mark.parametrize(
    ("names", "rows", "expected"),
    [
        ("abc", 1 << 19, ["a", "b", "c"]),
        ("abc", 1 << 18, ["ab", "c"]),
        ("abc", (1 << 18) + 1, ["a", "b", "c"]),
        ("abc", (1 << 19) // 3, ["abc"]),
        ("abc", 0, ["abc"]),
        ("abc", 1 << 40, ["a", "b", "c"]),
        ("aba", 1 << 40, ["aba"]),
        (["a.b", "c"], 1 << 40, [["a.b", "c"]]),
        ("", 5, [""]),
    ],
)
def test_columns_are_read_in_portions_of_half_a_million_numbers(names, rows, expected):
    file = SimpleNamespace(metadata=SimpleNamespace(num_rows=rows), schema_arrow=SimpleNamespace(names=list(names)))
    assert bounded_parquet._portions(file) == [list(portion) for portion in expected]


@pytest.mark.parametrize(("columns", "rows"), [(0, 1 << 21), (1, 1 << 21), (2, 1 << 20), (32, 1 << 16), (999, 1 << 16)])
def test_two_million_numbers_are_read_at_once_or_65_thousand_rows(columns, rows):
    asked = []

    def batches(count, **named):
        asked.append((count, named))
        return [pa.record_batch({"a": [1.0]})]

    file = SimpleNamespace(
        metadata=SimpleNamespace(num_columns=columns),
        schema_arrow=pa.schema([("a", pa.float64())]),
        iter_batches=batches,
    )
    assert bounded_parquet._read(file, ("a",), 8).to_pydict() == {"a": [1.0]}
    assert asked == [(rows, {"columns": ["a"], "use_threads": False})]


def test_all_portions_together_grow_to_the_limit_and_no_further(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.arange(100.0), "b": np.arange(100.0), "c": np.arange(100.0)}).to_parquet(path)
    monkeypatch.setattr(bounded_parquet, "PORTION_NUMBERS", 1)
    monkeypatch.setattr(growth, "MOST_TIMES", 0)
    # each portion of a column takes 800 bytes, and a bit for each value that may be missing
    size = sum(read_table(path, [name]).nbytes for name in "abc")
    monkeypatch.setattr(bounded_parquet, "_check_metadata", lambda path, file: None)
    monkeypatch.setattr(growth, "FREE_BYTES", size)
    assert read_frame(path)[0].shape == (100, 3)
    monkeypatch.setattr(growth, "FREE_BYTES", size - 1)
    with pytest.raises(ValueError, match=f"^grows to more than {size - 1 - size // 3 * 2} bytes"):
        read_frame(path)


def test_texts_become_categories_and_what_pandas_says_of_itself_is_not_obeyed(tmp_path):
    frame = pd.DataFrame({"worker": ["a", "b", "a"], "x": [1, 2, 3]}, index=pd.Index([7, 8, 9], name="place"))
    frame.to_parquet(tmp_path / "t.parquet")
    found, about_it = read_frame(tmp_path / "t.parquet")
    assert list(found.columns) == ["worker", "x", "place"]
    assert isinstance(found["worker"].dtype, pd.CategoricalDtype)
    assert found["worker"].tolist() == ["a", "b", "a"]
    assert b"pandas" in about_it
    bare = pa.table({"x": [1.0, 2.0]}).replace_schema_metadata(None)
    pq.write_table(bare, tmp_path / "bare.parquet", store_schema=False)
    assert read_frame(tmp_path / "bare.parquet")[1] == {}


def test_texts_of_every_group_of_rows_are_one_dictionary(tmp_path):
    table = pa.table({"worker": ["a", "b", "c", "a"], "x": [1.0, 2.0, 3.0, 4.0]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    found = read_table(tmp_path / "t.parquet", ["worker"])
    assert found.column_names == ["worker"]
    assert len({tuple(chunk.dictionary.to_pylist()) for chunk in found["worker"].chunks}) == 1
    assert found["worker"].to_pylist() == ["a", "b", "c", "a"]


def test_a_table_without_rows_has_its_columns(tmp_path):
    pq.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.float64())}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", ["b"]).column_names == ["b"]
    assert list(read_frame(tmp_path / "t.parquet")[0].columns) == ["a", "b"]
