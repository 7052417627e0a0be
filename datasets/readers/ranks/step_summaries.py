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
RESIDUAL = "residual_ms"
BESIDE = ("input_wait_ms", "h2d_ms", "optimizer_ms", RESIDUAL)
"""Parts of a step beside the two passes, each a rank's own; the transfer, the optimizer and the rest may be absent."""


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one iteration of all ranks: the averages of their steps, without the waiting inside the passes."""
    for path in paths:
        rows = _rows(path)
        beside_W = np.array([[_number(path, rank, row, name) for name in BESIDE] for rank, row in rows.items()]).sum(1)
        beside_W = np.maximum(beside_W, _unlisted(path, rows))
        forward_W, backward_W = (
            np.array([_number(path, rank, row, name, needed=True) for rank, row in rows.items()])
            for name in (FORWARD, BACKWARD)
        )
        tally = Tally()
        tally.read(len(rows))
        yield Trace(
            samples=np.ones((1, len(rows))),
            seconds=1e-3 * (beside_W + own_passes(forward_W, backward_W, beside_W))[None, :],
            workers=list(rows),
            meta={
                "source": "github.com/traceopt-ai/traceml",
                "job": path.name.split(".")[0],
                "format": "traceml_summary",
                "units": "seconds: of a step on average, without waiting inside the passes",
                "averages": "one iteration: a rank's usual time, not a series",
                **tally.meta(),
            },
        )


def _unlisted(path: Path, rows: Mapping[str, Mapping[str, object]]) -> Array:
    """Return what of each rank's step is neither of the passes: what no part lists is its own too, ``[W]``."""
    columns = ("step_time_ms", FORWARD, BACKWARD)
    step_W, forward_W, backward_W = (
        np.array([_number(path, rank, row, name) for rank, row in rows.items()]) for name in columns
    )
    return np.maximum(step_W - forward_W - backward_W, 0.0)


def own_passes(forward_W: Array, backward_W: Array, beside_W: Array) -> Array:
    """Return the time of both passes without waiting, ``[W]``.

    A rank waits for the others inside one of its passes, usually the backward pass; the slowest rank waits least. There
    both passes have their true ratio, which the others have too, as all run the same model.

    >>> own_passes(np.array([10.0, 20.0]), np.array([50.0, 40.0]), np.zeros(2))
    array([30., 60.])

    A collective inside the forward pass, as of SyncBatchNorm, moves the waiting there: a rank's forward pass is then as
    much longer as the other rank's step is elsewhere.

    >>> own_passes(np.array([20.8, 0.8]), np.array([12.8, 12.8]), np.array([1.0, 21.0])).round(1)
    array([13.6, 13.6])
    """
    clean_W, waiting_W = forward_W, backward_W
    if np.ptp(forward_W + beside_W) < np.ptp(forward_W) / 2:
        clean_W, waiting_W = backward_W, forward_W
    own: Array = clean_W * (1.0 + float(np.min(waiting_W / clean_W)))
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
