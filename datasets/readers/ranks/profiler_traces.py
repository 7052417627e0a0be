"""Steps of each rank in what torch.profiler exports, without the time for which only collectives ran.

Axes: T steps, W ranks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.datasets.readers.files import json_of
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

JSON_BYTES = 1 << 30
"""Largest export: it is read as a whole."""

STEP = re.compile(r"ProfilerStep#(\d+)")
COLLECTIVE = re.compile(r"nccl|rccl", re.IGNORECASE)
RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)

ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace of the files of a folder, one a rank: a profiled step is an iteration."""
    tally = Tally()
    ranks: dict[int, dict[int, float]] = {}
    for path in paths:
        rank, steps = _rank(path, tally)
        if rank in ranks:
            raise ValueError(f"{path}: is another export of rank {rank}: put those of one profile into a folder alone")
        ranks[rank] = steps
    folder = paths[0].parent
    if len(ranks) == 1:
        raise ValueError(f"{paths[0]}: is the profile of one rank; name the folder that holds those of all ranks")
    numbers = sorted(set.union(*(set(steps) for steps in ranks.values())))
    seconds_TW = np.array([[ranks[rank].get(step, np.nan) for rank in sorted(ranks)] for step in numbers])
    yield Trace(
        samples=np.where(np.isfinite(seconds_TW), 1.0, np.nan),
        seconds=seconds_TW,
        workers=[str(rank) for rank in sorted(ranks)],
        meta={
            "source": "torch.profiler",
            "job": folder.name,
            "format": "torch_profiler",
            "units": "seconds: of a step, without the time in which nothing but collectives ran; samples: steps",
            **tally.meta(),
        },
    )


def _rank(path: Path, tally: Tally) -> tuple[int, dict[int, float]]:
    """Return the rank of an export, and the seconds of its own work in each step."""
    export = json_of(path, JSON_BYTES, "profile fewer steps")
    events = export.get("traceEvents") if isinstance(export, Mapping) else None
    if not isinstance(events, list):
        raise ValueError(f"{path}: must hold a list of traceEvents")
    spans = [one for one in events if _is_span(one)]
    tally.read(len(spans))
    steps = {int(found[1]): one for one in spans if (found := _step(one))}
    collective, computing = (_intervals(spans, is_collective) for is_collective in (True, False))
    if not steps or not len(collective):
        missing = "ProfilerStep (call profiler.step())" if not steps else "kernel of NCCL or RCCL"
        raise ValueError(
            f"{path}: has no {missing}, so which part of a step a rank waited for others is not known; collectives on "
            "CPUs leave no span: record such a job with paceline.recording"
        )
    return _number_of(path, export), {
        number: 1e-6 * (one["dur"] - alone(collective, computing, one["ts"], one["ts"] + one["dur"]))
        for number, one in steps.items()
    }


def alone(collective: Array, computing: Array, began: float, ended: float) -> float:
    """Return for how long collectives ran in a span and nothing else did: the union of both, less what else ran.

    >>> alone(np.array([[2.0, 6.0], [5.0, 9.0]]), np.array([[0.0, 3.0]]), 0.0, 8.0)
    5.0
    """
    both = np.concatenate([collective, computing])
    return _covered(both, began, ended) - _covered(computing, began, ended)


def _covered(spans_N2: Array, began: float, ended: float) -> float:
    if not len(spans_N2):
        return 0.0
    spans_N2 = np.clip(spans_N2[np.argsort(spans_N2[:, 0])], began, ended)
    reached = np.maximum.accumulate(np.concatenate([[began], spans_N2[:-1, 1]]))
    return float(np.maximum(spans_N2[:, 1] - np.maximum(spans_N2[:, 0], reached), 0.0).sum())


def _intervals(spans: Sequence[Mapping[str, Any]], collective: bool) -> Array:
    chosen = [
        (one["ts"], one["ts"] + one["dur"])
        for one in spans
        if str(one.get("cat", "")).lower() in ON_DEVICE and bool(COLLECTIVE.search(str(one.get("name")))) == collective
    ]
    return np.array(chosen, dtype=np.float64).reshape(-1, 2)


def _is_span(one: object) -> bool:
    return isinstance(one, Mapping) and one.get("ph") == "X" and all(_is_time(one.get(key)) for key in ("ts", "dur"))


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18


def _step(one: Mapping[str, Any]) -> re.Match[str] | None:
    on_host = one.get("cat") == "user_annotation"  # the device has spans of the same name
    return STEP.fullmatch(str(one.get("name"))) if on_host else None


def _number_of(path: Path, export: Mapping[str, Any]) -> int:
    about = export.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, Mapping) else None
    if isinstance(rank, int):
        return rank
    named = RANK_IN_NAME.search(path.name)
    if named is None:
        raise ValueError(f"{path}: does not say of which rank it is: name it rank0.json, rank1.json, ...")
    return int(named[1])


FORMATS = (
    Format(
        name="torch_profiler",
        about="steps of each rank on GPUs (torch.profiler's export_chrome_trace or tensorboard_trace_handler)",
        files="a folder of JSON, one file a rank, with profiler.step() called in each step",
        gives="speed",
        seen=MADE,
        read=read,
        recognises=lambda path, head: '"traceEvents"' in head or '"deviceProperties"' in head,
        job=lambda path: "profile",
    ),
)
