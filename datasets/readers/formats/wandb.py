"""Histories of runs exported from Weights & Biases as CSV, with any columns that the run logged."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._arrays import Sizes
from paceline.datasets.readers.csv_rows import NUMBER, TEXT, frame, header_of
from paceline.datasets.readers.files import head as head_of
from paceline.datasets.readers.format import Format, real
from paceline.datasets.readers.restarts import runs_of
from paceline.datasets.readers.tabular.hint import span_unit
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace
from paceline.datasets.units import seconds_of

if TYPE_CHECKING:
    import pandas as pd

OWN = ("_step", "_runtime", "_timestamp")
"""Columns that W&B adds."""

MOST_LIKELY = 5
"""Most columns that are proposed as times of a step."""


def read(
    paths: Sequence[Path], *, seconds: str | None = None, samples: str | float = 1.0, unit: str = "s"
) -> Iterator[Trace]:
    """Yield one trace per run.

    With ``seconds``, the column of a step's time in a ``unit`` such as ms, its rows are the iterations, ``samples`` the
    column or the number of samples in each, and covariates the newest values of the previous row. Without it every row
    is kept, as usage only, and a warning says so.
    """
    for path in paths:
        tally = Tally()
        table, left_out = _numbers(path, tally)
        if seconds in table:
            table[seconds] *= seconds_of(unit)
        run_T = _runs(table)
        tally.restarts(run_T[-1])
        if seconds is None:
            _say_unknown(path, table)
        taken = {seconds, samples, *OWN}
        covariates = [name for name in map(str, table) if name not in taken]
        if system := [name for name in covariates if name.startswith(("system.", "system/"))]:
            covariates = system
        trace = (
            _usage(table, covariates)
            if seconds is None
            else _steps(path, table, run_T, covariates, seconds, samples, tally)
        )
        meta = {
            "job": path.name.split(".")[0],
            "format": "wandb",
            "units": "covariates: as in the file",
            **tally.meta(),
        }
        if left_out:
            meta["columns_dropped"] = f"{', '.join(left_out)}: no numbers"
        yield Trace(**trace, meta=meta)


def _say_unknown(path: Path, table: pd.DataFrame) -> None:
    """Warn that no speed is known, and name the columns that look like times of a step."""
    times = [name for name in map(str, table) if name not in OWN and span_unit(name.rpartition("/")[2]) is not None]
    likely = f"; likely ones are {times[:MOST_LIKELY]}" if times else ""
    warnings.warn(
        f"{path}: every speed is NaN, as no column of step times is named: give seconds=COLUMN, and unit=ms if it is "
        f"in ms{likely}",
        stacklevel=2,
    )


def _numbers(path: Path, tally: Tally) -> tuple[pd.DataFrame, list[str]]:
    """Return the purely numeric columns, with the time, and the names of the others."""
    import pandas as pd

    names = [name for name in dict.fromkeys(header_of(head_of(path))) if name]
    text = frame(path, dict.fromkeys(names, TEXT) | {"_timestamp": NUMBER}, tally, missing=["NaN", "nan"])
    numbers = text.apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)
    held = [name for name in names if numbers[name].notna().sum() == text[name].notna().sum()]
    timed = numbers["_timestamp"].notna()
    tally.rows("rows without a time", (~timed).sum())
    if not timed.any():
        raise ValueError(f"{path}: column '_timestamp' is empty in every row")
    again = text.duplicated()
    tally.rows("rows that repeat another one exactly", (timed & again).sum())
    kept = numbers.loc[timed & ~again, held]
    late = kept["_timestamp"].diff() < 0
    tally.notes("rows whose time went backwards were put in order", late.sum())
    by = ["_timestamp", *(["_step"] if late.any() and "_step" in kept else [])]
    return kept.sort_values(by, kind="stable", ignore_index=True), [name for name in names if name not in held]


def _usage(table: pd.DataFrame, covariates: list[str]) -> dict[str, Any]:
    some = [name for name in covariates if table[name].notna().any()]
    none_T = np.full((len(table), 1), np.nan)
    panel = {"samples": none_T, "seconds": none_T, "start": table[["_timestamp"]].to_numpy()}
    return panel | _covariate_panel(table, some)


def _runs(table: pd.DataFrame) -> Sizes:
    """Return the run of each row; a run without numbered steps is never seen to be restarted."""
    if "_step" not in table:
        return np.zeros(len(table), dtype=np.int64)
    return runs_of(table["_step"].ffill().fillna(0.0).to_numpy())


def _steps(
    path: Path,
    table: pd.DataFrame,
    run_T: Sizes,
    covariates: list[str],
    seconds: str,
    samples: str | float,
    tally: Tally,
) -> dict[str, Any]:
    """Return the rows in which a step's time was logged, with the covariates known one row before."""
    for name in [seconds, *([samples] if isinstance(samples, str) else [])]:
        if name not in table:
            raise ValueError(f"{path}: column {name!r} is not there or holds no numbers; there are {list(table)}")
    logged_T = table[seconds].notna().to_numpy()
    if not logged_T.any():
        raise ValueError(f"{path}: column {seconds!r} is empty in every row")
    known = table[covariates].groupby(run_T).ffill().groupby(run_T).shift(1)[logged_T]  # what a run knows dies with it
    rows = table[logged_T]
    seconds_T = rows[seconds].to_numpy()
    samples_T = rows[samples].to_numpy() if isinstance(samples, str) else np.full(len(rows), float(samples))
    bad_T = ~(seconds_T >= 0) | ~(samples_T >= 0)
    tally.cells("steps with negative or unknown seconds or samples", bad_T.sum())
    seconds_T = np.where(bad_T, np.nan, seconds_T)
    panel = {
        "samples": np.where(bad_T, np.nan, samples_T)[:, None],
        "seconds": seconds_T[:, None],
        "start": (rows["_timestamp"].to_numpy() - seconds_T)[:, None],
    }
    return panel | _covariate_panel(known, [name for name in covariates if known[name].notna().any()])


def _covariate_panel(table: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    return {"covariates": table[names].to_numpy()[:, None, :], "covariate_names": names} if names else {}


def _is(path: Path, head: str) -> bool:
    names = set(header_of(head))
    return set(OWN) <= names and not any(name.startswith(("02_timing/", "04_peers/")) for name in names)


FORMATS = (
    Format(
        name="wandb",
        about="history of a run with free columns (Weights & Biases)",
        files="CSV with the columns _step, _runtime, _timestamp and others",
        gives="speed if the column of step times is named, otherwise usage",
        seen=real("cirquit/hivemind-multi-cloud"),
        read=read,
        columns=OWN,
        recognises=_is,
    ),
)
