"""What dividing by cost and speed gains in a real training: a small language model, two ranks, turns of one run.

python benchmarks/work_live.py                # about eight minutes on an idle machine; writes work_live.md
python benchmarks/work_live.py --quick        # a minute; prints only
python benchmarks/work_live.py --quick quota  # this disturbance only

Axis: W ranks.
"""

from __future__ import annotations

import json
import os
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from work_rank import CONTENTIONS, GLOBAL_BATCH, LONGEST, SCHEMES, Told

QUICK = "--quick" in sys.argv
TARGETS: dict[object, float] = {
    ("quota", "batch_rebalance"): 1.3,
    ("quota", "speed"): 1.3,
    ("none", "batch_rebalance"): 1.0,
    "oracle": 0.95,
}
"""By how much *both* is wanted to be faster than another scheme, under one disturbance or under all."""

ROUNDS, SECONDS, WARM_UP = (1, 0.5, 4) if QUICK else (6, 3.0, 30)
"""Rounds, in each of which every scheme has a turn of so many seconds; and steps of each scheme before them."""


def main() -> None:
    from machine import machine

    names = [name for name in CONTENTIONS if name in sys.argv] or list(CONTENTIONS)
    text = ["# Cost and speed, live", "", "Command: `python benchmarks/work_live.py`", ""]
    text += [f"Machine: {machine('torch', 'transformers')}; load average {os.getloadavg()[0]:.1f} at the start.", ""]
    text += [ABOUT, ""]
    for name in names:
        text += [*section(name), ""]
        print("\n".join(text[-len(SCHEMES) - 8 :]), flush=True)
    if not QUICK and names == list(CONTENTIONS):
        Path(__file__).with_suffix(".md").write_text("\n".join(text))


ABOUT = f"""A causal transformer of words on functions of Python's library, cut at {LONGEST} words, padded in batches;
{GLOBAL_BATCH} samples of two ranks in a step, each rank on a core of its own. {ROUNDS} rounds, in each of which every
scheme has a turn of {SECONDS:g} s in an order drawn at random; quotas and bursts are those of `benchmarks/live.py`, and
bursts come at the same times for all schemes of a round. Figures are tokens per second of wall time over those of
*random* in the same round: geometric means with the half-width of their 95% confidence interval.

- *random*: equal counts of a random batch, plain `DistributedDataParallel`.
- *batch_rebalance*: transformers' own sampler. It knows costs, but no speeds.
- *speed*: this library without costs. *cost*: with learned costs, but equal shares.
- *both*: this library with learned costs and forecast speeds.
- *oracle*: the same solver, told the profiled costs and, before every step, the speeds."""


def section(name: str) -> Iterator[str]:
    """Run one disturbance and yield its table."""
    results = run(name)
    rates = rates_of(results)
    from paceline.lab.disturbance import DISTURBANCES

    yield f"## `{name}`: {DISTURBANCES[name]}\n"
    yield "| scheme | over random |\n| --- | --- |"
    for scheme in SCHEMES:
        mean_log, half = spread(np.log(rates[scheme] / rates["random"]))
        yield f"| {scheme} | {np.exp(mean_log):.2f} ± {np.exp(mean_log) * half:.2f} |"
    for other in ("batch_rebalance", "speed", "oracle"):
        mean_log, half = spread(np.log(rates["both"] / rates[other]))
        wanted = TARGETS.get((name, other), TARGETS.get(other, 0.0))
        missed = f" **Missed**: the target is {wanted:g}." if np.exp(mean_log) < wanted else ""
        yield f"\n*both* over *{other}*: {np.exp(mean_log):.2f} ± {np.exp(mean_log) * half:.2f}.{missed}"
    errors = [turn["cost_error"] for turn in results[0] if turn["scheme"] == "both" and turn["cost_error"] is not None]
    if errors:
        missed = " **Missed**: the target is 5%." if errors[-1] > 0.05 else ""
        yield f"\nLearned cost against the profiled one, at the end: {errors[-1]:.1%} off, weighted by cost.{missed}"


def spread(logs: np.ndarray) -> tuple[float, float]:
    from scipy.stats import t

    half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
    return float(logs.mean()), float(half)


def rates_of(results: list[list[dict[str, Any]]]) -> dict[str, np.ndarray]:
    """Return tokens per second of all ranks in each turn of each scheme."""
    rates: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for turns in zip(*results, strict=True):
        tokens, seconds = sum(turn["tokens"] for turn in turns), [turn["seconds"] for turn in turns]
        rates[turns[0]["scheme"]].append(tokens / max(seconds))
    return {scheme: np.array(values) for scheme, values in rates.items()}


def run(name: str) -> list[list[dict[str, Any]]]:
    """Let two ranks train under one disturbance; return the turns that each saw."""
    from paceline.lab.disturbance import DISTURBANCES
    from paceline.lab.processes import Process, quota_place, wait

    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError(f"two ranks need two cores; this process may use {len(cores)}")

    order = []
    for seed in range(ROUNDS):
        schemes = list(SCHEMES)
        random.Random(seed).shuffle(schemes)
        order += [(scheme, seed) for scheme in schemes]
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder, ExitStack() as running:
        place = None
        if DISTURBANCES[name].quota is not None:
            place = running.enter_context(quota_place(1.0))
            if place is None:
                raise RuntimeError(
                    f"{name} needs control groups that can be written, which this machine does not let us"
                )
        (Path(folder) / "finish").write_bytes(struct.pack("q", 0))
        ranks = []
        for rank in range(2):
            where = asdict(place) if place and rank else None
            told = Told(rank, folder, name, order, SECONDS, WARM_UP, cores[rank], bool(rank), where)
            ranks.append(Process("work_rank", rank, Path(folder), asdict(told)))
            running.callback(ranks[-1].end)
        wait(ranks)
        return [json.loads((Path(folder) / f"result{rank}.json").read_text()) for rank in range(2)]


if __name__ == "__main__":
    main()
