"""Timers of every rank in Megatron-LM's log. Axes: T blocks of the log, W ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paceline.datasets.frame import require_dense
from paceline.datasets.readers.files import numbered_lines
from paceline.datasets.readers.format import MADE, Format
from paceline.datasets.readers.tally import Tally
from paceline.datasets.trace import Trace

BLOCK = re.compile(r"\btimes across ranks \(ms\):")
TIMER = re.compile(r"([a-z][a-z0-9-]+):\s*$")
RANK = re.compile(r"\brank\s+(\d+): +([0-9]+(?:\.[0-9]+)?)\s*$")

OWN_TIMERS = ("forward-compute", "backward-compute")
"""Timers of a rank's own work; others hold waiting for other ranks too."""

OWN_PARTS = ("optimizer-copy-to-main-grad", "optimizer-inner-step", "optimizer-copy-main-to-model-params")
"""Further timers of own work, which count where every block has them for every rank."""

Timers = dict[str, dict[int, float]]


def read(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace per file: a block of the log is an iteration, the mean of those since the block before."""
    for path in paths:
        tally = Tally()
        blocks = list(_blocks(path, tally))
        ranks = sorted({rank for block in blocks for timer in block.values() for rank in timer})
        if not ranks or any(timer not in block for block in blocks for timer in OWN_TIMERS):
            raise ValueError(
                f"{path}: every block of times must have the timers {list(OWN_TIMERS)} of each rank: log with "
                "--timing-log-level 2 --timing-log-option all"
            )
        own = [
            *OWN_TIMERS,
            *(one for one in OWN_PARTS if all(set(b.get(one, ())) >= set(b[OWN_TIMERS[0]]) for b in blocks)),
        ]
        require_dense(sum(len(block[timer]) for block in blocks for timer in OWN_TIMERS), len(blocks), len(ranks))
        seconds_TW = 1e-3 * np.array(
            [[sum(block[timer].get(rank, np.nan) for timer in own) for rank in ranks] for block in blocks]
        )
        yield Trace(
            samples=np.where(np.isfinite(seconds_TW), 1.0, np.nan),
            seconds=seconds_TW,
            workers=[str(rank) for rank in ranks],
            meta={
                "source": "github.com/NVIDIA/Megatron-LM",
                "job": path.name.split(".")[0],
                "format": "megatron_timers",
                "units": f"seconds: {', '.join(own)}; samples: iterations",
                "not_timed": "what no timer of a rank's own lists, such as work between the passes",
                **tally.meta(),
            },
        )


def _blocks(path: Path, tally: Tally) -> Iterator[Timers]:
    block: Timers | None = None
    timer: dict[int, float] | None = None
    for _, line in numbered_lines(path):
        if not line.strip():
            continue
        tally.read(1)
        if BLOCK.search(line):
            if block:
                yield block
            block, timer = {}, None
        elif block is not None and (named := TIMER.search(line)):
            timer = block.setdefault(named[1], {})
        elif timer is not None and (timed := RANK.search(line)):
            timer[int(timed[1])] = float(timed[2])
        else:
            tally.rows("lines of other kinds", 1)
            timer = None
    if block:
        yield block
    elif block is None:
        raise ValueError(f"{path}: has no times across ranks")


FORMATS = (
    Format(
        name="megatron_timers",
        about="timers of every rank (Megatron-LM with --timing-log-level 2 --timing-log-option all)",
        files="text; lines of other kinds may stand between",
        gives="speed",
        seen=MADE,
        read=read,
        recognises=lambda path, head: BLOCK.search(head) is not None,
    ),
)
