"""Lines that PyTorch's examples and GNMT print."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paceline.datasets.frame import require_dense
from paceline.datasets.readers.files import numbered_lines
from paceline.datasets.readers.format import QUOTED, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

LONGEST_LINE = 4096
"""Characters of a log line that are searched."""

NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)"


class Record(NamedTuple):
    """One line: its worker, its place within the run (epoch and step), samples, seconds, and other values."""

    worker: str
    place: tuple[int, int]
    samples: float
    seconds: float
    extra: dict[str, float]


PYTORCH = re.compile(r"(?:Epoch: |(?:\b(\d+): )?TRAIN )\[(\d+)\]\[ *(\d+)/ *\d+\][\s,|]*(?:lr:\S+\s+)?Time " + NUMBER)
PYTORCH_RATE = re.compile(r"\b(?:Speed|Tok/s) " + NUMBER)
UNITS = "samples: Speed or Tok/s times seconds, or batches"

PYTORCH_DATA = re.compile(r"\bData " + NUMBER)


def parsed(line: str) -> Record | None:
    """Return what a line says; ``None`` for a line of another kind."""
    found = PYTORCH.search(line)  # GNMT names the rank in front
    if found is None:
        return None
    seconds, rate, data = float(found[4]), PYTORCH_RATE.search(line), PYTORCH_DATA.search(line)
    samples = float(rate[1]) * seconds if rate else 1.0
    extra = {"data_seconds": float(data[1])} if data else {}
    return Record(found[1] or "0", (int(found[2]), int(found[3])), samples, seconds, extra)


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per file; row k is a worker's k-th line, covariates are values of the previous line."""
    for path in paths:
        tally = Tally()
        records = _records(path, tally)
        workers = sorted({record.worker for record in records}, key=int)
        extras = sorted({name for record in records for name in record.extra})
        series: dict[str, list[Record]] = {worker: [] for worker in workers}
        for record in records:
            series[record.worker].append(record)
        shape = (max(map(len, series.values())), len(workers))
        require_dense(len(records), *shape)
        samples_TW, seconds_TW = np.full(shape, np.nan), np.full(shape, np.nan)
        covariates_TWD = np.full((*shape, len(extras)), np.nan)
        restarts = 0
        for w, rows in enumerate(series.values()):
            samples_TW[: len(rows), w] = [row.samples for row in rows]
            seconds_TW[: len(rows), w] = [row.seconds for row in rows]
            again = [k for k in range(1, len(rows)) if rows[k].place < rows[k - 1].place]
            restarts = max(restarts, len(again))
            for d, name in enumerate(extras):
                covariates_TWD[1 : len(rows), w, d] = [row.extra.get(name, np.nan) for row in rows[:-1]]
            covariates_TWD[again, w] = np.nan  # the line before belongs to another run
        tally.restarts(restarts)
        yield Trace(
            samples=samples_TW,
            seconds=seconds_TW,
            covariates=covariates_TWD if extras else None,
            covariate_names=extras,
            workers=workers,
            meta={"job": path.name.split(".")[0], "format": "pytorch_log", "units": UNITS, **tally.meta()},
        )


def _records(path: Path, tally: Tally) -> list[Record]:
    records = []
    for _, line in numbered_lines(path):
        if not line.strip():
            continue
        tally.read(1)
        record = parsed(line[:LONGEST_LINE])
        if record is None:
            tally.rows("lines of other kinds", 1)
        elif not (np.isfinite(record.samples) and np.isfinite(record.seconds)):
            tally.rows("lines with numbers that are not finite", 1)
        else:
            records.append(record)
    if not records:
        raise ValueError(f"{path}: has no line with a speed or a time of this kind")
    return records


def _is(path: Path, head: str) -> bool:
    return any(parsed(line[:LONGEST_LINE]) for line in re.split(r"[\r\n]+", head))


FORMATS = (
    Format(
        name="pytorch_log",
        about="batch times of PyTorch's examples and of GNMT",
        files="text; lines of other kinds and prefixes such as [1,0]<stderr>: may stand between and before",
        gives="speed",
        seen=QUOTED,
        read=read,
        recognises=_is,
        per_rank=True,
    ),
)
