"""What each part of Auto is worth: its forecasts with it and without it, and the time that it takes.

Run as ``python benchmarks/ablation.py``; it writes ablation.md beside this file. Only the sets on which ideas were
chosen are used: see accuracy_sets.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from accuracy_scores import LAST, cold, score, served
from accuracy_sets import DEVELOPMENT, Set, sets
from machine import machine

from paceline._arrays import Array, Mask
from paceline.predictors import RLS, Auto, Calibrated, GatedNARX, LastValue, Mixture, Predictor, Report
from paceline.predictors.auto import FADING, SMOOTHINGS, HeadStart
from paceline.predictors.averages.seasonal import Seasonal
from paceline.predictors.averages.smoothed import Averages
from paceline.predictors.linear.pooled import Pooled

WORKERS, CALLS, SETTLED, ROUNDS = 32, 300, 60, 8
"""Workers and calls of the fleet that is timed, the calls before, in which every memory fills, and how often."""


SETS, ITERATIONS, MOST = ("mixed", "hivemind", "pai", "cmdare k80", "syncswitch 135"), 400, 10
"""The sets, the first iterations of each trace that are taken, and the first workers."""


def cut(data: Set) -> Set:
    return replace(data.first(MOST), traces=[t.select(slice(0, ITERATIONS)) for t in data.first(MOST).traces])


class Part(Auto):
    """Auto with other experts."""

    def __init__(self, experts: Sequence[Predictor], mixture: type[Mixture] = HeadStart) -> None:
        Calibrated.__init__(self, mixture(experts))
        self.drivers = ()


def nobody(error_W: Array) -> Mask:
    return np.zeros(len(error_W), dtype=bool)


class KeepsWarmUp(Auto):
    """Auto that forgets no warm-up."""

    _warming = staticmethod(nobody)  # type: ignore[assignment]


class KeepsOn(Auto):
    """Auto that does not start afresh after a jump."""

    _jumped = staticmethod(nobody)  # type: ignore[assignment]


def averages() -> Averages:
    return Averages(SMOOTHINGS, FADING)


def network() -> Pooled:
    return Pooled(GatedNARX(pretrained=True))


VARIANTS: dict[str, Callable[[], Predictor]] = {
    "Auto": Auto,
    "without averages, but the last value": lambda: Part([LastValue(), Seasonal(), network()]),
    "without the seasonal expert": lambda: Part([averages(), network()]),
    "without the fleet's correction": lambda: Part([averages(), Seasonal(), GatedNARX(pretrained=True)]),
    "without network and correction": lambda: Part([averages(), Seasonal()], Mixture),
    "with RLS in addition": lambda: Part([averages(), RLS(), Seasonal(), network()]),
    "without forgetting the warm-up": KeepsWarmUp,
    "without starting afresh after a jump": KeepsOn,
}


def microseconds(make: Callable[[], Predictor]) -> float:
    """Return the median CPU time of one call to predict and one to observe."""
    rng = np.random.default_rng(0)
    model = make()
    model.reset([str(w) for w in range(WORKERS)])
    taken = []
    for speed_W in np.exp(rng.normal(0.0, 0.1, (SETTLED + CALLS, WORKERS))):
        began = time.process_time_ns()
        model.predict()
        model.observe(Report(np.ones(WORKERS), 1.0 / speed_W))
        taken.append(time.process_time_ns() - began)
    return float(np.median(taken[SETTLED:])) / 1e3


def row(name: str, chosen: list[Set]) -> Iterator[str]:
    for data in chosen:
        late = score(served(VARIANTS[name](), data), data)
        early = cold(served(VARIANTS[name](), data, LAST + 1), data)
        print(f"{name}, {data.name}: {late.mean:.4f}", flush=True)
        yield f"{late.mean:.3f} ({late.worst:.2f}) / {early.mean:.3f}"


def main() -> None:
    chosen = [cut(data) for data in sets(quick=True) if data.role == DEVELOPMENT and data.name in SETS]
    lines = [f"| part | {' | '.join(data.name for data in chosen)} | us a call |"]
    lines.append("| --- |" + " --- |" * (len(chosen) + 1))
    # In turns, so that other work on the machine does not fall on one variant alone.
    rounds = [{name: microseconds(make) for name, make in VARIANTS.items()} for _ in range(ROUNDS)]
    taken = {name: min(times[name] for times in rounds) for name in VARIANTS}
    lines += [f"| {name} | {' | '.join(row(name, chosen))} | {taken[name]:.0f} |" for name in VARIANTS]
    table = "\n".join(lines)
    Path(__file__).with_suffix(".md").write_text(
        f"""# What each part of Auto is worth

Command: `python benchmarks/ablation.py`

Machine: {machine()}; one thread.

RMSE over that of the last value in the second half, with the worst series in brackets, then in the steps 5 to 50 of the
job; lower is better. These are sets on which ideas were chosen, at most {MOST} workers and {ITERATIONS} iterations of
each trace. The time is CPU time of one call to predict and one to observe, {WORKERS} workers, without drivers.

{table}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
