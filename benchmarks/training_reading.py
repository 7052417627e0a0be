"""A part of training.py: read plain columns as a checked trace, and with pandas."""

from __future__ import annotations

from collections.abc import Callable

from training_alone import Clock, Found, alone, peak
from training_sizes import PROCESSOR, WALL, Sizes, medians, ratio, taken
from training_traces import fleet

READERS = {"ours": "paceline, a checked trace", "columns": "pandas", "panel": "pandas, as a panel"}


def measure(sizes: Sizes) -> Found:
    """Read plain columns in each way, in turns."""
    found: Found = {}
    with fleet(sizes.workers, sizes.steps, files=1) as folder:
        paths = {"parquet": f"{folder}/whole/00000.parquet", "csv": f"{folder}/whole.csv"}
        alone(make_csv, parquet=paths["parquet"], csv=paths["csv"])
        for kind, path in paths.items():
            found[kind] = {reader: [] for reader in READERS}
            for _ in range(sizes.turns):
                for reader, turns in found[kind].items():
                    turns.append(alone(read, kind=kind, reader=reader, path=path))
    return found


def make_csv(parquet: str, csv: str) -> Found:
    """Write the same columns as CSV."""
    import pandas as pd

    pd.read_parquet(parquet).to_csv(csv, index=False)
    return {}


def read(kind: str, reader: str, path: str) -> Found:
    """Read a file once; pandas needs more than columns for a panel, a row an iteration and a column a worker."""
    import pandas as pd

    from paceline.datasets import Trace
    from paceline.datasets.readers import read_traces

    theirs = {"parquet": pd.read_parquet, "csv": pd.read_csv}[kind]
    ours: dict[str, Callable[[], object]] = {
        "parquet": lambda: Trace.load(path),
        "csv": lambda: read_traces(path, "csv"),
    }
    ways: dict[str, Callable[[], object]] = {
        "ours": ours[kind],
        "columns": lambda: theirs(path),
        "panel": lambda: theirs(path).pivot(index="iteration", columns="worker"),
    }
    clock = Clock()
    ways[reader]()
    return {"read": clock(), "peak": peak()}


def page(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    missed, rows = [], []
    for kind, turns in found.items():
        for reader, who in READERS.items():
            rows.append(
                f"| {kind} | {who} | {taken(turns[reader], 'read')} | {turns[reader][0]['peak'] / 1e6:,.0f} MB |"
            )
        for clock, what in ((WALL, "time"), (PROCESSOR, "processor time")):
            if (times := ratio(turns["ours"], turns["columns"], "read", clock)) > 1.05:  # turns differ by as much
                missed.append(f"reading {kind} takes {times:.2f} times the {what} of pandas alone")
    lines = [
        "## Reading plain columns",
        "",
        f"{sizes.workers * sizes.steps:,} rows of iteration, worker, samples and seconds in one file.",
        f"{medians(found['csv']['ours'])}. A trace is a panel, a row for each iteration and a column for each worker.",
        "pandas reads CSV in several threads, and we in one.",
        "",
        "| file | reader | time | processor | peak memory |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    return lines, missed
