"""Batch-time profiles: how long a training step takes for each batch size, in one tidy frame.

One row is one measurement. Rows of the same ``source``, ``device``, ``model`` and ``held`` are one curve. A row without
``seconds`` (NaN) is a batch that did not fit into memory.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline._atomic import atomic_write
from paceline.datasets.io import csv_fault, json_of

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("source", "device", "model", "batch", "seconds", "comm_seconds", "held")
"""Source, device, model, samples, own compute time in s, communication in s, and what was held constant."""

UNCERTAINTY = "uncertainty"
"""A further column of profiles measured in several passes: half the 95% interval of the median, as a share of it."""

CURVE = ["source", "device", "model", "held"]
"""The columns that identify a curve."""

Rows = Iterable[tuple[object, ...]]

FLASH_UNITS = {"lstm": (1_000, 1_000), "embedding": (10_000, 1_000), "output": (1_000, 10_000)}
"""Factors by which the file scales down the layer's input and output sizes."""


def read_profiles(
    path: str | Path,
    format: str = "paceline",  # noqa: A002
    *,
    epoch_samples: Mapping[str, int] | None = None,
) -> pd.DataFrame:
    r"""Read batch-time profiles, your own or published ones, as a tidy frame with the columns :data:`COLUMNS`.

    Parameters
    ----------
    path
        The file; for zeus, pollux and flash its name holds the device or the model, so keep the name.
    format
        ``"paceline"`` (the CSV that ``paceline profile`` writes), ``"gavel"`` (JSON of steps/s), ``"zeus"``
        (``summary_power_<device>.csv``), ``"pollux"``
        (``<model>_placements.csv`` or ``<model>_scalability.csv``) or ``"flash"`` (``<device>_<layer>.json``).
    epoch_samples
        Samples per epoch of each dataset. Zeus gives seconds per epoch; for a dataset that is not listed, the seconds
        stay per epoch times the batch, which is the step's time up to a constant, and ``held`` says so.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the format is unknown, or a row is not as expected; the message names the file and the row.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "bert_placements.csv"
    ...     _ = file.write_text("placement,local_bsz,step_time,sync_time\n44,4,0.75,0.25\n44,8,1.0,0.25\n")
    ...     read_profiles(file, "pollux")[["model", "batch", "seconds", "comm_seconds", "held"]]
      model  batch  seconds  comm_seconds          held
    0  bert    4.0     0.50          0.25  placement 44
    1  bert    8.0     0.75          0.25  placement 44
    """
    path = Path(path)
    if format == "paceline":
        return load_profile(path)
    readers: dict[str, Callable[[Path], Rows]] = {
        "gavel": _gavel,
        "zeus": lambda file: _zeus(file, epoch_samples or {}),
        "pollux": _pollux,
        "flash": _flash,
    }
    if format not in readers:
        raise ValueError(f"format must be one of {['paceline', *readers]}, got {format!r}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no profile {path}")
    return _frame(path, readers[format](path), first_row=2 if path.suffix == ".csv" else 1)


def save_profile(profile: pd.DataFrame, path: str | Path) -> Path:
    """Write a profile as tidy CSV, whole or not at all, and return its path."""
    missing = [name for name in COLUMNS if name not in profile.columns]
    if missing:
        raise ValueError(f"profile must have the columns {list(COLUMNS)}, but {missing} are missing")
    path = Path(path)
    columns = [name for name in (*COLUMNS, UNCERTAINTY) if name in profile.columns]
    with atomic_write(path) as temporary:
        profile[columns].to_csv(temporary, index=False)
    return path


def load_profile(path: str | Path) -> pd.DataFrame:
    """Read the tidy CSV that ``paceline profile`` and :func:`save_profile` write.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a column is missing or a row holds an unexpected value; the message names the file and the row.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no profile {path}")
    table = _csv(path, COLUMNS)
    frame = _frame(path, table[list(COLUMNS)].itertuples(index=False, name=None), first_row=2)
    if UNCERTAINTY in table.columns:
        values = enumerate(table[UNCERTAINTY], start=2)
        frame[UNCERTAINTY] = [_optional(path, row, UNCERTAINTY, value, minimum=0.0) for row, value in values]
    return frame


# -- one reader per format ---------------------------------------------------------------------------------------


def _gavel(path: Path) -> Rows:
    """Read steps/s of jobs alone on their GPUs; jobs without a batch size in their name have no curve."""
    for device, jobs in _json(path).items():
        if not isinstance(jobs, dict):
            raise ValueError(f"{path}: {device!r} must hold a mapping of jobs to their rates, got {jobs!r:.40}")
        for key, rates in jobs.items():
            try:
                name, workers = ast.literal_eval(key)
                found, rate = re.fullmatch(r"(.+) \(batch size (\d+)\)", name), float(rates["null"])
            # literal_eval runs out of memory or stack on a key of a thousand brackets.
            except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
                raise ValueError(
                    f"{path}: entry {key!r:.80} of {device!r:.40} must be a ('model (batch size b)', workers) pair "
                    'with its steps/s under "null"'
                ) from error
            if found:
                seconds = 1.0 / rate if rate > 0 else np.nan
                yield "gavel", device, found[1], found[2], seconds, np.nan, f"{workers} workers"


def _zeus(path: Path, epoch_samples: Mapping[str, int]) -> Rows:
    columns = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch")
    table = _csv(path, columns)
    device = path.stem.removeprefix("summary_power_")
    for row, values in enumerate(table[list(columns)].itertuples(index=False, name=None), start=2):
        dataset, network, batch, optimizer, watts, epoch = values
        seconds = _number(path, row, "time_per_epoch", epoch) * _number(path, row, "batch_size", batch)
        unit = "" if dataset in epoch_samples else ", seconds x samples of an epoch"
        held = f"{optimizer}, {watts} W{unit}"
        yield "zeus", device, f"{network}/{dataset}", batch, seconds / epoch_samples.get(dataset, 1), np.nan, held


def _pollux(path: Path) -> Rows:
    model, _, kind = path.stem.rpartition("_")
    held_columns = {"placements": ("placement",), "scalability": ("num_nodes", "num_replicas")}.get(kind)
    if held_columns is None:
        raise ValueError(f"{path}: a pollux file is named <model>_placements.csv or <model>_scalability.csv")
    columns = ("local_bsz", "step_time", "sync_time", *held_columns)
    table = _csv(path, columns)
    for row, values in enumerate(table[list(columns)].itertuples(index=False, name=None), start=2):
        step, sync = _number(path, row, "step_time", values[1]), _number(path, row, "sync_time", values[2])
        held = ", ".join(f"{name} {value}" for name, value in zip(held_columns, values[3:], strict=True))
        yield "pollux", "t4", model, values[0], step - sync, sync, held


def _flash(path: Path) -> Rows:
    device, _, layer = path.stem.rpartition("_")
    if layer not in FLASH_UNITS:
        raise ValueError(f"{path}: a flash file is named <device>_<layer>.json with a layer of {list(FLASH_UNITS)}")
    file = _json(path)
    rows, times = file.get("X"), file.get("Y")
    if not (isinstance(rows, list) and isinstance(times, list) and len(rows) == len(times)):
        raise ValueError(f"{path}: must hold X and Y, lists of the same length")
    into, out = FLASH_UNITS[layer]
    for row, (features, time) in enumerate(zip(rows, times, strict=True), start=1):
        if not (_are_numbers(features, 4) and _are_numbers(time, 1)):
            raise ValueError(f"{path}, row {row}: X must hold 4 numbers and Y 1, got {features!r:.80} and {time!r:.40}")
        held = f"in {features[0] * into:.0f}, out {features[1] * out:.0f}, steps {features[3] * 10:.0f}"
        yield "flash", device, layer, round(features[2] * 50), time[0], np.nan, held


def _are_numbers(row: Any, many: int) -> bool:
    """Return whether a row is a list of ``many`` finite numbers."""
    # no size that a profile scales down is as large
    return (
        isinstance(row, list) and len(row) == many and all(isinstance(x, int | float) and -1e15 < x < 1e15 for x in row)
    )


# -- checked rows ------------------------------------------------------------------------------------------------


def _frame(path: Path, rows: Rows, *, first_row: int) -> pd.DataFrame:
    import pandas as pd

    checked = []
    for row, (source, device, model, batch, seconds, comm, held) in enumerate(rows, start=first_row):
        numbers = _number(path, row, "batch", batch), _optional(path, row, "seconds", seconds)
        texts = ["" if pd.isna(text) else str(text) for text in (source, device, model, held)]  # type: ignore[call-overload]
        comm_seconds = _optional(path, row, "comm_seconds", comm, minimum=0.0)
        checked.append((*texts[:3], *numbers, comm_seconds, texts[3]))
    if not checked:
        raise ValueError(f"{path}: holds no measurement")
    return pd.DataFrame(checked, columns=list(COLUMNS))


def _optional(path: Path, row: int, name: str, value: Any, *, minimum: float | None = None) -> float:
    missing = value == "" or (isinstance(value, float) and np.isnan(value))
    return float("nan") if missing else _number(path, row, name, value, minimum=minimum)


def _number(path: Path, row: int, name: str, value: Any, *, minimum: float | None = None) -> float:
    """Return a positive number (or one of at least ``minimum``), or raise an error that says where it is."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not np.isfinite(number) or (number <= 0 if minimum is None else number < minimum):
        wanted = "positive" if minimum is None else f"at least {minimum:g}"
        raise ValueError(f"{path}, row {row}: {name} must be a number, {wanted}, got {value!r}")
    return number


def _csv(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    import pandas as pd

    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {csv_fault(error)}") from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise ValueError(f"{path}: columns {missing} are missing, it has {list(table.columns)}")
    return table


def _json(path: Path) -> dict[str, Any]:
    file = json_of(path, 1 << 26, "no profile is as large")
    if not isinstance(file, dict):
        raise ValueError(f"{path}: must hold a JSON object, got a {type(file).__name__}")
    return file
