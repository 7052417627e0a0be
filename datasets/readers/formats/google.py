"""Usage of task instances: Google's cluster trace of 2019 (version 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frames, header_of
from paceline.datasets.readers.files import numbered_lines
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tables import TableFile
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

CPUS, MEMORY = "normalised compute units", "normalised bytes"
COVARIATES = {
    "average_usage.cpus": CPUS,
    "average_usage.memory": MEMORY,
    "maximum_usage.cpus": CPUS,
    "maximum_usage.memory": MEMORY,
    "random_sample_usage.cpus": CPUS,
    "assigned_memory": MEMORY,
    "page_cache_memory": MEMORY,
    "cycles_per_instruction": "cycles per instruction",
    "memory_accesses_per_instruction": "accesses per instruction",
    "sample_rate": "share of seconds that were sampled",
}
KEYS = ("start_time", "collection_id", "instance_index")
EVENT = ("time", "machine_id", "type", "capacity.cpus", "capacity.memory", "switch_id", "platform_id")
NEVER = float(2**63 - 1)
"""The time of events after the end of the trace; 0 is the time of events before its start."""

BLOCK_ROWS = 50_000


def read(
    paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the usage of instances every 300 s; a worker is ``<collection_id>/<instance_index>``."""
    tally = Tally()
    layout = Layout(
        covariates=COVARIATES,
        period=300.0,
        meta={
            "source": "github.com/google/cluster-data, ClusterData2019",
            "licence": "CC BY 4.0",
            "format": "google_2019",
        },
    )
    blocks = (rows for path in paths for rows in (_json_rows if _is_json(path) else _csv_rows)(path, tally))
    yield from usage_traces(paths, blocks, layout, tally, period=period, workers=workers)


def read_events(path: Path) -> pd.DataFrame:
    """Return the machine events of a file of JSON lines, one row each; times are microseconds."""
    import pandas as pd

    return pd.DataFrame([{name: _nested(one, name) for name in EVENT} for _, one in _objects(path)])


def _is_json(path: Path) -> bool:
    return ".json" in path.name


def _csv_rows(path: Path, tally: Tally) -> Iterator[Rows]:
    columns = {"start_time": NUMBER, "collection_id": TEXT, "instance_index": TEXT, **dict.fromkeys(COVARIATES, NUMBER)}
    for block in frames(path, columns, tally, optional=list(COVARIATES)):
        values_ND = block.reindex(columns=list(COVARIATES)).to_numpy(dtype=np.float64)
        worker = block["collection_id"] + "/" + block["instance_index"]
        yield _within_the_trace(Rows(worker, block["start_time"].to_numpy(), values_ND), tally)


def _json_rows(path: Path, tally: Tally) -> Iterator[Rows]:
    import pandas as pd

    rows: list[tuple[str | None, float, list[float]]] = []

    def block() -> Rows:
        tally.read(len(rows))
        worker, time, values = zip(*rows, strict=True)
        return _within_the_trace(Rows(pd.Series(worker, dtype="str"), np.array(time), np.array(values)), tally)

    for line, one in _objects(path):
        values = [_float(path, line, name, _nested(one, name)) for name in COVARIATES]
        known = one.get("collection_id") is not None and one.get("instance_index") is not None
        worker = f"{one['collection_id']}/{one['instance_index']}" if known else None
        rows.append((worker, _float(path, line, "start_time", one.get("start_time")), values))
        if len(rows) == BLOCK_ROWS:
            yield block()
            rows = []
    if rows:
        yield block()


def _within_the_trace(rows: Rows, tally: Tally) -> Rows:
    """Return the rows of the trace's clock, in seconds."""
    outside_N = (rows.time <= 0) | (rows.time >= NEVER)
    tally.rows("rows before or after the trace's time", outside_N.sum())
    return Rows(rows.worker[~outside_N], rows.time[~outside_N] * 1e-6, rows.values[~outside_N])


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: line {number}: must be one JSON object, but {error}") from error
        if not isinstance(one, dict):
            raise ValueError(f"{path}: line {number}: must be one JSON object, got a {type(one).__name__}")
        yield number, one


def _nested(one: dict[str, Any], name: str) -> Any:
    """Return a value by its dotted name, nested or flat; ``None`` where it is missing."""
    outer, _, inner = name.partition(".")
    if not inner or name in one:
        return one.get(name)
    return held.get(inner) if isinstance(held := one.get(outer), dict) else None


def _float(path: Path, line: int, name: str, value: Any) -> float:
    """Return a number, or NaN for a missing one; 64-bit integers may be strings."""
    if value is None or value == "":
        return float("nan")
    try:
        number = float(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise ValueError(f"{path}: line {line}, field {name!r}: must be a number, got {value!r:.100}")
    return number if np.isfinite(number) else float("nan")


def _is(path: Path, head: str) -> bool:
    if head.lstrip().startswith("{"):
        return '"collection_id"' in head and '"average_usage' in head
    return {*KEYS, "average_usage.cpus"} <= set(header_of(head))


FORMATS = (
    Format(
        name="google_2019",
        about="CPU and memory of task instances every 5 minutes (Google 2019, version 3)",
        files="instance_usage-*.json[.gz], or CSV from BigQuery with dotted names; a folder's files are one set",
        gives="usage",
        seen=MADE,
        read=read,
        columns=(*KEYS, *COVARIATES),
        recognises=_is,
        job=lambda path: str(path.parent),
    ),
)

TABLES = (
    TableFile(
        name="google_machine_events",
        files="machine_events*.json",
        read=read_events,
        columns=("time", "machine_id", "type"),
    ),
)
