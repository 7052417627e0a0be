"""Text files from others, by hand: how far they are read, which lines and cells they have, and what is refused."""

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paceline.datasets import growth
from paceline.datasets.formats.training_logs import trainings
from paceline.datasets.readers import files, read_traces
from paceline.datasets.readers.csv_rows import NUMBER, TEXT, _said, frame, headed, header_of
from paceline.datasets.readers.files import HEAD, Unzipped, head, json_of, numbered_lines, opened
from paceline.datasets.readers.plain import _as_pandas_reads, plain_table
from paceline.datasets.readers.tables import csv_table
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.timestamps import _hours, seconds_since_1970

NAN = float("nan")


def written(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_the_head_of_a_file_is_its_first_64_kilobytes_as_text(tmp_path, pack):
    path = written(tmp_path, pack(b"\xef\xbb\xbf" + b"a" * (HEAD - 4) + b"\xff" + b"b" * 9))
    assert head(path) == "a" * (HEAD - 4) + "\ufffd"
    assert HEAD == 65_536
    with opened(path) as file:
        assert len(file.read()) == HEAD + 9
    assert list(numbered_lines(written(tmp_path, pack(b"\xef\xbb\xbfa\r\nb\rc\n\nd")))) == [
        *((1, "a"), (2, "b"), (3, "c"), (4, ""), (5, "d"))
    ]


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_compressed_file_grows_to_its_limit_and_no_further(tmp_path, monkeypatch, beyond):
    monkeypatch.setattr(growth, "MOST_TIMES", 1)
    monkeypatch.setattr(growth, "FREE_BYTES", 100_000)
    path = written(tmp_path, gzip.compress(b"x" * (100_000 + beyond)))
    with opened(path) as file:
        if beyond:
            with pytest.raises(ValueError, match="grows to more than 100000 bytes when it is decomp"):
                file.read()
        else:
            assert len(file.read()) == 100_000
    with path.open("rb") as plain:
        assert Unzipped(path, plain).readable()


@pytest.mark.parametrize("length", [20, 21, 19])
def test_a_line_is_shorter_than_its_limit(length):
    text = b"a\n" + b"x" * (length - 1) + b"\n"
    found = files._bounded_lines(Path("f"), io.BytesIO(text), 20)
    assert next(found) == b"a\n"
    if length >= 20:
        with pytest.raises(
            ValueError, match=r"^f: a line is longer than 20 bytes; this is not a text file with lines$"
        ):
            list(found)
    else:
        assert list(found) == [text[2:]]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1", "is a Git LFS pointer"),
        (b"\x80\x04", "is a pickle"),
        (b"(dp0", "is a pickle"),
        (b"(lp1", "is a pickle"),
        (b"cos\nsystem\n", "is a pickle"),
        (b"PK\x03\x04", "is a zip archive"),
        (b"\x93NUMPY", "is a numpy array"),
        (b"\x89HDF", "is an HDF5 file"),
        (b"BZh", "is bzip2"),
        (b"cost\n3\n", None),
        (b"\x80\x06", None),
    ],
)
def test_a_file_is_known_by_its_first_bytes(tmp_path, first, said):
    path = tmp_path / "f.csv"
    if said is None:
        files._refuse(path, first)
        for ending in (".pkl", ".pickle"):
            with pytest.raises(ValueError, match="is a pickle"):
                files._refuse(path.with_suffix(ending), first)
        return
    with pytest.raises(ValueError, match=said):
        files._refuse(path, first)
    with pytest.raises(FileNotFoundError, match="there is no file"), opened(tmp_path):
        pass


def test_json_has_as_many_bytes_as_said(tmp_path):
    path = written(tmp_path, "[1, 2]")
    assert json_of(path, 6, "x") == [1, 2]
    with pytest.raises(ValueError, match=r"is larger than 5 bytes; do this$"):
        json_of(path, 5, "do this")


def test_columns_of_csv_are_read_by_name_in_blocks_and_infinite_numbers_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.datasets.readers.csv_rows.BLOCK_BYTES", 32)
    rows = "".join(f"{k};a{k};x;{k / 2}\n" for k in range(30))
    path = written(tmp_path, "skipped\nn; t ;unused;v\n" + rows + "inf;NA;;-inf\n7;;;\n")
    tally = Tally()
    found = frame(path, {"t": TEXT, "n": NUMBER, "v": NUMBER}, tally, missing=["NA"], delimiter=";", skip=1)
    assert list(found.columns) == ["t", "n", "v"]
    np.testing.assert_array_equal(found["n"], [*range(30), NAN, 7])
    np.testing.assert_array_equal(found["v"], [*(k / 2 for k in range(30)), NAN, NAN])
    assert found["t"].tolist()[:30] == [f"a{k}" for k in range(30)]
    assert found["t"].isna().tolist()[30:] == [True, True]
    assert list(found.index) == list(range(32))
    assert (tally.meta()["rows_read"], tally.meta()["dropped"]) == (
        "32",
        "1 infinite values of n, 1 infinite values of v",
    )
    plain = frame(written(tmp_path, "1,2\n3,4\n"), {"b": NUMBER}, Tally(), names=["a", "b"])
    assert plain["b"].tolist() == [2, 4]
    assert frame(written(tmp_path, "a\n1\n"), {"a": NUMBER, "z": NUMBER}, Tally(), optional=["z"]).columns.tolist() == [
        "a"
    ]
    assert frame(written(tmp_path, "h\n1,2\n"), {"b": NUMBER}, Tally(), names=["a", "b"], skip=1)["b"].tolist() == [2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", r"columns \['c'\] are missing; it has \['a', 'b'\]$"),
        ("a,c,c\n1,2,3\n", r"the header repeats the columns \['c'\]$"),
        ("a,c\n1,2\n3,x\n", "row 3, column 'c': must hold a number, got 'x'$"),
        ("a,c\n1,2\n3\n", "row 3: must have 2 cells, got 1: 3$"),
        ("a,c\n", "has no rows$"),
        (b"a,c\n\xff,2\n", None),
    ],
)
def test_what_is_wrong_with_a_csv_is_said_with_its_row_and_column(tmp_path, text, said):
    path = written(tmp_path, text)
    if said is None:
        assert frame(path, {"c": NUMBER}, Tally())["c"].tolist() == [2]
        return
    with pytest.raises(ValueError, match=said):
        frame(path, {"c": NUMBER}, Tally())


def test_sentences_of_the_parser_are_cut_and_headers_found():
    assert _said("x" * 399, []) == "x" * 399
    assert _said("x" * 400, []) == "x" * 400 + " ..."
    assert _said("a straddling object", []).startswith("a row is longer than 1 MB")
    assert _said("row out of sync", []).startswith("a row is longer than 1 MB")
    assert header_of(' a ,"b,c"\nd') == ["a", "b,c"]
    assert header_of("") == []
    assert header_of('"' + "x" * (csv.field_size_limit() + 9)) == []


def test_a_set_without_a_header_may_have_one(tmp_path):
    table = csv_table("t", "pai_*.csv", "machine cap", texts="machine")
    for text in ("machine,cap\nm,3\n", "m,3\n"):
        path = written(tmp_path, text, "pai_x.csv")
        assert headed(path, ["machine", "cap"]) is text.startswith("machine")
        assert table.read(path).to_dict("list") == {"machine": ["m"], "cap": [3.0]}
    assert table.fits(Path("pai_x.csv.gz"), "")
    assert table.fits(Path("other"), "cap,machine,z\n")
    assert not table.fits(Path("other"), "machine,z\n")
    assert table.columns == ("machine", "cap")


def test_plain_tables_are_those_of_named_workers_and_numbers():
    def read(text, header, worker="w"):
        return plain_table(io.BytesIO(text.encode()), len(text), header, worker)

    found = read("w,x\nb,1\na,\nb,3\n", ["w", "x"])
    assert found["w"].tolist() == ["b", "a", "b"]
    np.testing.assert_array_equal(found["x"], [1, NAN, 3])
    for text, header in (
        ("w,w\n1,2\n", ["w", "w"]),
        ("v,x\n1,2\n", ["v", "x"]),
        ("w,\n1,2\n", ["w", ""]),
        ("w,x\n,2\n", ["w", "x"]),
        ("w,x\na,b\n", ["w", "x"]),
        ("w,x\n01,2\n", ["w", "x"]),
        ("w,x\n", ["w", "x"]),
        ("w, x\na,1\n", ["w", "x"]),
    ):
        assert read(text, header) is None
    assert not _as_pandas_reads([])
    long = "w,x\n" + "".join(f"r{k % 7},{k}\n" for k in range(60_000)) + "last,1\n"
    table = read(long, ["w", "x"])
    assert (len(table), table["w"].iloc[59_999], table["w"].iloc[-1], table["x"].iloc[59_999]) == (
        *(60_001, f"r{59_999 % 7}", "last", 59_999),
    )


def test_times_are_those_of_their_zone_and_the_first_that_is_none_is_named():
    texts = pd.Series(["1970-01-02 00:00:00", None, "1970-01-02T00:00:00.25Z", " 1970-01-02 00:00:00,5 PST "])
    found = seconds_since_1970(Path("x"), texts, "t")
    np.testing.assert_allclose(found, [86400, NAN, 86400.25, 86400.5 + 8 * 3600])
    assert [_hours(zone) for zone in ("", "Z", "UTC", "GMT", "PDT", "PST", "+01", "-01:30", "+0059")] == [
        *(0, 0, 0, 0, -7, -8, 1, -1.5, 59 / 60)
    ]
    for first_row, named in ((2, 3), (10, 11)):
        with pytest.raises(ValueError, match=f"^x: row {named}, column 't': must be a time like .*, got 'no'$"):
            seconds_since_1970(Path("x"), pd.Series([texts[0], "no", "never"]), "t", first_row)
    with pytest.raises(ValueError, match="row 2, "):
        seconds_since_1970(Path("x"), pd.Series(["1970-01-02 00:00:00 XYZ"]), "t")


def test_scalars_of_one_training_are_those_of_the_longest_and_rows_of_one_clock_are_one(tmp_path):
    def table(*rows):
        return pd.DataFrame(rows, columns=["Wall time", "Step", "Value"], dtype=float)

    long = table(*((10 * k, 100 * k, k) for k in range(10)))
    same = table(*((10 * k + 1, 100 * k, -k) for k in range(1, 8)))
    other = table(*((10 * k, 7 * k, 3 * k) for k in range(9)))
    groups = trainings({Path("s"): same, Path("o"): other, Path("l"): long, Path("one"): long[:1]})
    assert [[path.name for path in group] for group in groups] == [["l", "s"], ["o"], ["one"]]
    text = "Wall time,Step,Value\n5,1,1\n5,3,1\n,9,9\n7,3,1\n6,4,1\n9,2,1\n10,12,1\n"
    (trace,) = read_traces(written(tmp_path, text, "r.x.csv"), "tensorboard")
    np.testing.assert_array_equal(trace.samples[:, 0], [1, NAN, NAN, 10])
    np.testing.assert_array_equal(trace.seconds[:, 0], [1, NAN, NAN, 1])
    np.testing.assert_array_equal(trace.start[:, 0], [5, 6, 7, 9])
    assert (trace.name, trace.meta["restarts"]) == ("r", "2")
