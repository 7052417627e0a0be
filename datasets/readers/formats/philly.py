"""Usage of GPU machines and a log of jobs: Microsoft's Philly traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frames, header_of
from paceline.datasets.readers.files import head as head_of
from paceline.datasets.readers.files import json_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.panel import Layout, Rows, usage_traces
from paceline.datasets.readers.tables import TableFile, csv_table
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.timestamps import seconds_since_1970
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = {
    "cpu": ("time", "machine_id", "cpu_util"),
    "mem": ("time", "machine_id", "mem_total", "mem_free"),
    "gpu": ("time", "machineId", *(f"gpu{k}_util" for k in range(8))),
}
UNITS = {"cpu": "percent", "mem": "as in the file", "gpu": "percent"}
META = {"source": "github.com/msr-fiddle/philly-traces", "licence": "CC BY 4.0"}
JOB_LOG_BYTES = 1 << 30
"""Largest job log: it is one JSON list, which is read as a whole."""


def read(
    kind: str, paths: Sequence[Path], *, period: float | None = None, workers: Sequence[str] | None = None
) -> Iterator[Trace]:
    """Yield the usage of machines every minute; NaN where a machine was offline ("NA")."""
    tally = Tally()
    layout = Layout(
        covariates=dict.fromkeys(COLUMNS[kind][2:], UNITS[kind]),
        period=60.0,
        since_1970=True,
        meta={**META, "format": f"philly_{kind}"},
    )
    blocks = (rows for path in paths for rows in _rows(path, COLUMNS[kind], tally))
    yield from usage_traces(paths, blocks, layout, tally, period=period, workers=workers)


def _rows(path: Path, names: Sequence[str], tally: Tally) -> Iterator[Rows]:
    """Yield blocks of rows; the header may be missing, and rows may end with a comma."""
    headed = _headed(head_of(path), names)
    time, machine, *covariates = names
    columns = {time: TEXT, machine: TEXT, **dict.fromkeys(covariates, NUMBER)}
    first_row = 2 if headed else 1
    found = [*names, *(["after the last comma"] if _ends_with_comma(head_of(path), names, headed) else [])]
    for block in frames(path, columns, tally, names=found, skip=int(headed), missing=["NA"]):
        seconds = seconds_since_1970(path, block[time], time, first_row)
        first_row += len(block)
        yield Rows(block[machine], seconds, block[covariates].to_numpy())


def _headed(head: str, names: Sequence[str]) -> bool:
    first = [name for name in header_of(head) if name]
    return [name.lower() for name in first] == [name.lower() for name in names]


def _ends_with_comma(head: str, names: Sequence[str], headed: bool) -> bool:
    row = header_of("\n".join(head.splitlines()[1:2] if headed else head.splitlines()[:1]))
    return len(row) == len(names) + 1 and row[-1] == ""


def _is(kind: str, path: Path, head: str) -> bool:
    named = path.name.startswith(f"cluster_{kind}_util") and len(header_of(head)) - len(COLUMNS[kind]) in (0, 1)
    return named or _headed(head, COLUMNS[kind])


def read_job_log(path: Path) -> pd.DataFrame:
    """Return one row per attempt of each job: status, times as written, and numbers of GPUs and hosts.

    Raises
    ------
    ValueError
        If the file is not a JSON list of jobs; the message names the unexpected job.
    """
    import pandas as pd

    jobs = json_of(path, JOB_LOG_BYTES, "cut it into lists of jobs")
    if not isinstance(jobs, list):
        raise ValueError(f"{path}: must hold a JSON list of jobs, got a {type(jobs).__name__}")
    return pd.DataFrame([row for k, job in enumerate(jobs) for row in _attempts(path, k, job)])


def _attempts(path: Path, k: int, job: Any) -> Iterator[dict[str, object]]:
    try:
        about = {name: job.get(name) for name in ("jobid", "user", "vc", "status", "submitted_time")}
        for attempt in job["attempts"]:
            hosts = attempt["detail"]
            gpus = sum(len(host["gpus"]) for host in hosts)
            times = {name: attempt.get(name) for name in ("start_time", "end_time")}
            yield {**about, **times, "hosts": len(hosts), "gpus": gpus}
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: job {k} must be an object with 'attempts', each with a 'detail' of hosts with 'gpus'; {error!r}"
        ) from error


FORMATS = tuple(
    Format(
        name=f"philly_{kind}",
        about=f"{kind.upper()} of machines every minute (Philly)",
        files=f"cluster_{kind}_util",
        gives="usage",
        seen=MADE,
        read=partial(read, kind),
        columns=COLUMNS[kind],
        recognises=partial(_is, kind),
    )
    for kind in COLUMNS
)

TABLES = (
    csv_table(
        "philly_machine_list",
        "cluster_machine_list*",
        "machineId gpus gpu_memory",
        texts="machineId gpu_memory",
    ),
    TableFile(name="philly_job_log", files="cluster_job_log*", read=read_job_log, columns=("jobid", "attempts")),
)
