"""Lines that training programs print: MXNet's Speedometer, maskrcnn-benchmark, PyTorch examples and GNMT."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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


MXNET = re.compile(r"(?:Node\[(\d+)\] )?Epoch ?\[(\d+)\] Batch ?\[(\d+)(?:-\d+)?\]\s+Speed: " + NUMBER + " samples/sec")
MASKRCNN = re.compile(r"\biter: (\d+)\b.*?\btime: " + NUMBER + r" \(.*?\bdata: " + NUMBER + r" \(")
MEMORY = re.compile(r"max mem: " + NUMBER)
PYTORCH = re.compile(r"(?:Epoch: |(?:\b(\d+): )?TRAIN )\[(\d+)\]\[ *(\d+)/ *\d+\][\s,|]*(?:lr:\S+\s+)?Time " + NUMBER)
PYTORCH_RATE = re.compile(r"\b(?:Speed|Tok/s) " + NUMBER)
PYTORCH_DATA = re.compile(r"\bData " + NUMBER)


def _mxnet(line: str) -> Record | None:
    found = MXNET.search(line)
    return None if found is None else Record(found[1] or "0", _place(found[2], found[3]), float(found[4]), 1.0, {})


def _maskrcnn(line: str) -> Record | None:
    found = MASKRCNN.search(line)
    if found is None:
        return None
    memory = MEMORY.search(line)
    extra = {"data_seconds": float(found[3]), **({"max_memory_mb": float(memory[1])} if memory else {})}
    return Record("0", _place("0", found[1]), 1.0, float(found[2]), extra)


def _pytorch(line: str) -> Record | None:
    found = PYTORCH.search(line)
    if found is None:
        return None
    seconds, rate, data = float(found[4]), PYTORCH_RATE.search(line), PYTORCH_DATA.search(line)
    samples = float(rate[1]) * seconds if rate else 1.0
    extra = {"data_seconds": float(data[1])} if data else {}
    return Record(found[1] or "0", _place(found[2], found[3]), samples, seconds, extra)  # GNMT names the rank in front


def _place(epoch: str, step: str) -> tuple[int, int]:
    return int(epoch), int(step)


class Kind(NamedTuple):
    """One kind of lines: its pattern, and what it measures."""

    parse: Callable[[str], Record | None]
    about: str
    units: str


KINDS = {
    "mxnet_log": Kind(_mxnet, "speed of MXNet's Speedometer", "samples: in one second, mean since the line before"),
    "maskrcnn_log": Kind(
        _maskrcnn, "iteration times of maskrcnn-benchmark", "samples: iterations; seconds: median of the last 20"
    ),
    "pytorch_log": Kind(
        _pytorch,
        "batch times of PyTorch's examples and of GNMT",
        "samples: Speed or Tok/s times seconds, or batches",
    ),
}


def read(kind: str, paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per file; row k is a worker's k-th line, covariates are values of the previous line."""
    for path in paths:
        tally = Tally()
        records = _records(path, KINDS[kind].parse, tally)
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
            meta={"job": path.name.split(".")[0], "format": kind, "units": KINDS[kind].units, **tally.meta()},
        )


def _records(path: Path, parse: Callable[[str], Record | None], tally: Tally) -> list[Record]:
    records = []
    for _, line in numbered_lines(path):
        if not line.strip():
            continue
        tally.read(1)
        record = parse(line[:LONGEST_LINE])
        if record is None:
            tally.rows("lines of other kinds", 1)
        elif not (np.isfinite(record.samples) and np.isfinite(record.seconds)):
            tally.rows("lines with numbers that are not finite", 1)
        else:
            records.append(record)
    if not records:
        raise ValueError(f"{path}: has no line with a speed or a time of this kind")
    return records


def _is(kind: str, path: Path, head: str) -> bool:
    lines = re.split(r"[\r\n]+", head)
    return any(KINDS[kind].parse(line[:LONGEST_LINE]) for line in lines)


FORMATS = tuple(
    Format(
        name=kind,
        about=told.about,
        files="text; lines of other kinds and prefixes such as [1,0]<stderr>: may stand between and before",
        gives="speed",
        seen=QUOTED,
        read=partial(read, kind),
        recognises=partial(_is, kind),
        per_rank=True,
    )
    for kind, told in KINDS.items()
)
