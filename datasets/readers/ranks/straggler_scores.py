"""Scores of the ranks' GPUs, as nvidia-resiliency-ext's straggler detection reports them. Axes: T reports, W ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.datasets.readers.files import numbered_lines
from paceline.datasets.readers.format import QUOTED, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

REPORT = re.compile(r"(?:GPUs relative perf: |\"relative_scores\": ?)\{([^{}]*)\}")
"""The line that its examples print, and the field of the JSON lines that they write."""

SCORE = re.compile(r"[\"']?(\d+)[\"']?: ?([0-9.eE+-]+|nan|NaN)")


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per file: a report is an iteration, and a score the speed beside the fastest rank's."""
    for path in paths:
        tally = Tally()
        reports = list(_reports(path, tally))
        ranks = sorted({rank for report in reports for rank in report})
        score_TW = np.array([[report.get(rank, np.nan) for rank in ranks] for report in reports])
        bad_TW = ~((score_TW > 0) & (score_TW <= 1))
        tally.cells("scores that are not in (0, 1]", bad_TW.sum())
        score_TW = np.where(bad_TW, np.nan, score_TW)
        yield Trace(
            samples=np.where(bad_TW, np.nan, 1.0),
            seconds=1.0 / score_TW,
            workers=[str(rank) for rank in ranks],
            meta={
                "source": "github.com/NVIDIA/nvidia-resiliency-ext",
                "job": path.name.split(".")[0],
                "format": "nvrx_scores",
                "units": "seconds: the fastest rank's time of the same kernels is 1; what is no kernel is not in it",
                **tally.meta(),
            },
        )


def _reports(path: Path, tally: Tally) -> Iterator[dict[int, float]]:
    found = False
    for line, text in numbered_lines(path):
        if not text.strip():
            continue
        tally.read(1)
        report = REPORT.search(text)
        if report is None:
            tally.rows("lines of other kinds", 1)
            continue
        found = True
        try:
            yield {int(rank): float(score) for rank, score in SCORE.findall(report[1])}
        except ValueError as error:
            raise ValueError(f"{path}, line {line}: a score must be a number: {error}") from None
    if not found:
        raise ValueError(f"{path}: has no line of GPUs' relative performance")


FORMATS = (
    Format(
        name="nvrx_scores",
        about="relative performance of the ranks' GPUs (nvidia-resiliency-ext, straggler detection)",
        files="text with 'GPUs relative perf: {0: 0.96, ...}', or JSON lines with relative_scores",
        gives="speed",
        seen=QUOTED,
        read=read,
        recognises=lambda path, head: REPORT.search(head) is not None,
    ),
)
