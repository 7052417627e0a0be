"""Times of each rank that profilers and timers write: Megatron-LM, torch.profiler, nvidia-resiliency-ext."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.datasets.formats import QUOTED_FILES, SYNTHETIC_FILES, Format
from paceline.datasets.frame import require_dense
from paceline.datasets.io import RowCounts, counted_lines, read_json
from paceline.datasets.trace import Trace

# --- Timers of every rank in Megatron-LM's log. Axes: T blocks of the log, W ranks.

BLOCK_PATTERN = re.compile(r"\btimes across ranks \(ms\):")

COMPUTE_TIMERS = ("forward-compute", "backward-compute")
"""Timers of a rank's own work; others hold waiting for other ranks too."""

TimerSeconds = dict[str, dict[int, float]]


def read_megatron(path: Path, row_counts: RowCounts) -> Iterator[Trace]:
    """Yield one trace per file: a block of the log is an iteration, the mean of those since the block before."""
    job_facts: dict[str, str] = {}
    blocks = list(_iter_blocks(path, row_counts, job_facts))
    ranks = sorted({rank for block in blocks for timer in block.values() for rank in timer})
    if not ranks or any(timer not in block for block in blocks for timer in COMPUTE_TIMERS):
        raise ValueError(
            f"{path}: every block of times must have the timers {list(COMPUTE_TIMERS)} of each rank: log with "
            "--timing-log-level 2 --timing-log-option all"
        )
    # further timers of the rank itself, where every block has them for every rank
    further = ("optimizer-copy-to-main-grad", "optimizer-inner-step", "optimizer-copy-main-to-model-params")
    complete = [one for one in further if all(set(b.get(one, ())) >= set(b[COMPUTE_TIMERS[0]]) for b in blocks)]
    timers = [*COMPUTE_TIMERS, *complete]
    require_dense(sum(len(block[timer]) for block in blocks for timer in COMPUTE_TIMERS), len(blocks), len(ranks))
    seconds_TW = 1e-3 * np.array(
        [[sum(block[timer].get(rank, np.nan) for timer in timers) for rank in ranks] for block in blocks]
    )
    yield Trace(
        samples=np.where(np.isfinite(seconds_TW), 1.0, np.nan),
        seconds=seconds_TW,
        workers=[str(rank) for rank in ranks],
        meta={
            "source": "github.com/NVIDIA/Megatron-LM",
            "units": f"seconds: {', '.join(timers)}; samples: iterations",
            "not_timed": "what no timer of a rank's own lists, such as work between the passes",
            **job_facts,
        },
    )


def _iter_blocks(path: Path, row_counts: RowCounts, job_facts: dict[str, str]) -> Iterator[TimerSeconds]:
    block: TimerSeconds | None = None
    timer: dict[int, float] | None = None
    for _, line in counted_lines(path, row_counts):
        # stands beside the timers; the last one counts, as the batch may ramp up
        if batch := re.search(r"\bglobal batch size: +(\d+)", line):
            job_facts["global_batch"] = batch[1]
        if BLOCK_PATTERN.search(line):
            if block:
                yield block
            block, timer = {}, None
        elif block is not None and (named := re.search(r"([a-z][a-z0-9-]+):\s*$", line)):
            timer = block.setdefault(named[1], {})
        elif timer is not None and (timed := re.search(r"\brank\s+(\d+): +([0-9]+(?:\.[0-9]+)?)\s*$", line)):
            timer[int(timed[1])] = float(timed[2])
        else:
            row_counts.drop_rows("lines of other kinds", 1)
            timer = None
    if block:
        yield block
    elif block is None:
        raise ValueError(f"{path} has no times across ranks: log with --timing-log-option all")


# --- Steps of each rank in what torch.profiler exports, without the time for which only collectives ran.


def read_torch_profiler(paths: Sequence[Path]) -> Iterator[Trace]:
    """Yield one trace of the files of a folder, one a rank: a profiled step is an iteration."""
    row_counts = RowCounts()
    ranks: dict[int, dict[int, float]] = {}
    for path in paths:
        rank, steps = _read_rank(path, row_counts)
        if rank in ranks:
            raise ValueError(f"{path} is a second export of rank {rank}: keep each profile in a separate folder")
        ranks[rank] = steps
    folder = paths[0].parent
    if len(ranks) == 1:
        raise ValueError(f"{paths[0]} is the profile of one rank: pass the folder with the profiles of all ranks")
    numbers = sorted(set.union(*(set(steps) for steps in ranks.values())))
    seconds_TW = np.array([[ranks[rank].get(step, np.nan) for rank in sorted(ranks)] for step in numbers])
    yield Trace(
        samples=np.where(np.isfinite(seconds_TW), 1.0, np.nan),
        seconds=seconds_TW,
        workers=[str(rank) for rank in sorted(ranks)],
        meta={
            "source": "torch.profiler",
            "job": folder.name,
            "units": "seconds: of a step, without the time in which nothing but collectives ran; samples: steps",
            **row_counts.to_meta(),
        },
    )


def _read_rank(path: Path, row_counts: RowCounts) -> tuple[int, dict[int, float]]:
    """Return the rank of an export, and the seconds of its own work in each step."""
    # an export is read into memory at once
    export = read_json(path, 1 << 30, "profile fewer steps")
    events = export.get("traceEvents") if isinstance(export, Mapping) else None
    if not isinstance(events, list):
        raise ValueError(f"{path} must hold a list of traceEvents: export with export_chrome_trace of torch.profiler")
    spans = [one for one in events if _is_span(one)]
    row_counts.count_read(len(spans))
    # the device has spans of the same name
    named = [(one, str(one.get("name"))) for one in spans if one.get("cat") == "user_annotation"]
    steps = {int(found[1]): one for one, name in named if (found := re.fullmatch(r"ProfilerStep#(\d+)", name))}
    collective, computing = (_span_intervals(spans, is_collective) for is_collective in (True, False))
    if not steps or not len(collective):
        missing = "ProfilerStep (call profiler.step())" if not steps else "kernel of NCCL or RCCL"
        raise ValueError(
            f"{path} has no {missing}, so how long the rank waits for others is unknown; a profile of collectives "
            "on CPUs never shows it: record such a job with paceline record"
        )
    about = export.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, Mapping) else None
    if not isinstance(rank, int):
        if (of_name := re.search(r"rank[-_]?(\d+)", path.name, re.IGNORECASE)) is None:
            raise ValueError(f"the name of {path} must contain its rank: rename files to rank0.json, rank1.json, ...")
        rank = int(of_name[1])
    own, both = {}, np.concatenate([collective, computing])
    for number, one in steps.items():
        # nothing but collectives ran in the union of both, less what else ran
        window = one["ts"], one["ts"] + one["dur"]
        own[number] = 1e-6 * (one["dur"] - (_covered_seconds(both, *window) - _covered_seconds(computing, *window)))
    return rank, own


def _covered_seconds(spans_N2: Array, window_start: float, window_end: float) -> float:
    if not len(spans_N2):
        return 0.0
    spans_N2 = np.clip(spans_N2[np.argsort(spans_N2[:, 0])], window_start, window_end)
    reached = np.maximum.accumulate(np.concatenate([[window_start], spans_N2[:-1, 1]]))
    return float(np.maximum(spans_N2[:, 1] - np.maximum(spans_N2[:, 0], reached), 0.0).sum())


def _span_intervals(spans: Sequence[Mapping[str, Any]], is_collective: bool) -> Array:
    chosen = [
        (one["ts"], one["ts"] + one["dur"])
        for one in spans
        if str(one.get("cat", "")).lower() in {"kernel", "gpu_memcpy", "gpu_memset"}
        and bool(re.search("nccl|rccl", str(one.get("name")), re.IGNORECASE)) == is_collective
    ]
    return np.array(chosen, dtype=np.float64).reshape(-1, 2)


def _is_span(event: object) -> bool:
    if not isinstance(event, Mapping) or event.get("ph") != "X":
        return False
    times = event.get("ts"), event.get("dur")
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18 for value in times)


# --- Scores of the ranks' GPUs, as nvidia-resiliency-ext's straggler detection reports them. Axes: T reports, W ranks.

REPORT_PATTERN = re.compile(r"(?:GPUs relative perf: |\"relative_scores\": ?)\{([^{}]*)\}")
"""The line that its examples print, and the field of the JSON lines that they write."""


def read_nvrx(path: Path, row_counts: RowCounts) -> Iterator[Trace]:
    """Yield one trace per file: a report is an iteration, and a score the speed beside the fastest rank's."""
    reports = _read_reports(path, row_counts)
    ranks = sorted({rank for report in reports for rank in report})
    score_TW = np.array([[report.get(rank, np.nan) for rank in ranks] for report in reports])
    bad_TW = ~((score_TW > 0) & (score_TW <= 1))
    row_counts.drop_cells("scores that are not in (0, 1]", bad_TW.sum())
    score_TW = np.where(bad_TW, np.nan, score_TW)
    yield Trace(
        samples=np.where(bad_TW, np.nan, 1.0),
        seconds=1.0 / score_TW,
        workers=[str(rank) for rank in ranks],
        meta={
            "source": "github.com/NVIDIA/nvidia-resiliency-ext",
            "units": "seconds: the fastest rank's time of the same kernels is 1; what is no kernel is not in it",
        },
    )


def _read_reports(path: Path, row_counts: RowCounts) -> list[dict[int, float]]:
    reports = []
    for line, text in counted_lines(path, row_counts):
        if (report := REPORT_PATTERN.search(text)) is None:
            row_counts.drop_rows("lines of other kinds", 1)
            continue
        scores = re.findall(r"[\"']?(\d+)[\"']?: ?([0-9.eE+-]+|nan|NaN)", report[1])
        try:
            reports.append({int(rank): float(score) for rank, score in scores})
        except ValueError as error:
            raise ValueError(f"{path}: line {line} has a score that is not a number: {error}") from None
    if not reports:
        raise ValueError(
            f"{path} has no relative scores of GPUs, which the straggler detection of nvidia-resiliency-ext writes as "
            "'GPUs relative perf: {0: 0.96, ...}' or as JSON lines with relative_scores: name another format"
        )
    return reports


# --- Logs that people have and that do not say how fast each rank is: what to log instead.


def suggest_logging(log_text: str) -> str:
    """Return what is wrong with a log, and what to log instead; empty if it is none of these."""
    record = "record busy times instead: paceline record -- <your command>"
    options = "log with --timing-log-level 2 --timing-log-option all"
    known = {
        r"\b(?:RunningAvg|Curr)SamplesPerSec=": (
            f"is a log of DeepSpeed, whose samples per second are those of the whole job; {record}"
        ),
        r'"log_history"|"current_steps": *\d+, *"total_steps"': (
            f"is the log of one process of a trainer, without the times of each rank; {record}"
        ),
        r"\bstep: *\d+ .*\btps: *[\d,]+": (
            "is a log of torchtitan, whose ranks all show the same tps, as each waits for the slowest: profile some "
            "steps (its option to enable profiling) and pass the folder of the exported traces"
        ),
        r"(?:\bmax|\(min, max\)) time across ranks \(ms\):": (
            f"is a log of Megatron-LM without the times of single ranks: {options}"
        ),
        r"MnRtt/Rnk: ": (
            f"is the straggler log of Megatron-LM, which names only the fastest and the slowest rank: {options}"
        ),
    }
    return next((sentence for pattern, sentence in known.items() if re.search(pattern, log_text)), "")


FORMATS = (
    Format(
        name="megatron_timers",
        description="timers of every rank (Megatron-LM with --timing-log-level 2 --timing-log-option all)",
        files="text; lines of other kinds may stand between",
        provides="speed",
        tested_on=SYNTHETIC_FILES,
        read=read_megatron,
        matches=lambda path, head: BLOCK_PATTERN.search(head) is not None,
    ),
    Format(
        name="torch_profiler",
        description="steps of each rank on GPUs (torch.profiler's export_chrome_trace or tensorboard_trace_handler)",
        files="a folder of JSON, one file a rank, with profiler.step() called in each step",
        provides="speed",
        tested_on=SYNTHETIC_FILES,
        read=read_torch_profiler,
        matches=lambda path, head: '"traceEvents"' in head or '"deviceProperties"' in head,
        job=lambda path: "profile",
    ),
    Format(
        name="nvrx_scores",
        description="relative performance of the ranks' GPUs (nvidia-resiliency-ext, straggler detection)",
        files="text with 'GPUs relative perf: {0: 0.96, ...}', or JSON lines with relative_scores",
        provides="speed",
        tested_on=QUOTED_FILES,
        read=read_nvrx,
        matches=lambda path, head: REPORT_PATTERN.search(head) is not None,
    ),
)
