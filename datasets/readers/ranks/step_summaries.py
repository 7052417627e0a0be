"""Averages of each rank's step, from the final summary that TraceML writes. Axis: W ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline._arrays import Array
from paceline.datasets.readers.files import json_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

JSON_BYTES = 1 << 26

FORWARD, BACKWARD = "forward_ms", "backward_ms"
BESIDE = ("input_wait_ms", "h2d_ms", "optimizer_ms")
"""Parts of a step beside the two passes; the transfer and the optimiser may be absent."""


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one iteration of all ranks: the averages of their steps, without the waiting inside the backward pass."""
    for path in paths:
        rows = _rows(path)
        part_PW = np.array([[_number(path, rank, row, name) for rank, row in rows.items()] for name in BESIDE])
        forward_W, backward_W = (
            np.array([_number(path, rank, row, name, needed=True) for rank, row in rows.items()])
            for name in (FORWARD, BACKWARD)
        )
        tally = Tally()
        tally.read(len(rows))
        yield Trace(
            samples=np.ones((1, len(rows))),
            seconds=1e-3 * (part_PW.sum(axis=0) + forward_W + without_waiting(forward_W, backward_W))[None, :],
            workers=list(rows),
            meta={
                "source": "github.com/traceopt-ai/traceml",
                "job": path.name.split(".")[0],
                "format": "traceml_summary",
                "units": "seconds: of a step on average",
                "averages": "one iteration: a rank's usual time, not a series",
                **tally.meta(),
            },
        )


def without_waiting(forward_W: Array, backward_W: Array) -> Array:
    """Return the backward passes' own times, ``[W]``.

    A rank waits for the others inside its backward pass, the slowest one least: there backward and forward pass have
    their true ratio, which the others then have too, as all run the same model.

    >>> without_waiting(np.array([10.0, 20.0]), np.array([50.0, 40.0]))
    array([20., 40.])
    """
    own: Array = forward_W * float(np.min(backward_W / forward_W))
    return own


def _rows(path: Path) -> dict[str, Mapping[str, object]]:
    summary = json_of(path, JSON_BYTES, "this is no summary of a run")
    rows = summary
    for key in ("step_time", "groups", "rows"):
        rows = rows.get(key) if isinstance(rows, Mapping) else None
    if not isinstance(rows, Mapping) or not rows:
        raise ValueError(
            f"{path}: must hold a row for each rank under step_time, groups, rows, as TraceML writes from schema 1.4"
        )
    metrics = {str(rank): row.get("metrics") if isinstance(row, Mapping) else None for rank, row in rows.items()}
    if bad := [rank for rank, row in metrics.items() if not isinstance(row, Mapping)]:
        raise ValueError(f"{path}: ranks {bad[:5]} have no metrics")
    return metrics  # type: ignore[return-value]


def _number(path: Path, rank: str, row: Mapping[str, object], name: str, needed: bool = False) -> float:
    value = row.get(name)
    if value is None and not needed:
        return 0.0
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
    if not usable or (needed and value == 0):
        raise ValueError(
            f"{path}: rank {rank!r}: {name} must be a {'positive ' if needed else ''}number of milliseconds, got "
            f"{value!r:.40}; without it a rank's busy time is not known"
        )
    return float(value)  # type: ignore[arg-type]


FORMATS = (
    Format(
        name="traceml_summary",
        about="average times of each rank's step (TraceML's final summary)",
        files="final_summary.json",
        gives="speed",
        seen=MADE,
        read=read,
        recognises=lambda path, head: '"schema_version"' in head and '"primary_diagnosis"' in head,
    ),
)
