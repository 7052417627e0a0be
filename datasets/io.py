"""Read files from others: compressed or not, text, JSON and strict CSV; never a pickle or a decompression bomb."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from paceline.datasets.parquet import MAX_GROWTH, max_bytes_of

if TYPE_CHECKING:
    import pandas as pd


class RowCounts:
    """Counts, by reason, of rows and single values that a reader dropped, and of rows that it changed.

    >>> counts = RowCounts()
    >>> counts.count_read(10)
    >>> counts.drop_rows("repeated rows", 2)
    >>> counts.to_meta()
    {'rows_read': '10', 'rows_dropped': '2', 'dropped': '2 repeated rows'}
    """

    def __init__(self) -> None:
        self._rows_read = self._restarts = 0
        self._rows, self._cells, self._notes = Counter[str](), Counter[str](), Counter[str]()

    def add(self, other: RowCounts) -> None:
        """Add the counts of another file."""
        self._rows_read += other._rows_read
        self._restarts += other._restarts
        self._rows += other._rows
        self._cells += other._cells
        self._notes += other._notes

    def count_read(self, count: float) -> None:
        """Count rows of the file."""
        self._rows_read += int(count)

    def drop_rows(self, reason: str, count: float) -> None:
        """Count dropped rows."""
        self._rows[reason] += int(count)

    def keep_rows(self, rows: pd.DataFrame, mask: pd.Series[bool] | NDArray[np.bool_], reason: str) -> pd.DataFrame:
        """Return the rows for which ``mask`` is true, and count the others as dropped."""
        self.drop_rows(reason, len(rows) - int(np.count_nonzero(mask)))
        return rows[mask]

    def drop_cells(self, reason: str, count: float) -> None:
        """Count dropped single values; their rows stay, with NaN."""
        self._cells[reason] += int(count)

    def count_changed(self, change: str, count: float) -> None:
        """Count rows that were sorted or merged."""
        self._notes[change] += int(count)

    def count_restarts(self, count: float) -> None:
        """Count how often the job, or what recorded it, was started again."""
        self._restarts += int(count)

    def to_meta(self) -> dict[str, str]:
        """Return the entries for a trace's ``meta``, for everything read so far."""
        changed = _format_counts(self._notes)
        return {
            "rows_read": str(self._rows_read),
            "rows_dropped": str(sum(self._rows.values())),
            "dropped": _format_counts(self._rows + self._cells) or "nothing",
            **({"changed": changed} if changed else {}),
            **({"restarts": str(self._restarts)} if self._restarts else {}),
        }

    def summary(self) -> str:
        """Return what was dropped and changed, for a person who did not ask; empty if nothing was."""
        dropped, changed = _format_counts(self._rows + self._cells), _format_counts(self._notes)
        again = f"the job was started again {self._restarts} times" if self._restarts else ""
        return "; ".join(text for text in (dropped and f"dropped: {dropped}", changed, again) if text)


def _format_counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)


HEAD_BYTES = 1 << 16
"""Bytes at the start of a file that are used to recognize its format."""


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read bytes, through gzip; refuse an empty one, a pickle, an archive, and what grows too large."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    with path.open("rb") as stored:
        compressed = stored.peek().startswith(b"\x1f\x8b")
        file = io.BufferedReader(_GzipReader(path, stored), HEAD_BYTES) if compressed else stored
        try:
            _reject_unreadable(path, file.peek())
            yield file
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: the compressed file is truncated or damaged ({error}): copy it again") from error


def is_json(text: str) -> bool:
    """Return whether a text begins like a JSON object or list."""
    return text.lstrip()[:1] in ("{", "[")


def read_head(path: Path) -> str:
    """Return the start of a file as text; bytes that are not text are replaced."""
    with open_bytes(path) as file:
        return file.read(HEAD_BYTES).decode("utf-8-sig", errors="replace")


def read_json(path: Path, limit: int, advice: str) -> Any:
    """Return the content of a JSON file of at most ``limit`` bytes; for a larger one the error ends with ``advice``."""
    with open_bytes(path) as file:
        text = file.read(limit + 1)
    if len(text) > limit:
        raise ValueError(f"{path} is larger than {limit} bytes; {advice}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not a complete JSON file: {error}") from None


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of a UTF-8 text file with its number, from 1; a carriage return ends a line too."""
    number, limit = 0, 1 << 24
    with open_bytes(path) as file:
        while raw := file.readline(limit):
            if len(raw) == limit:
                raise ValueError(f"{path} has a line of more than {limit} bytes, so it is not a text file with lines")
            for piece in raw.replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\r"):
                number += 1
                try:
                    yield number, piece.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{path}: line {number} must be UTF-8 text, but is not: {error}") from error


def counted_lines(path: Path, row_counts: RowCounts) -> Iterator[tuple[int, str]]:
    """Yield each line that is not blank with its number, and count it as read."""
    for number, line in numbered_lines(path):
        if line.strip():
            row_counts.count_read(1)
            yield number, line


def _reject_unreadable(path: Path, head: bytes) -> None:
    if not head:
        raise ValueError(f"{path} is empty")
    # the text that stands for a file in a clone without Git LFS
    if head.startswith(b"version https://git-lfs.github.com/spec"):
        raise ValueError(f"{path} is a Git LFS pointer, not the file itself; fetch the file with `git lfs pull`")
    # Pickles of every protocol; older protocols are text: a module's name on a line, then that of a member.
    # Headers such as ``cost`` and ``cnt`` begin like a module, and numbers follow.
    pickled = (
        rb"\x80[\x00-\x05]|\(dp\d|\(lp\d"
        rb"|c(__builtin__|builtins|copy_reg|copyreg|os|posix|nt|subprocess|numpy|pandas)(\.\w+)*\n[A-Za-z_][\w.]*\n"
    )
    if re.match(pickled, head) or path.suffix in (".pkl", ".pickle"):
        raise ValueError(
            f"{path} is a pickle file, which can run code when loaded, so it was not opened: export JSON or CSV"
        )
    binary = {b"PK\3\4": "a zip archive", b"\x93NUMPY": "a numpy array", b"\x89HDF": "an HDF5 file", b"BZh": "bzip2"}
    for magic, name in binary.items():
        if head.startswith(magic):
            raise ValueError(f"{path} is {name}, which no format can be read from: unpack it, or export it as CSV")


class _GzipReader(io.RawIOBase):
    """The content of a gzip file, up to a largest size."""

    def __init__(self, path: Path, compressed: BinaryIO) -> None:
        self._path = path
        self._file = gzip.GzipFile(fileobj=compressed)
        self._limit = max_bytes_of(path)
        self._grown = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read(len(buffer))
        self._grown += len(data)
        if self._grown > self._limit:
            raise ValueError(
                f"{self._path} grows to more than {self._limit} bytes when decompressed, over {MAX_GROWTH} times its "
                "size; if this is intended, decompress it yourself first"
            )
        buffer[: len(data)] = data
        return len(data)


def seconds_since_1970(path: Path, texts: pd.Series, column: str, first_row: int = 2) -> NDArray[np.float64]:
    """Return the seconds since 1970 of times such as ``2017-10-03 00:08:00 UTC``; NaN where the cell is empty.

    A time without a zone is taken as UTC. The error for another text names file, row (``first_row`` is the first
    row's) and column.

    >>> import pandas as pd
    >>> times = pd.Series(["1970-01-01 00:00:01.5", "1970/01/01 00:00:01 UTC", "1970-01-01T02:00:01+02:00"])
    >>> seconds_since_1970(Path("x"), times, "time").tolist()
    [1.5, 1.0, 1.0]
    """
    import pandas as pd

    time, zone = r"\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?", r"Z|UTC|GMT|[+-]\d\d(?::?[0-5]\d)?"
    parts = texts.astype("str").str.extract(rf"^\s*({time})\s*({zone})?\s*$")
    written = parts[0].str.replace(",", ".") + parts[1].str.replace("UTC|GMT", "Z", regex=True).fillna("")
    times = pd.to_datetime(written, format="ISO8601", utc=True, errors="coerce")
    bad = (texts.notna() & times.isna()).to_numpy(dtype=bool)
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(
            f"{path}: column {column!r} must hold times like 2017-10-03 00:08:00 with the zone UTC, an offset like "
            f"+02:00, or none, but row {first_row + row} holds {texts.iloc[row]!r}"
        )
    seconds = (times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(1, "s")
    return np.asarray(seconds, dtype=np.float64)


NUMBER, TEXT = "number", "text"
"""Kinds of columns."""


def parse_header(text: str, delimiter: str = ",") -> list[str]:
    """Return the column names in the first line of a text."""
    lines = text.splitlines()[:1]
    try:
        return [name.strip() for row in csv.reader(lines, delimiter=delimiter) for name in row]
    except csv.Error:
        return []


def detect_delimiter(text: str) -> str:
    """Return what separates the cells of a table's first line: a semicolon or a tab where it holds no comma."""
    first = text.splitlines()[0] if text else ""
    return next((delimiter for delimiter in ",;\t" if delimiter in first), ",")


def iter_csv_frames(
    path: Path,
    columns: Mapping[str, str],
    row_counts: RowCounts,
    *,
    names: Sequence[str] = (),
    optional: Sequence[str] = (),
    null_words: Sequence[str] = (),
    skip: int = 0,
) -> Iterator[pd.DataFrame]:
    """Yield the columns of a CSV file block by block; infinite numbers become NaN and are counted.

    ``columns`` are those wanted, each :data:`NUMBER` or :data:`TEXT`; the file may lack the ``optional`` ones.
    ``names`` are all columns of a file without a header, of which the first ``skip`` lines are left out. ``null_words``
    are words that mean "no value" beside the empty cell.
    """
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    found = list(names) or parse_header(read_head(path))
    lacking = [name for name in columns if name not in found]
    if needed := [name for name in lacking if name not in optional]:
        raise ValueError(f"{path}: columns {needed} are missing; it has {found}")
    wanted = {name: kind for name, kind in columns.items() if name not in lacking}
    if repeated := sorted({name for name in wanted if found.count(name) > 1}):
        raise ValueError(f"{path}: columns {repeated} appear more than once; rename all but one")
    convert = arrow_csv.ConvertOptions(
        column_types={name: pa.float64() if kind == NUMBER else pa.string() for name, kind in wanted.items()},
        include_columns=list(wanted),
        null_values=["", *null_words],
        strings_can_be_null=True,
    )
    # the parser takes about fifty times as much memory as the block that it parses
    skipped = skip if names else 1
    read = arrow_csv.ReadOptions(column_names=found, skip_rows=skipped, block_size=1 << 20, use_threads=False)
    try:
        with open_bytes(path) as file:
            for batch in arrow_csv.open_csv(file, read_options=read, convert_options=convert):
                block = batch.to_pandas()
                row_counts.count_read(len(block))
                for name in (name for name, kind in wanted.items() if kind == NUMBER):
                    if (infinite := np.isinf(block[name].to_numpy())).any():
                        block.loc[infinite, name] = np.nan
                        row_counts.drop_cells(f"infinite values of {name}", infinite.sum())
                yield block
    except pa.ArrowException as error:
        raise ValueError(f"{path}: {_describe_parser_error(str(error), found)}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text, but is not: {error}") from error


def read_csv_frame(path: Path, columns: Mapping[str, str], row_counts: RowCounts, **options: Any) -> pd.DataFrame:
    """Return the columns of a CSV file that fits into memory: see :func:`iter_csv_frames`."""
    import pandas as pd

    blocks = [block for block in iter_csv_frames(path, columns, row_counts, **options) if len(block)]
    if not blocks:
        raise ValueError(f"{path} has no rows")
    return pd.concat(blocks, ignore_index=True)


def _describe_parser_error(sentence: str, column_names: Sequence[str]) -> str:
    """Translate the parser's error: rows numbered like lines in an editor, columns by their names."""
    if found := re.search(r"In CSV column #(\d+): Row #(\d+): .*invalid value '(.*)'", sentence, re.DOTALL):
        return f"column {column_names[int(found[1])]!r} must hold numbers, but row {found[2]} holds {found[3]!r:.300}"
    if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", sentence):
        return f"row {found[1]} must have {found[2]} cells, got {found[3]}"
    if "straddl" in sentence or "out of sync" in sentence:
        return "a row is longer than 1 MB, or a quotation mark is not closed"
    return sentence if len(sentence) < 400 else sentence[:400] + " ..."


def describe_csv_error(error: Exception) -> str:
    """Return what is wrong with a CSV file, from what pandas raised about it."""
    if isinstance(error, UnicodeDecodeError):
        return "the file must be UTF-8 text"
    if uneven := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
        return f"row {uneven[2]} must have {uneven[1]} cells like the header, got {uneven[3]}"
    if "No columns" in str(error):
        return "the file has no header and no rows"
    return f"the file is not a CSV table: a quotation mark may not be closed ({str(error).rpartition(': ')[2]})"
