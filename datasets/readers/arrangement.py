"""Bring any table to the rows of a trace: renamed columns, a column per worker, rates, times for iterations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.columns import MEASURED, seconds_of
from paceline.datasets.frame import REQUIRED, in_seconds, numbers_in, renamed
from paceline.datasets.readers.hint import advice
from paceline.datasets.readers.tally import Tally
from paceline.datasets.readers.timestamps import seconds_since_1970

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Rules that turn the columns of a table into a trace.

    Parameters
    ----------
    columns
        The table's name for each of a trace's columns that has another, or a number for all rows.
    rate
        The column of samples per second, instead of samples and seconds; per ``unit`` if that is another.
    values
        For a table with a column per worker: what its cells are, ``"seconds"``, ``"rate"`` or ``"usage"``.
    workers
        Those columns; ``None`` takes all that hold numbers.
    period
        Seconds of an iteration, for rows that have a time and no iteration; rows within one are averaged.
    unit, start_unit
        Units of durations, and of ``start``.
    """

    columns: Mapping[str, str | float] = field(default_factory=dict)
    rate: str | None = None
    values: str | None = None
    workers: Sequence[str] | None = None
    period: float | None = None
    unit: str = "s"
    start_unit: str = "s"

    def __post_init__(self) -> None:
        if self.values not in (None, "seconds", "rate", "usage"):
            raise ValueError(f"values must be one of ['seconds', 'rate', 'usage'], got {self.values!r}")
        if self.values is None and self.workers is not None:
            raise ValueError("workers are columns of a table with a column per worker: say what they hold with values=")
        if self.period is not None and not (np.isfinite(self.period) and self.period > 0):
            raise ValueError(f"period must be a positive number of seconds, got {self.period}")
        if self.rate is not None and (self.values or {"samples", "seconds"} & set(self.columns)):
            raise ValueError("rate stands for samples and seconds, and values for all three: name one of them")

    @property
    def speaks(self) -> bool:
        """True if it says what the columns are, so that a single worker may go without a column."""
        return bool(self.rate or self.values or self.columns)

    def applied(self, path: Path, table: pd.DataFrame, tally: Tally) -> pd.DataFrame:
        """Return the tidy rows of a table, in the units of this arrangement; what is changed or dropped is counted.

        Raises
        ------
        ValueError
            If columns are missing; the message says how they could be named.
        """
        import pandas as pd

        names = list(map(str, table.columns))
        if self.values == "usage" and "worker" in self.columns:
            table = table.assign(samples=np.nan, seconds=np.nan)  # a row for each worker already
        elif self.values is not None:
            table = self._long(table)
        table = renamed(table, self.columns)
        if self.rate is not None:
            table = _rated(table, self.rate, tally)
        elif self.values == "rate":
            table = _rated(table, "rate", tally)
        if "worker" not in table and self.speaks:
            table = table.assign(worker="0")
        if "start" in table and not pd.api.types.is_numeric_dtype(table["start"]):
            table["start"] = seconds_since_1970(path, table["start"], "start")
        if self.values is None and self.speaks:
            table = _measured(self._to_numeric(table), tally)
        if self.period is not None:
            table = self._gridded(table, self.period, tally)
        if missing := [name for name in REQUIRED if name not in table]:
            raise ValueError(
                f"columns {missing} are missing; a trace needs {list(REQUIRED)}, got {names}{advice(names)}"
            )
        return table

    def _to_numeric(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the table with numbers in its measured columns; an error names the columns as the file does."""
        import pandas as pd

        for name in MEASURED:
            if name in table and not pd.api.types.is_numeric_dtype(table[name]) and table[name].dtype.kind not in "mM":
                written = str(self.columns.get(name, name))
                table[name] = numbers_in(table.rename(columns={name: written}), written)
        return table

    def _long(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a row for each cell of the workers' columns."""
        assert self.values is not None, "only a table with a column per worker is long"
        identifying = [name for name in ("iteration", "start") if self.columns.get(name, name) in table]
        identifying = [str(self.columns.get(name, name)) for name in identifying]
        others = [name for name in table.columns if name not in identifying]
        workers = [name for name in others if holds_numbers(table[name])] if self.workers is None else self.workers
        lacking = [name for name in workers if name not in others]
        if lacking or not workers:
            raise ValueError(f"there must be a column for each worker, but {lacking or 'none'} is none of {others}")
        if self.columns.get("iteration", "iteration") not in table and self.period is None:
            table = table.assign(iteration=np.arange(len(table)))
            identifying.append("iteration")
        long = table.melt(identifying, list(workers), "worker", self.values)
        return long.assign(samples=np.nan, seconds=np.nan) if self.values == "usage" else long

    def _gridded(self, table: pd.DataFrame, period: float, tally: Tally) -> pd.DataFrame:
        """Return the table with iterations of a period each; rows of a worker within one are averaged."""
        if "start" not in table or "iteration" in table:
            raise ValueError(
                "period= needs a column of times, start=..., and replaces the column of iterations: leave that out"
            )
        in_seconds(table[["start"]], start_unit=self.start_unit)  # refuses times after 2100, by the rows of the file
        time_N = table["start"].to_numpy(dtype=np.float64) * seconds_of(self.start_unit)
        timed_N = np.isfinite(time_N)
        tally.rows("rows without a time", (~timed_N).sum())
        table, time_N = table[timed_N], time_N[timed_N]
        if not len(table):
            raise ValueError("no row has a time")
        # A clock that is a thousandth of a period late stays in its own.
        table = table.assign(iteration=np.floor((time_N - time_N.min()) / period + 1e-3))
        key = ["worker", "iteration"]
        tally.notes("rows were averaged with others of their period", table.duplicated(key).sum())
        numbers = [name for name in table.columns if name in (*key, *MEASURED) or holds_numbers(table[name])]
        values = {name: numbers_in(table, name) for name in numbers if name != "worker"}
        return table[["worker"]].assign(**values).groupby(key, as_index=False, observed=True).mean()


def _measured(table: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Drop the rows of other kinds that loggers write between: without an iteration, or of one that nobody timed."""
    if "iteration" in table:
        known = table["iteration"].notna()
        tally.rows("rows without an iteration", (~known).sum())
        table = table[known]
        if "seconds" in table and table["seconds"].notna().any():
            timed = table["seconds"].notna().groupby(table["iteration"]).transform("any")
            tally.rows("rows of iterations without a time", (~timed).sum())
            table = table[timed]
    return table


def without_texts(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the table without further columns in which no cell is a number, and their names."""
    texts = [n for n in table.columns if n not in (*REQUIRED, *MEASURED) and not holds_numbers(table[n])]
    return table.drop(columns=texts), list(map(str, texts))


def holds_numbers(column: pd.Series) -> bool:
    """Return whether a column holds a number, or nothing at all: any other is text.

    >>> import pandas as pd
    >>> [holds_numbers(pd.Series(cells)) for cells in (["a", "2"], ["a", "b"], [None, None])]
    [True, False, True]
    """
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return True
    return bool(column.isna().all() or pd.to_numeric(column, errors="coerce").notna().any())


def _rated(table: pd.DataFrame, name: str, tally: Tally) -> pd.DataFrame:
    """Return the table with the samples of one second, from a column of rates."""
    import pandas as pd

    if name not in table:
        raise ValueError(f"columns {[name]} are missing; there are {list(table.columns)}")
    rate = pd.Series(numbers_in(table, name), index=table.index)
    bad = (rate <= 0) | rate.isin([np.inf])
    tally.cells("rates that are not positive and finite", bad.sum())
    return table.drop(columns=name).assign(samples=rate.mask(bad), seconds=1.0)
