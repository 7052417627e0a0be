"""The page of replayed jobs. Axes: K iterations, W workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paceline._arrays import Array
from paceline.datasets import Trace
from paceline.eval import Replay, Replays
from paceline.eval.replay import EQUAL_SCHEME, ORACLE_SCHEME
from paceline.report.drawing import answer, as_text
from paceline.report.page import (
    ChartLine,
    Page,
    fleet_lines,
    gantt_block,
    lines_block,
    name_and_size,
    page,
    section,
    table,
)
from paceline.report.run_page import slow_workers, who_is_slow

WINDOW = 5
"""Iterations of a Gantt chart."""


def replay_page(
    replays: Replays, traces: Sequence[Trace], *, settings: Sequence[tuple[str, str]] = (), command: str = ""
) -> Page:
    """Return the page of replayed jobs: verdict, who waits in the job that gains most, schemes side by side.

    ``replays`` are what :func:`paceline.eval.replay_all` returned, and ``traces`` the replayed jobs. ``settings`` are
    names and values of what was chosen beside, and ``command`` makes the page again.
    """
    schemes = [str(name) for name in replays.overall["scheme"] if name not in (EQUAL_SCHEME, ORACLE_SCHEME)]
    scheme = schemes[0] if schemes else ORACLE_SCHEME  # the fastest that a job could use
    by_job = replays.replays
    gains = {name: _speed_up(replay, scheme) for name, replay in by_job.items()}
    shown_job = max(gains, key=gains.__getitem__)
    trace, replay = next(trace for trace in traces if trace.name == shown_job), by_job[shown_job]
    jobs = f"{len(traces)} recorded jobs" if len(traces) > 1 else shown_job
    return page(
        "replay",
        f"Replay of {jobs}",
        replay_verdict(replays, scheme, replay, trace),
        [_schemes_section(replays, gains), _job_section(replay, trace, scheme)],
        settings=[*settings, *((f"global batch, {name}", f"{one.global_batch}") for name, one in by_job.items())],
        data=list(map(name_and_size, traces)),
        command=command,
    )


def replay_verdict(replays: Replays, scheme: str, replay: Replay, trace: Trace) -> list[dict[str, Any]]:
    """Return the answers: who is slow and what waiting costs in the shown job, what balancing saves in all."""
    waiting, speed_up = (replays.overall.set_index("scheme")[name].to_dict() for name in ("waiting", "speed-up"))
    slow = who_is_slow(trace.speed, trace.workers, np.arange(len(trace)))
    slow["text"] += f" In {trace.name}, the job that gains most." if len(replays.replays) > 1 else ""
    wait = f"of the workers' time is waited with equal batches, {as_text(waiting[scheme], 'percent')} with {scheme}."
    low, _, high = _speed_up_range(replays, scheme)
    gain = f"as fast as equal batches with {scheme}"
    if np.isfinite(low):
        how = "from job to job" if len(replays.replays) > 1 else "with 95% confidence"
        gain += f", {as_text(low, 'times')} to {as_text(high, 'times')} {how}"
    gain += f"; {as_text(speed_up[ORACLE_SCHEME], 'times')} if speeds were known in advance."
    return [
        slow,
        answer("What does waiting cost?", as_text(waiting[EQUAL_SCHEME], "percent"), wait),
        answer("What would balancing save?", as_text(speed_up[scheme], "times"), gain),
        _next_answer(speed_up[scheme], speed_up[ORACLE_SCHEME], scheme),
    ]


def _next_answer(gain: float, oracle: float, scheme: str) -> dict[str, str]:
    asks, best = "What next?", as_text(oracle, "times")
    # a smaller speed-up is less than the error of the replay's simplifications
    if oracle < 1.02:
        text = f"Even speeds known in advance would gain no more than {best}: workers are alike."
        return answer(asks, "Nothing", text)
    if gain < 1.02:
        text = f"Balancing by {scheme} reaches {as_text(gain, 'times')} of {best}: "
        return answer(asks, "Forecast better", text + "compare predictors with paceline evaluate.")
    text = f"paceline fit {scheme} --out model.safetensors, then give it to attach as predictor=load_model(...)."
    if scheme == "auto":
        text = "Add balance = attach(model, loader) to the script: auto is its default."
    elif scheme.endswith(".safetensors"):
        text = f"Give {scheme} to attach as predictor=load_model(...)."
    return answer(asks, "Balance it", text)


def _schemes_section(replays: Replays, gains: Mapping[str, float]) -> dict[str, Any]:
    rows = [
        (row["scheme"], _speed_up_range(replays, str(row["scheme"])), row["waiting"], row["regret"])
        for row in replays.overall.to_dict("records")
    ]
    several = len(gains) > 1
    detail = "from the job that gains least to the one that gains most" if several else "a 95% interval over its parts"
    columns = [("scheme", "text"), ("speed-up over equal batches", "range"), ("waiting", "percent")]
    columns += [("slower than the oracle by", "percent")]
    note = f"The range is {detail}. The line is at 1: as fast as equal batches."
    tables = [table("Leaderboard", columns, rows, note=note)]
    if several:
        wide = [(row[0], *(_speed_up(one, str(row[0])) for one in replays.replays.values())) for row in rows]
        heads = [("scheme", "text"), *((name, "times") for name in replays.replays)]
        tables.append(table("Speed-up of each job", heads, wide))
    about = "The same recorded speeds, other batch sizes. Communication is left out."
    return section("Schemes side by side", about, *tables)


def _speed_up_range(replays: Replays, scheme: str) -> tuple[float, float, float]:
    """Return the range of a scheme's speed-up: over jobs, or over the parts of a single one, and the middle."""
    middle = float(replays.overall.set_index("scheme")["speed-up"][scheme])
    if len(replays.replays) > 1:
        gains = [_speed_up(replay, scheme) for replay in replays.replays.values()]
        return min(gains), middle, max(gains)
    (replay,) = replays.replays.values()
    half = 1.96 * ratio_standard_error(replay.seconds(EQUAL_SCHEME), replay.seconds(scheme))
    return middle - half, middle, middle + half


def ratio_standard_error(numerator_K: Array, denominator_K: Array) -> float:
    """Return the standard error of a ratio of sums, by the delta method, from 20 parts of the iterations."""
    count = min(20, len(numerator_K))
    if count < 2:
        return float("nan")
    over, under = (
        np.add.reduceat(values, np.arange(count) * len(values) // count) for values in (numerator_K, denominator_K)
    )
    residual = over - over.sum() / under.sum() * under
    return float(np.sqrt(count / (count - 1) * np.square(residual).sum()) / under.sum())


def _job_section(replay: Replay, trace: Trace, scheme: str) -> dict[str, Any]:
    equal = replay.iterations[EQUAL_SCHEME]
    seconds_KW, balanced_KW = (
        np.stack([one.seconds for one in replay.iterations[name]]) for name in (EQUAL_SCHEME, scheme)
    )
    waits_K = np.array([one.waiting for one in equal])
    k = int(np.argmax(np.convolve(waits_K, np.ones(WINDOW), "valid"))) if len(waits_K) >= WINDOW else 0
    rows = slice(k, k + WINDOW)
    slow = [one.worker for one in slow_workers(trace.speed)]
    first = list(dict.fromkeys([*slow, *np.argsort(-seconds_KW.mean(axis=0), kind="stable").tolist()]))
    numbers, every = np.array([one.number for one in equal]), np.arange(len(trace))
    axes: dict[str, Any] = {"highlighted": first[:12], "end_seconds": float(seconds_KW[rows].max(axis=1).sum())}
    about = f"Iterations {numbers[rows][0]} to {numbers[rows][-1]} of {trace.name}: those in a row that waited most."
    same = "The same iterations, speeds and time axis."
    colors = {EQUAL_SCHEME: 5, ORACLE_SCHEME: 2, scheme: 0}.items()
    times = [ChartLine(name, 1e3 * replay.seconds(name), color) for name, color in colors]
    speeds, bands = fleet_lines(trace.speed, trace.workers, first)
    return section(
        f"Who waits, before and after: {trace.name}",
        "Each row is a worker. It computes, then waits for the slowest one.",
        gantt_block("Before: equal batches", about, trace.workers, seconds_KW[rows], **axes),
        gantt_block(f"After: balanced by {scheme}", same, trace.workers, balanced_KW[rows], **axes),
        lines_block("Iteration times", "", numbers, times, unit="ms"),
        lines_block("Recorded speeds", "Slow workers first.", every, speeds[::-1], unit="samples/s", bands=bands),
    )


def _speed_up(replay: Replay, scheme: str) -> float:
    return float(replay.table.set_index("scheme")["speed-up"][scheme])
