"""Tables of public tools and sets whose columns are known: a chart of Weights & Biases, a Prometheus range, ..."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.datasets.readers.arrangement import Arrangement
from paceline.datasets.readers.csv_rows import NUMBER, frame, header_of
from paceline.datasets.readers.files import head
from paceline.datasets.readers.format import MADE, QUOTED, Format
from paceline.datasets.readers.hint import names_in
from paceline.datasets.readers.json_tables import prometheus_table
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.tidy import traces_of
from paceline.datasets.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


def read_chart(
    paths: Sequence[Path],
    *,
    values: str | None = None,
    samples: str | float = 1.0,
    unit: str = "s",
    workers: Sequence[str] | None = None,
) -> Iterator[Trace]:
    """Yield the trace of each file: a run is a worker, a row an iteration."""
    for path in paths:
        _require_values(path, values)
        tally = Tally()
        names = header_of(head(path))
        lines = [name for name in names if f"{name}__MIN" in names]
        table = frame(path, dict.fromkeys(lines, NUMBER), tally).rename(columns=_runs(lines))
        yield from traces_of(path, table, _wide(values, samples, unit, workers), tally, "wandb_chart")


def read_prometheus(
    paths: Sequence[Path],
    *,
    values: str | None = None,
    samples: str | float = 1.0,
    unit: str = "s",
    period: float | None = None,
) -> Iterator[Trace]:
    """Yield the trace of each file: a series is a worker, a step of the query an iteration."""
    for path in paths:
        _require_values(path, values)
        tally = Tally()
        table = prometheus_table(path, tally)
        steps = np.diff(np.unique(table["start"].to_numpy(dtype=np.float64)))
        step = period or (float(steps.min()) if len(steps) else 1.0)
        arrangement = Arrangement(columns=_named(values, samples), rate=_rate(values), unit=unit, period=step)
        yield from traces_of(path, _used(table, values), arrangement, tally, "prometheus")


def _require_values(path: Path, values: str | None) -> None:
    if values is None:
        raise ValueError(
            f"{path}: does not say what its values are: give values=seconds (and unit=ms, if so), values=rate or "
            "values=usage"
        )


def _wide(values: str | None, samples: str | float, unit: str, workers: Sequence[str] | None) -> Arrangement:
    columns = {"samples": samples} if values == "seconds" else {}
    return Arrangement(columns=columns, values=values, unit=unit, workers=workers)


def _named(values: str | None, samples: str | float) -> dict[str, str | float]:
    return {"seconds": "value", "samples": samples} if values == "seconds" else {}


def _rate(values: str | None) -> str | None:
    return "value" if values == "rate" else None


def _used(table: pd.DataFrame, values: str | None) -> pd.DataFrame:
    """Return the table without speeds, if its values are usage: they stay as a covariate."""
    return table.assign(samples=np.nan, seconds=np.nan) if values == "usage" else table


def _runs(lines: Sequence[str]) -> dict[str, str]:
    """Return a name for each line of a chart: its run, or run and metric where metrics differ.

    >>> _runs(["fast - step_time", "slow - step_time"])
    {'fast - step_time': 'fast', 'slow - step_time': 'slow'}
    >>> _runs(["fast - a", "fast - b"])
    {'fast - a': 'fast - a', 'fast - b': 'fast - b'}
    """
    one_metric = len({line.rpartition(" - ")[2] for line in lines}) == 1
    return {line: line.rpartition(" - ")[0] if one_metric and " - " in line else line for line in lines}


def _is_chart(path: Path, text: str) -> bool:
    names = header_of(text)
    return any(f"{name}__MIN" in names and f"{name}__MAX" in names for name in names)


def _is_range(path: Path, text: str) -> bool:
    return text.lstrip().startswith("{") and {"resultType", "metric", "values"} <= set(names_in(text))


def _format(name: str, about: str, files: str, seen: str, read: Any, matches: Any) -> Format:
    return Format(
        name=name,
        about=about,
        files=files,
        gives="speed or usage",
        seen=seen,
        read=read,
        matches=matches,
    )


FORMATS = (
    _format(
        "wandb_chart",
        "a chart exported from Weights & Biases: a line per run",
        'CSV with the columns "Step", "<run> - <metric>", "<run> - <metric>__MIN", "<run> - <metric>__MAX"',
        QUOTED,
        read_chart,
        _is_chart,
    ),
    _format(
        "prometheus",
        "the answer to a range query of Prometheus",
        "JSON of /api/v1/query_range, with resultType matrix",
        MADE,
        read_prometheus,
        _is_range,
    ),
)
