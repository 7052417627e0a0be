"""Tables in JSON: lines of objects, a list of objects, an object of columns, and the range of a Prometheus query."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.datasets.parquet import MAX_COLUMNS
from paceline.datasets.readers.files import head, json_of, numbered_lines
from paceline.datasets.readers.tally import Tally

if TYPE_CHECKING:
    import pandas as pd


def is_json(text: str) -> bool:
    """Return whether a text begins like a JSON object or list."""
    return text.lstrip()[:1] in ("{", "[")


def json_table(path: Path, tally: Tally) -> pd.DataFrame:
    """Return the table in a JSON file. Incomplete lines, such as the last of a killed job, are counted.

    Raises
    ------
    ValueError
        If the file holds no table.
    """
    import pandas as pd

    if _is_lines(head(path)):
        return _of_rows(path, _objects_in_lines(path, tally), tally)
    # a file that is no lines of JSON is read into memory at once
    found = json_of(path, 1 << 29, "write one object a line instead, or CSV")
    if isinstance(found, list):
        return _of_rows(path, found, tally)
    if not isinstance(found, dict) or not found or not all(isinstance(column, list) for column in found.values()):
        raise ValueError(
            f"{path}: must hold lines of objects, a list of objects, or an object of lists, one per column"
        )
    lengths = {name: len(column) for name, column in found.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{path}: columns must have one length, got {_shown(lengths)}")
    table = pd.DataFrame({name: list(map(_cell, column)) for name, column in found.items()})
    tally.read(len(table))
    return _checked(path, table)


def prometheus_table(path: Path, tally: Tally) -> pd.DataFrame:
    """Return a Prometheus range as rows of ``worker``, ``start`` and ``value``.

    A worker is named by the labels in which the series differ.

    Raises
    ------
    ValueError
        If it is the answer to another query, or to none.
    """
    import pandas as pd

    series = _series(path)
    differing = _differing([one["metric"] for one in series])
    rows: dict[str, list[Any]] = {"worker": [], "start": [], "value": []}
    names = [_named(one["metric"], differing) for one in series]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: series must differ in their labels, got {_shown(names)}")
    for name, one in zip(names, series, strict=True):
        for pair in one["values"]:
            try:
                start, value = map(float, pair)  # a number is text in the answer: "NaN" and "+Inf" are some
            except (TypeError, ValueError):
                raise ValueError(f"{path}: a value must be a pair of time and number, got {pair!r:.100}") from None
            for column, cell in zip(rows.values(), (name, start, value), strict=True):
                column.append(cell)
    table = pd.DataFrame(rows)
    tally.read(len(table))
    return _checked(path, table)


def _series(path: Path) -> list[dict[str, Any]]:
    answer = json_of(path, 1 << 29, "query a shorter range")
    data = answer.get("data", answer) if isinstance(answer, dict) else {}
    if not isinstance(data, dict) or data.get("resultType") != "matrix" or not isinstance(data.get("result"), list):
        raise ValueError(
            f"{path}: must be the answer to a range query (resultType matrix), which api/v1/query_range gives"
        )
    series: list[dict[str, Any]] = data["result"]
    for one in series:
        if (
            not isinstance(one, dict)
            or not isinstance(one.get("metric"), dict)
            or not isinstance(one.get("values"), list)
        ):
            raise ValueError(f"{path}: a series must hold its metric and its values, got {one!r:.100}")
    return series


def _differing(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels in which series differ."""
    labels = dict.fromkeys(label for metric in metrics for label in metric)
    return [label for label in labels if len({str(metric.get(label)) for metric in metrics}) > 1]


def _named(metric: Mapping[str, Any], differing: Sequence[str]) -> str:
    """Return a series' name: its value of the one label in which they differ, or all of these with their labels.

    >>> _named({"job": "a", "instance": "h1:9"}, ["instance"]), _named({"gpu": "0", "node": "b"}, ["gpu", "node"])
    ('h1:9', 'gpu=0,node=b')
    """
    if len(differing) == 1:
        return str(metric.get(differing[0], ""))
    return ",".join(f"{label}={metric.get(label, '')}" for label in differing) or "0"


def _is_lines(text: str) -> bool:
    """Return whether JSON holds an object in each line: the first line is an object, and not the whole table."""
    first, _, more = text.lstrip().partition("\n")
    try:
        return isinstance(json.loads(first), dict) and (bool(more.strip()) or not _is_columns(json.loads(first)))
    except (ValueError, RecursionError):
        return False


def _is_columns(found: dict[str, Any]) -> bool:
    return bool(found) and all(isinstance(column, list) for column in found.values())


def _objects_in_lines(path: Path, tally: Tally) -> Iterator[dict[str, Any]]:
    for _, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            yield found
        else:
            tally.read(1)
            tally.rows("lines that hold no complete JSON object", 1)


def _of_rows(path: Path, rows: Iterable[Any], tally: Tally) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, list[Any]] = {}
    count = 0
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{path}: a row must be a JSON object, got {row!r:.100}")
        for name, value in row.items():
            if name not in columns:
                columns[name] = [None] * count
                if len(columns) > MAX_COLUMNS:
                    raise ValueError(f"{path}: has more than {MAX_COLUMNS} columns; at most these are read")
            columns[name].append(_cell(value))
        count += 1
        for column in columns.values():
            if len(column) < count:
                column.append(None)
    tally.read(count)
    return _checked(path, pd.DataFrame(columns))


def _checked(path: Path, table: pd.DataFrame) -> pd.DataFrame:
    if not len(table):
        raise ValueError(f"{path}: has no rows")
    if len(table.columns) > MAX_COLUMNS:
        raise ValueError(f"{path}: has {len(table.columns)} columns; at most {MAX_COLUMNS} are read")
    return table


def _cell(value: Any) -> Any:
    """Return a number, a text or nothing as it is; a list or an object, and a number beyond float64, as text."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return value if abs(value) < 1e300 or value != value else str(value)
    return value if isinstance(value, str) else json.dumps(value)[:1000]


def _shown(values: Any) -> str:
    return f"{values!r:.200}"
