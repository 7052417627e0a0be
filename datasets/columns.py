"""Columns of tables that others wrote: guess what they hold by their names, and bring them to those of a trace."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.datasets.frame import (
    MEASURED_COLUMNS,
    REQUIRED_COLUMNS,
    SECONDS_PER_UNIT,
    convert_to_seconds,
    numeric_column,
    rename_columns,
    unit_seconds,
)
from paceline.datasets.io import RowCounts, detect_delimiter, is_json, parse_header, seconds_since_1970

if TYPE_CHECKING:
    import pandas as pd


WORKER_WORDS = {"worker", "rank", "node", "host", "hostname", "gpu", "device", "client", "machine", "instance", "pod"}
ITERATION_WORDS = {"iteration", "iter", "step", "round"}
SAMPLE_WORDS = {"samples", "batch", "tokens", "examples", "images"}
DURATION_WORDS = {"time", "duration", "latency", "elapsed", "seconds"}

RATE_PATTERN = re.compile(
    r"(samples?|tokens?|examples?|images?|imgs?|its?|iters?|steps?)_?(/|per)_?s(ec(ond)?)?|throughput|speed"
)

WORKER_COLUMN_PATTERN = re.compile(rf"({'|'.join(sorted(WORKER_WORDS))})?s?[ _:.-]?\d+")
"""A column of one worker: ``rank0``, ``gpu 1``, ``7``."""

STEP_TIME_WORDS = {"step", "iter", "iteration", "batch", "compute", "busy", "train", "training", "own", "work"}
"""Words of a column that holds the time of a whole iteration."""


def option_advice(column_names: Sequence[str]) -> str:
    """Return the end of an error: the options that read a table with these columns; empty if none is known."""
    options = suggest_options(column_names)
    if not options:
        return ""
    counted = " (samples=1 counts iterations: set the batch size if you know it)"
    advice = f"; its columns suggest {format_options(options)}{counted * (options.get('samples') == '1')}"
    chosen = options.get("seconds")
    if others := [name for name in compute_time_columns(column_names) if name != chosen] if chosen else []:
        advice += f"; other columns of times are {others}: name the one of a rank's own time, without waiting"
    return advice


def format_options(options: Mapping[str, str]) -> str:
    """Return options as a command line takes them."""
    return " ".join(f"--with {shlex.quote(f'{name}={value}')}" for name, value in options.items())


def infer_options(column_names: Sequence[str]) -> dict[str, str]:
    """Return the options of a table of which each column can mean one thing only; empty for any other table.

    >>> infer_options(["step", "rank", "step_time_ms", "loss"])
    {'worker': 'rank', 'iteration': 'step', 'seconds': 'step_time_ms', 'unit': 'ms', 'samples': '1'}
    >>> [infer_options(["step", "rank", *more]) for more in (["duration"], ["step_time", "iter_time"], ["eval_time"])]
    [{}, {}, {}]
    """
    options = suggest_options(column_names)
    times = compute_time_columns(column_names)
    workers, iterations, samples = (
        sum(_matches_words(name, meant) for name in column_names)
        for meant in (WORKER_WORDS, ITERATION_WORDS, SAMPLE_WORDS)
    )
    if (workers, iterations, len(times)) != (1, 1, 1) or samples > 1 or not {"worker", "seconds"} <= options.keys():
        return {}
    return options if STEP_TIME_WORDS & set(_split_words(times[0])) else {}


def compute_time_columns(column_names: Sequence[str]) -> list[str]:
    """Return the columns that may hold a rank's own time of an iteration, whole iterations first.

    >>> compute_time_columns(["data_time", "duration_ms", "step_time", "elapsed_time", "eval_seconds", "forward_ms"])
    ['step_time', 'duration_ms']
    """
    # Times that are no rank's own time of an iteration: waiting, communication, loading, evaluation, cumulative times,
    # parts of an iteration, and the time on the wall, which is the same on all ranks.
    others = {
        *("wait", "waiting", "waited", "idle", "stall", "stalled", "queue", "blocked"),
        *("barrier", "sync", "synchronization"),
        *("comm", "communication", "nccl", "allreduce", "reduce", "gather", "allgather", "broadcast", "send", "recv"),
        *("data", "dataloader", "dataloading", "dataload", "load", "loader", "loading", "input", "fetch", "io", "read"),
        *("eval", "evaluation", "val", "valid", "validation", "test", "infer", "inference"),
        *("save", "checkpoint", "ckpt", "checkpointing", "log", "logging", "compile", "init", "startup", "warmup"),
        *("total", "cumulative", "cum", "elapsed", "since", "remaining", "left", "eta", "uptime", "runtime", "epoch"),
        *("forward", "fwd", "backward", "bwd", "optimizer", "optim", "opt", "loss", "h2d"),
        *("wall", "walltime", "real", "user", "sys"),
    }
    times = [name for name in column_names if duration_unit(name) is not None and not others & set(_split_words(name))]
    return sorted(dict.fromkeys(times), key=lambda name: not STEP_TIME_WORDS & set(_split_words(name)))


def suggest_options(column_names: Sequence[str]) -> dict[str, str]:
    """Return the options that read a table with these columns, by the words in their names; empty if these say nothing.

    >>> suggest_options(["timestamp", "host", "tokens_per_sec"])
    {'worker': 'host', 'start': 'timestamp', 'period': '60', 'rate': 'tokens_per_sec'}
    >>> suggest_options(["step", "rank0", "rank1"])
    {'iteration': 'step', 'values': 'seconds', 'samples': '1'}
    """
    left = list(dict.fromkeys(column_names))

    def find_column(matches_role: Callable[[str], bool]) -> str | None:
        found = next((name for name in left if matches_role(name)), None)
        if found is not None:
            left.remove(found)
        return found

    rate = find_column(lambda name: RATE_PATTERN.fullmatch(name.strip().lower().replace(" ", "_")) is not None)
    iteration = find_column(lambda name: _matches_words(name, ITERATION_WORDS))
    start = find_column(lambda name: _matches_words(name, {"timestamp", "time", "datetime", "date", "ts", "start"}))
    times = [] if rate else compute_time_columns(left)
    span = times[0] if times else None
    left = [name for name in left if name != span]
    if not (rate or span) and start and not iteration and _matches_words(start, {"time"}):
        return {}  # a lone `time` may be a moment or a duration
    worker = find_column(lambda name: _matches_words(name, WORKER_WORDS))
    samples = None if rate else find_column(lambda name: _matches_words(name, SAMPLE_WORDS))
    options: dict[str, str | None] = {"worker": worker, "iteration": iteration}
    if not iteration and start:
        # suggest minutes where rows have only a time
        options |= {"start": start, "period": "60"}
    if rate:
        options["rate"] = rate
    elif span:
        unit = duration_unit(span)
        options |= {"seconds": span, "unit": None if unit == "s" else unit, "samples": samples or "1"}
    elif (
        len(left) > 1
        and all(WORKER_COLUMN_PATTERN.fullmatch(name.strip().lower()) for name in left)
        and not (worker or samples)
    ):
        options |= {"values": "seconds", "samples": "1"}
    else:
        return {}
    known = {name: value for name, value in options.items() if value is not None and name != value}
    return known if iteration or start or "values" in known else {}


def _split_words(column_name: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column_name).lower()) if word]


def _matches_words(column_name: str, expected_words: set[str]) -> bool:
    """Return whether a name has at least one word of ``expected_words``, and beside these only filling words."""
    words = _split_words(column_name)
    filling = {"id", "global", "local", "idx", "index", "number", "num", "n", "size", "name", "start", "event", "wall"}
    return any(word in expected_words for word in words) and all(word in expected_words | filling for word in words)


def duration_unit(column_name: str) -> str | None:
    """Return the unit of a column of durations, ``s`` if it names none; ``None`` for any other column.

    >>> [duration_unit(name) for name in ("step_time_ms", "duration", "timestamp", "iteration seconds")]
    ['ms', 's', None, 's']
    """
    words = _split_words(column_name)
    if not words or "per" in words:
        return None
    clear = len(words[-1]) > 1 and words[-1] != "min"  # `loss_min` is no time
    if words[-1] in SECONDS_PER_UNIT and (clear or (DURATION_WORDS | STEP_TIME_WORDS) & set(words[:-1])):
        return "s" if SECONDS_PER_UNIT[words[-1]] == 1.0 else words[-1]
    return "s" if words[-1] in DURATION_WORDS and column_name.lower() != "time" else None


def column_names_in(head: str) -> list[str]:
    """Return the keys in the head of a JSON file, or the names in a table's first line, whatever separates them."""
    if is_json(head):
        return list(dict.fromkeys(map(_unquote, re.findall(r'("(?:[^"\\]|\\.){1,60}")\s*:', head))))
    first = head.lstrip("# ")
    return parse_header(first, detect_delimiter(first))


def _unquote(key: str) -> str:
    try:
        return str(json.loads(key))
    except ValueError:
        return key.strip('"')


@dataclass(frozen=True, kw_only=True)
class ColumnMapping:
    """Mapping of the columns of a table to those of a trace.

    ``columns`` holds the table's name for each of a trace's columns that has another, or a number for all rows.
    ``rate`` is the column of samples per second, or per ``unit``, instead of samples and seconds. A table with a column
    per worker says with ``values`` what its cells are, ``"seconds"``, ``"rate"`` or ``"usage"``, and with ``workers``
    which columns these are; ``None`` takes all that hold numbers. ``period`` is the seconds of an iteration, for rows
    that have a time and no iteration; rows within one are averaged. ``unit`` and ``start_unit`` are those of durations
    and of ``start``.
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
            raise ValueError("workers= names the columns of a table with one a worker: set values= to what these hold")
        if self.period is not None and not (np.isfinite(self.period) and self.period > 0):
            raise ValueError(f"period must be a positive number of seconds, got {self.period}")
        if self.rate is not None and (self.values or {"samples", "seconds"} & set(self.columns)):
            raise ValueError("rate= replaces samples= and seconds=, and values= replaces all three: pass one of them")

    @property
    def describes_columns(self) -> bool:
        """True if it describes the columns, so that a single worker may go without a column."""
        return bool(self.rate or self.values or self.columns)

    def map_table(self, path: Path, table: pd.DataFrame, row_counts: RowCounts) -> pd.DataFrame:
        """Return the tidy rows of a table, in the units of this mapping; what is changed or dropped is counted."""
        import pandas as pd

        names = list(map(str, table.columns))
        if self.values == "usage" and "worker" in self.columns:
            table = table.assign(samples=np.nan, seconds=np.nan)  # a row for each worker already
        elif self.values is not None:
            table = self._to_long(table)
        table = rename_columns(table, self.columns)
        if rate := self.rate or ("rate" if self.values == "rate" else None):
            table = _apply_rate(table, rate, row_counts)
        if "worker" not in table and self.describes_columns:
            table = table.assign(worker="0")
        if "start" in table and not pd.api.types.is_numeric_dtype(table["start"]):
            table["start"] = seconds_since_1970(path, table["start"], "start")
        if self.values is None and self.describes_columns:
            for name in (name for name in MEASURED_COLUMNS if name in table):
                if not pd.api.types.is_numeric_dtype(table[name]) and table[name].dtype.kind not in "mM":
                    written = str(self.columns.get(name, name))  # an error names the column as the file does
                    table[name] = numeric_column(table.rename(columns={name: written}), written)
            # rows of other kinds that loggers write between: without an iteration, or of one that nobody timed
            if "iteration" in table:
                table = row_counts.keep_rows(table, table["iteration"].notna(), "rows without an iteration")
                if "seconds" in table and table["seconds"].notna().any():
                    timed = table["seconds"].notna().groupby(table["iteration"]).transform("any")
                    table = row_counts.keep_rows(table, timed, "rows of iterations without a time")
        if self.period is not None:
            table = self._average_periods(table, self.period, row_counts)
        if missing := [name for name in REQUIRED_COLUMNS if name not in table]:
            advice = option_advice(names)
            raise ValueError(f"columns {missing} are missing; a trace needs them, and the table has {names}{advice}")
        return table

    def _to_long(self, table: pd.DataFrame) -> pd.DataFrame:
        assert self.values is not None, "only a table with a column per worker is long"
        written = [str(self.columns.get(name, name)) for name in ("iteration", "start")]
        identifying = [name for name in written if name in table]
        others = [name for name in table.columns if name not in identifying]
        workers = (
            [name for name in others if is_numeric_or_empty(table[name])] if self.workers is None else self.workers
        )
        lacking = [name for name in workers if name not in others]
        if lacking or not workers:
            raise ValueError(
                f"must have a column of numbers for each worker, but lacks {lacking or 'any'}: set workers= to {others}"
            )
        if self.columns.get("iteration", "iteration") not in table and self.period is None:
            table = table.assign(iteration=np.arange(len(table)))
            identifying.append("iteration")
        long = table.melt(identifying, list(workers), "worker", self.values)
        return long.assign(samples=np.nan, seconds=np.nan) if self.values == "usage" else long

    def _average_periods(self, table: pd.DataFrame, period: float, row_counts: RowCounts) -> pd.DataFrame:
        """Return the table with iterations of a period each; rows of a worker within one are averaged."""
        if "start" not in table or "iteration" in table:
            raise ValueError("period= numbers iterations by a column of times: pass start=, and leave out iteration=")
        # refuses times after 2100, by the rows of the file
        convert_to_seconds(table[["start"]], start_unit=self.start_unit)
        time_N = table["start"].to_numpy(dtype=np.float64) * unit_seconds(self.start_unit)
        known_N = np.isfinite(time_N)
        table, time_N = row_counts.keep_rows(table, known_N, "rows without a time"), time_N[known_N]
        if not len(table):
            raise ValueError("column 'start' has no time in any row: set start= to the column of times")
        # A clock that is a thousandth of a period late stays in its own.
        table = table.assign(iteration=np.floor((time_N - time_N.min()) / period + 1e-3))
        key = ["worker", "iteration"]
        row_counts.count_changed("rows were averaged with others of their period", table.duplicated(key).sum())
        numbers = [
            name for name in table.columns if name in (*key, *MEASURED_COLUMNS) or is_numeric_or_empty(table[name])
        ]
        values = {name: numeric_column(table, name) for name in numbers if name != "worker"}
        return table[["worker"]].assign(**values).groupby(key, as_index=False, observed=True).mean()


def drop_text_columns(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the table without further columns in which no cell is a number, and their names."""
    further = [name for name in table.columns if name not in (*REQUIRED_COLUMNS, *MEASURED_COLUMNS)]
    texts = [name for name in further if not is_numeric_or_empty(table[name])]
    return table.drop(columns=texts), list(map(str, texts))


def is_numeric_or_empty(column: pd.Series) -> bool:
    """Return whether a column holds a number, or nothing at all: any other is text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return True
    return bool(column.isna().all() or pd.to_numeric(column, errors="coerce").notna().any())


def _apply_rate(table: pd.DataFrame, rate_column: str, row_counts: RowCounts) -> pd.DataFrame:
    """Return the table with the samples of one second, from a column of rates."""
    import pandas as pd

    if rate_column not in table:
        raise ValueError(f"columns {[rate_column]} are missing; the table has {list(table.columns)}")
    rate = pd.Series(numeric_column(table, rate_column), index=table.index)
    bad = (rate <= 0) | rate.isin([np.inf])
    row_counts.drop_cells("rates that are not positive and finite", bad.sum())
    return table.drop(columns=rate_column).assign(samples=rate.mask(bad), seconds=1.0)
