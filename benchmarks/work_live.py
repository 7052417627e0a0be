"""What dividing by cost and speed gains in a real training: a small language model, two ranks, turns of one run.

python benchmarks/work_live.py           # about two minutes; writes work_live.md
python benchmarks/work_live.py --quick   # half a minute; prints only

Axis: W ranks.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from work_rank import GLOBAL_BATCH, LONGEST, SCHEMES, SPEEDS, STEPS, Told

QUICK = "--quick" in sys.argv
TARGETS: dict[object, float] = {
    ("quota", "batch_rebalance"): 1.3,
    ("quota", "speed"): 1.3,
    ("none", "batch_rebalance"): 1.0,
    "clairvoyant": 0.95,
}
"""By how much *both* is wanted to be faster than another scheme, under one disturbance or under all."""

ROUNDS = 2 if QUICK else 3


def main() -> None:
    from machine import machine

    names = [name for name in SPEEDS if name in sys.argv] or list(SPEEDS)
    text = ["# Cost and speed, live", "", "Command: `python benchmarks/work_live.py`", ""]
    text += [f"Machine: {machine('torch', 'transformers')}; load average {os.getloadavg()[0]:.1f} at the start.", ""]
    text += [ABOUT, ""]
    for name in names:
        text += [*section(name), ""]
        print("\n".join(text[-len(SCHEMES) - 8 :]), flush=True)
    if not QUICK and names == list(SPEEDS):
        Path(__file__).with_suffix(".md").write_text("\n".join(text))


ABOUT = f"""A causal transformer of words on functions of Python's library, cut at {LONGEST} words, padded in batches;
{GLOBAL_BATCH} samples of two ranks in a step, {ROUNDS} rounds, each of {STEPS} steps of every scheme in an order of its
own. Models, gradients, reports, learning and plans are real, and time is each training thread's own CPU time, balancing
included, divided by the rank's speed: the slower one ends a step. So other jobs of the machine move the figures little;
what the network costs is left out. Figures are tokens per second over those of *random* in the same round: geometric
means with the half-width of their 95 % confidence interval.

- *random*: equal counts of a random batch, plain `DistributedDataParallel`.
- *batch_rebalance*: transformers' own sampler. It knows costs, but no speeds.
- *speed*: this library without costs. *cost*: with learned costs, but equal shares.
- *both*: this library with learned costs and forecast speeds.
- *clairvoyant*: the same solver, told the profiled costs and the speeds of every step."""


def section(name: str) -> Iterator[str]:
    """Run one disturbance and yield its table."""
    results = run(name)
    rates = rates_of(results)
    slow, mean = SPEEDS[name]
    about = "both ranks are alike" if slow == 1 else f"rank 1 has {slow:.0%} of the speed"
    yield f"## `{name}`: {about}{f', on and off, {mean} steps each in the mean' if mean else ''}\n"
    yield "| scheme | over random |\n| --- | --- |"
    for scheme in SCHEMES:
        mean_log, half = spread(np.log(rates[scheme] / rates["random"]))
        yield f"| {scheme} | {np.exp(mean_log):.2f} ± {np.exp(mean_log) * half:.2f} |"
    for other in ("batch_rebalance", "speed", "clairvoyant"):
        mean_log, half = spread(np.log(rates["both"] / rates[other]))
        wanted = TARGETS.get((name, other), TARGETS.get(other, 0.0))
        missed = f" **Missed**: the target is {wanted:g}." if np.exp(mean_log) < wanted else ""
        yield f"\n*both* over *{other}*: {np.exp(mean_log):.2f} ± {np.exp(mean_log) * half:.2f}.{missed}"
    errors = [turn["cost_error"] for turn in results[0] if turn["scheme"] == "both" and turn["cost_error"] is not None]
    if errors:
        missed = " **Missed**: the target is 5 %." if errors[-1] > 0.05 else ""
        yield f"\nLearned cost against the profiled one, at the end: {errors[-1]:.1%} off, weighed by cost.{missed}"


def spread(logs: np.ndarray) -> tuple[float, float]:
    from scipy.stats import t

    half = t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
    return float(logs.mean()), float(half)


def rates_of(results: list[list[dict[str, Any]]]) -> dict[str, np.ndarray]:
    """Return tokens per second of all ranks in each turn of each scheme."""
    rates: dict[str, list[float]] = {scheme: [] for scheme in SCHEMES}
    for turns in zip(*results, strict=True):
        tokens, seconds = sum(turn["tokens"] for turn in turns), [turn["seconds"] for turn in turns]
        rates[turns[0]["scheme"]].append(tokens / float(np.max(seconds, axis=0).sum()))
    return {scheme: np.array(values) for scheme, values in rates.items()}


def run(name: str) -> list[list[dict[str, Any]]]:
    """Let two ranks train under one disturbance; return the turns that each saw."""
    from paceline.lab.processes.process import Process, wait

    order = []
    for seed in range(ROUNDS):
        schemes = list(SCHEMES)
        random.Random(seed).shuffle(schemes)
        order += [(scheme, seed) for scheme in schemes]
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder, ExitStack() as running:
        ranks = []
        for rank in range(2):
            told = Told(rank, folder, name, order)
            ranks.append(Process("work_rank", rank, Path(folder), asdict(told)))
            running.callback(ranks[-1].end)
        wait(ranks, lambda: all(rank.ended() for rank in ranks))
        return [json.loads((Path(folder) / f"result{rank}.json").read_text()) for rank in range(2)]


if __name__ == "__main__":
    main()
