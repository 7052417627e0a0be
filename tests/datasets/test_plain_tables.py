"""Tables of plain numbers, read block by block: empty lines, headers alone, and names that come in one order."""

import io

import numpy as np
import pytest

from paceline.datasets.readers import plain
from paceline.datasets.readers.plain import plain_table

pa = pytest.importorskip("pyarrow")


def test_a_table_of_a_header_alone_is_none_of_plain_numbers():
    text = b"worker,seconds\n"
    assert plain_table(io.BytesIO(text), len(text), ["worker", "seconds"], "worker") is None


def test_lines_without_anything_change_no_table_however_many_there_are(monkeypatch):
    monkeypatch.setattr(plain, "BLOCK_BYTES", 64)
    rows = [f"{worker},{k}.5\n" for k in range(30) for worker in ("b", "a")]
    for blank in (0, 30, 59):
        text = "worker,seconds\n" + "".join([*rows[:blank], "\n" * 300, *rows[blank:], "\n" * 300])
        found = plain_table(io.BytesIO(text.encode()), len(text), ["worker", "seconds"], "worker")
        assert found["worker"].tolist() == ["b", "a"] * 30
        assert found["seconds"].tolist() == [k + 0.5 for k in range(30) for _ in range(2)]


@pytest.mark.parametrize(("missing", "looks"), [(None, 1), (50, 2)])
def test_names_are_looked_up_once_where_a_file_repeats_its_workers_in_one_order(monkeypatch, missing, looks):
    looked_up, names = [], [f"w{k % 7}" for k in range(100)]
    if missing is not None:
        del names[missing]
    as_it_was = plain._Names._looked_up
    monkeypatch.setattr(plain._Names, "_looked_up", lambda self, cells: looked_up.append(0) or as_it_was(self, cells))
    told, places = plain._Names(), []
    for k in range(0, len(names), 10):
        places += told.places(pa.array(names[k : k + 10])).tolist()
    assert [f"w{place}" for place in places] == names
    assert told.different.to_pylist() == [f"w{k}" for k in range(7)]
    assert len(looked_up) == looks


def test_places_of_names_take_four_bytes_each():
    told = plain._Names()
    for cells, expected in (([], []), (["b", "a"], [0, 1]), (["b", "a"], [0, 1]), (["c"], [2])):
        found = told.places(pa.array(cells, pa.string()))
        assert found.dtype == np.int32
        assert found.tolist() == expected


def test_a_worker_without_a_name_is_left_to_pandas_and_a_missing_number_is_unknown():
    for text, numbers in (("worker,seconds\na,1.5\n,2.5\n", None), ("worker,seconds\na,1.5\nb,\n", [1.5, np.nan])):
        found = plain_table(io.BytesIO(text.encode()), len(text), ["worker", "seconds"], "worker")
        if numbers is None:
            assert found is None
        else:
            np.testing.assert_array_equal(found["seconds"], numbers)
