"""Readers of traces recorded by others: every format by its name; unambiguous files are recognized.

Each file of :mod:`paceline.datasets.formats` reads one family of formats. A reader yields one trace after the other, so
that files larger than memory can be read. The trace's ``meta`` counts the rows that it leaves out.

Axes: T iterations, W workers, D covariates, R runs of equal rows.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.datasets.columns import option_advice
from paceline.datasets.formats import (
    NATIVE_FORMAT,
    Format,
    cluster_traces,
    monitoring,
    profilers,
    tables,
    training_logs,
)
from paceline.datasets.frame import REQUIRED_COLUMNS
from paceline.datasets.io import RowCounts, detect_delimiter, parse_header, read_head
from paceline.datasets.ranks import rank_in_path, strip_ranks
from paceline.datasets.trace import Trace


def stuck_covariates_note(trace: Trace) -> str:
    """Return a note on how many iterations all covariates of a worker are stuck in; empty if they never are.

    A single covariate that rests, such as used memory, is nothing unusual while others move. A worker whose covariates
    never change has no frozen stretch.
    """
    covariates_TWD = trace.covariates
    if covariates_TWD is None or len(trace) <= 20:
        return ""
    still = []
    for name, values_TD in zip(trace.workers, np.moveaxis(covariates_TWD, 1, 0), strict=True):
        known_TD = np.isfinite(values_TD)
        equal_TD = (values_TD[1:] == values_TD[:-1]) | ~(known_TD[1:] | known_TD[:-1])
        start_R = np.flatnonzero(np.append(True, ~equal_TD.all(axis=1)))
        length_R = np.diff(start_R, append=len(trace))[known_TD[start_R].any(axis=1)]
        if len(length_R) > 1:
            mean_length = (length_R.sum() - length_R.max()) / (len(length_R) - 1)
            rows = length_R[length_R >= max(20.0, 10.0 * mean_length)].sum()
            still += [f"{rows} iterations of {name}"] if rows else []
    more = [f"and others of {len(still) - 5} more workers"] if len(still) > 5 else []
    return "all covariates stand still for " + ", ".join([*still[:5], *more]) if still else ""


log = logging.getLogger("paceline.datasets.readers")

FORMATS: dict[str, Format] = {
    one.name: one for module in (tables, cluster_traces, training_logs, monitoring, profilers) for one in module.FORMATS
}
"""Every format by its name."""


def read_traces(path: str | Path, format: str | None = None, **options: Any) -> list[Trace]:  # noqa: A002
    r"""Return the traces of a file, or of all recognized files of a folder.

    Parameters
    ----------
    path
        The file or the folder. Files of a folder that belong to one job are read as one trace.
    format
        A name of :data:`FORMATS`; without it the format is recognized from the file's name and beginning.
    options
        Options of the format: see docs/reference/formats.md.

    Returns
    -------
    list
        Traces whose ``meta`` holds the source, the units, and how many rows were dropped and why. Traces of
        resource usage have covariates and NaN speeds. For files larger than memory use :func:`iter_traces`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the format is not known or not recognized, an option is not one of the format's, or the file is not as
        expected; the message names the file, the row and the column.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "job_1_norm.csv"
    ...     _ = file.write_text(",worker,gpu,time,batch_time_norm\n0,0,25,1,500\n1,1,25,1,250\n")
    ...     (trace,) = read_traces(file)
    >>> trace.speed
    array([[2., 4.]])
    """
    return list(iter_traces(path, format, **options))


def iter_traces(path: str | Path, format: str | None = None, **options: Any) -> Iterator[Trace]:  # noqa: A002
    """Yield the traces of a file or a folder one after the other: see :func:`read_traces`."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    for chosen, files in iter_jobs(path, format, options=options):
        yield from read_job(chosen, files, **options)


def read_job(format: Format, files: Sequence[Path], **options: Any) -> Iterator[Trace]:  # noqa: A002
    """Yield the traces of files of one job, as :func:`iter_jobs` puts them together."""
    accepted = _option_names(format)
    if unknown := sorted(set(options) - set(accepted)):
        raise ValueError(f"unknown options {unknown} for format {format.name!r}; it accepts {accepted}")
    try:
        row_counts = RowCounts()
        of_one_file = format.job is None and not format.per_rank
        read = partial(format.read, files[0], row_counts) if of_one_file else partial(format.read, files)
        for trace in read(**options):
            meta = dict(trace.meta)
            if of_one_file:
                meta = {"job": files[0].name.split(".")[0], **meta, **row_counts.to_meta()}
            if format.tested_on != NATIVE_FORMAT:
                meta = {"format": format.name, "reader_seen": format.tested_on, **meta}
            if sentence := stuck_covariates_note(trace):
                meta["frozen"] = sentence
            yield trace if meta == trace.meta else replace(trace, meta=meta)
    except (OSError, ImportError):
        raise
    except Exception as error:  # of a library below, which does not know the file; pyarrow and pandas raise any kind
        if isinstance(error, ValueError) and any(str(file) in str(error) for file in files):
            raise
        raise ValueError(f"{files[0]} cannot be read as {format.name}: {error}") from error


def detect_format(path: str | Path, options: Mapping[str, object] | None = None) -> Format:
    """Return the format of a file, from its name and its first bytes.

    A table of no format is plain CSV if ``options`` name the columns of its workers and iterations.
    """
    path = Path(path)
    text = read_head(path)
    if set(REQUIRED_COLUMNS) <= set(parse_header(text, detect_delimiter(text))):
        return FORMATS["csv"]  # the library's own names: no other format has them all
    names = tables.read_column_names(path, text)
    matching = [one for one in FORMATS.values() if one.matches(path, text)]
    if options and not any(set(options) <= set(_option_names(one)) for one in matching):
        matching = [one for one in matching if not tables.is_table_with(names, options)]  # they describe a plain table
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise ValueError(f"{path} matches several formats, {[one.name for one in matching]}: name one as format")
    if tables.is_table_with(names, options or {}):
        return FORMATS[tables.table_kind(text)]
    if instead := profilers.suggest_logging(text):
        raise ValueError(f"{path} {instead}")
    what_to_do = (
        ": name its format, one of those that `paceline data list formats` shows; a plain table must have the "
        "columns worker, iteration, samples and seconds, or options such as --with worker=rank that name them"
    )
    raise ValueError(f"{path} matches no known format{option_advice(names) or what_to_do}")


def iter_jobs(
    path: Path,
    name: str | None = None,
    on_skipped: Callable[[Path, ValueError], None] = lambda file, why: log.info("left out: %s", why),
    options: Mapping[str, object] | None = None,
) -> Iterator[tuple[Format, list[Path]]]:
    """Yield the jobs of a file or a folder, each with its format; ``on_skipped`` is called for files of none.

    ``options`` are those to read with: see :func:`detect_format`.
    """
    if not path.is_dir():
        if name is not None and name not in FORMATS:
            raise ValueError(f"there is no format {name!r}; choose one of {list(FORMATS)}")
        yield (detect_format(path, options) if name is None else FORMATS[name]), [path]
        return
    jobs: dict[tuple[str, str, str], list[Path]] = {}
    why: ValueError | None = None
    # hidden folders, such as that of a repository's history, hold no data
    below = [(file, file.relative_to(path).parts[:-1]) for file in path.rglob("*") if file.is_file()]
    for file in sorted(file for file, folders in below if not any(name.startswith(".") for name in folders)):
        try:
            chosen = detect_format(file, options)
        except ValueError as error:
            on_skipped(file, error)
            why = why or error
            continue
        if name in (None, chosen.name):
            local = file.relative_to(path)
            one_rank = chosen.per_rank and rank_in_path(local)
            job = ("", strip_ranks(local)) if one_rank else (str(local.parent), (chosen.job or str)(file))
            jobs.setdefault((chosen.name, *job), []).append(file)
    if not jobs:
        wanted = "a recognized format" if name is None else f"the format {name}"
        raise ValueError(f"{path} contains no file of {wanted}{f': {why}' if why and name is None else ''}")
    for (chosen_name, _, _), files in jobs.items():
        yield FORMATS[chosen_name], files


def _option_names(file_format: Format) -> list[str]:
    parameters = inspect.signature(file_format.read).parameters.values()
    return [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
