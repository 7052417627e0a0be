"""Read recorders' files: those of all workers become one trace, and the phases of their iterations one table.

Axes: T iterations, W workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from paceline._text import join_names
from paceline.datasets.frame import BASE_COLUMNS, MEASURED_COLUMNS, WORK_COLUMN
from paceline.datasets.trace import Trace
from paceline.recording.recorder import SCHEMA_VERSION

if TYPE_CHECKING:
    import pandas as pd

WorkerFile = tuple[dict[str, Any], NDArray[np.float64]]
"""One worker's header, and its rows ``[T, columns]``."""


def merge(paths: Iterable[str | Path]) -> Trace:
    """Merge the files of all workers into one trace, aligned by iteration; what a worker lacks is NaN.

    A worker may lack iterations, and covariates that others have, such as those of a GPU.

    If the recorder could not separate waiting from communication, this function does: the exchange ends for all workers
    together, so the last worker to arrive waited for nobody, and its time is the communication time of all.
    ``start`` is the time by each host's own clock. Iterations that a worker could not write, as on a full disk, are
    counted in ``meta["iterations_lost"]``.

    ``paths`` are the workers' files, in the order of the workers. ``ValueError`` if a line other than the last is
    broken (the message names file and line), no file holds an iteration, or they do not hold a trace.
    """
    names = list(map(str, paths))
    files = _read_sound_files(names)
    try:
        return _merge_files(files)
    except ValueError as error:
        raise ValueError(f"{join_names(names, limit=3)}: {error}") from error


def merge_skipping_faults(paths: Iterable[str | Path]) -> tuple[Trace | None, list[str]]:
    """Merge as :func:`merge` does, but skip broken files and rows, and return a sentence about each file with some.

    The trace is None if nothing valid was recorded.
    """
    files: list[WorkerFile] = []
    missing: list[str] = []
    for path in map(Path, paths):
        try:
            header, rows, faults = _read_file(path)
        except ValueError as error:
            missing.append(f"left out: {error}")
            continue
        if any(header["worker"] == other["worker"] for other, _ in files):
            missing.append(f"left out: {path}, as an earlier file holds worker {header['worker']} already")
            continue
        if faults:
            missing.append(f"{path}: {len(faults)} rows are left out; the first: {faults[0]}")
        files.append((header, rows))
    return (_merge_files(files) if any(len(rows) for _, rows in files) else None), missing


def phase_table(paths: Iterable[str | Path]) -> pd.DataFrame:
    """Return how long the parts of each worker's iterations took, one row per iteration and worker.

    The columns are ``iteration``, ``worker``, ``seconds``, then one for each phase, in seconds. The time between two
    iterations (``between_seconds``) is not part of ``seconds``. It raises as :func:`merge` does, or if no phases were
    recorded.
    """
    import pandas as pd

    files = _read_sound_files(paths)
    names = _unique_names(header.get("phases", []) for header, _ in files)
    if not names:
        raise ValueError(f"worker {files[0][0]['worker']} recorded no phases: record with an adapter such as `watch`")
    frames = [
        pd.DataFrame(rows, columns=header["columns"]).assign(worker=header["worker"]).astype({"iteration": int})
        for header, rows in files
    ]
    table = pd.concat(frames)[["iteration", "worker", "seconds", *names]]
    return table.sort_values(["iteration", "worker"], ignore_index=True)


def _read_sound_files(paths: Iterable[str | Path]) -> list[WorkerFile]:
    names, files = list(map(str, paths)), []
    for name in names:
        header, rows, faults = _read_file(Path(name))
        if faults:
            raise ValueError(faults[0])
        files.append((header, rows))
    if not any(len(rows) for _, rows in files):
        found = join_names(names, limit=3) if names else "no files"
        raise ValueError(f"nothing to merge: no iteration in {found}")
    return files


def _unique_names(name_lists: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(name for some in name_lists for name in some))


def _merge_files(files: Sequence[WorkerFile]) -> Trace:
    covariate_names = _unique_names(header["covariates"] for header, _ in files)
    column_names = _unique_names(header["columns"] for header, _ in files)
    iterations = np.unique(np.concatenate([rows[:, 0] for _, rows in files]))

    def fill_panel(column_name: str) -> NDArray[np.float64]:
        values_TW = np.full((len(iterations), len(files)), np.nan)
        for w, (header, rows) in enumerate(files):
            if column_name in header["columns"]:
                values_TW[np.searchsorted(iterations, rows[:, 0]), w] = rows[:, header["columns"].index(column_name)]
        return values_TW

    measured = {name: fill_panel(name) for name in column_names if name in MEASURED_COLUMNS}
    if all(header.get("wait_in_comm") for header, _ in files):
        # All workers leave the exchange together, so the shortest stay is that of the worker that arrived last.
        exposed_TW = measured["comm_seconds"]
        shortest_T = np.min(exposed_TW, axis=1, keepdims=True, initial=np.inf, where=np.isfinite(exposed_TW))
        measured["comm_seconds"] = comm_TW = np.where(np.isfinite(exposed_TW), shortest_T, np.nan)
        measured["wait_seconds"] = exposed_TW - comm_TW
    if WORK_COLUMN in measured and not np.isfinite(measured[WORK_COLUMN]).any():
        del measured[WORK_COLUMN]  # nobody knew it
    # The first worker's word about the job counts.
    meta = {key: value for header, _ in reversed(files) for key, value in header["meta"].items()}
    # Recorders number iterations without a gap, so a gap is an iteration that could not be written.
    gaps = [(header["worker"], int(np.ptp(rows[:, 0])) + 1 - len(rows)) for header, rows in files if len(rows)]
    if lost := [f"worker {worker}: {count}" for worker, count in gaps if count]:
        meta["iterations_lost"] = ", ".join(lost)
    return Trace(
        **measured,
        covariates=np.stack([fill_panel(name) for name in covariate_names], axis=-1) if covariate_names else None,
        covariate_names=covariate_names,
        workers=[header["worker"] for header, _ in files],
        meta=meta,
    )


def _read_file(path: Path) -> tuple[dict[str, Any], NDArray[np.float64], list[str]]:
    """Return the header and the sound rows ``[T, columns]`` of one file, and a sentence about each broken row.

    Text after the last line break is a torn line, which was being written when the process was killed; it is dropped.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    if not lines:
        raise ValueError(f"{path} has no complete line, so nothing was recorded in it: leave the file out")
    header = _parse_line(lines[0])
    if not _is_valid_header(header):
        raise ValueError(
            f"{path}, line 1: not the header of a record with schema version {SCHEMA_VERSION}: leave the file out, or "
            "record again with this version of paceline"
        )
    columns, rows, faults = header["columns"], {}, []
    measured_C = np.array([name in MEASURED_COLUMNS for name in columns])
    for line_number, line in enumerate(lines[1:], start=2):
        try:
            row_C = _parse_row(line, len(columns))
            # A repeated iteration would overwrite the first one in the panel without a word.
            if row_C[0] in rows:
                raise ValueError(f"iteration {int(row_C[0])} was recorded before: remove one of the two lines")
            if ((row_C < 0) & measured_C | np.isinf(row_C)).any():
                raise ValueError(f"a number is negative or infinite: {line[:80]!r}")
            rows[row_C[0]] = row_C
        except ValueError as error:
            faults.append(f"{path}, line {line_number}: {error}")
    return header, np.array(list(rows.values()), dtype=np.float64).reshape(len(rows), len(columns)), faults


def _is_valid_header(header: Any) -> bool:
    # Merging needs the measured columns first and the covariates last.
    if not isinstance(header, dict) or header.get("schema_version") != SCHEMA_VERSION:
        return False
    names, covariates = header.get("columns"), header.get("covariates")
    if not (_is_list_of_names(names) and _is_list_of_names(covariates)):
        return False
    return (
        names[: len(BASE_COLUMNS) + 1] == ["iteration", *BASE_COLUMNS]
        and names[len(names) - len(covariates) :] == covariates
        and isinstance(header.get("worker"), str)
        and isinstance(header.get("meta"), dict)
        and _is_list_of_names(phases := header.get("phases", []))
        and set(phases) <= set(names)
    )


def _is_list_of_names(names: Any) -> TypeGuard[list[str]]:
    return isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def _parse_row(line: str, width: int) -> NDArray[np.float64]:
    row = _parse_line(line)
    numbers = isinstance(row, list) and all(type(value) in (int, float, type(None)) for value in row)
    if not numbers or len(row) != width or type(row[0]) is not int or not 0 <= row[0] < 2**53:
        raise ValueError(f"expected a list of {width} numbers that begins with an iteration, got {line[:80]!r}")
    try:
        return np.array(row, dtype=np.float64)
    except OverflowError as error:
        raise ValueError(f"a number is too large for float64 ({error})") from error


def _parse_line(line: str) -> Any:
    """Return what a line holds, None if that is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # also a number of too many digits
        return None
