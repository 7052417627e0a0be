"""What each part of Auto is worth: its forecasts with it and without it, and the time that it takes.

Run as ``python benchmarks/ablation.py``; it writes ablation.md beside this file. Only the sets on which ideas were
chosen are used, see accuracy_sets.py, and Auto is given the names of their covariates. Axis: W workers.
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
from accuracy_sets import DEVELOPMENT, OTHER_SEED, Set, chosen_on, common_covariates, sets
from machine import machine

from paceline._arrays import Array, Mask
from paceline.predictors import RLS, Auto, Calibrated, GatedNARX, Mixture, Predictor, Report
from paceline.predictors.auto import FADING, SMOOTHINGS, HeadStartMixture
from paceline.predictors.driven import CorrectedEWMAs
from paceline.predictors.events import PeriodicEvents
from paceline.predictors.pooled import Pooled
from paceline.predictors.seasonal import Seasonal

WORKERS, CALLS, SETTLED, ROUNDS = 32, 300, 60, 8
"""Workers and calls of the fleet that is timed, the calls before, in which every memory fills, and how often."""


SETS, ITERATIONS, MOST = ("mixed", "hivemind", "pai", "cmdare k80", "syncswitch 135"), 400, 10
"""The sets, the first iterations of each trace that are taken, and the first workers."""


def cut(data: Set) -> Set:
    return replace(data.first(MOST), traces=[t.select(slice(0, ITERATIONS)) for t in data.first(MOST).traces])


Covariates = Sequence[str]


class Part(Auto):
    """Auto with other experts."""

    def __init__(self, experts: Sequence[Predictor], mixture: type[Mixture] = HeadStartMixture) -> None:
        Calibrated.__init__(self, PeriodicEvents(mixture(experts)))
        self._mixture = self._inner[0]._inner[0]
        self.covariates = ()


def nobody(error_W: Array) -> Mask:
    return np.zeros(len(error_W), dtype=bool)


class KeepsWarmUp(Auto):
    """Auto that forgets no warm-up."""

    _find_warming_up = staticmethod(nobody)  # type: ignore[assignment]


class KeepsOn(Auto):
    """Auto that does not start afresh after a jump."""

    _find_jumped = staticmethod(nobody)  # type: ignore[assignment]


def network(covariates: Covariates) -> Pooled:
    return Pooled(GatedNARX(pretrained=True), covariates)


def averages(covariates: Covariates) -> CorrectedEWMAs:
    return CorrectedEWMAs(SMOOTHINGS, FADING, SMOOTHINGS.index(0.1), network(covariates).covariate_names)


VARIANTS: dict[str, Callable[[Covariates], Predictor]] = {
    "Auto": Auto,
    "without averages, but the last value": lambda names: Part(
        [CorrectedEWMAs((1.0,), FADING, 0), Seasonal(), network(names)]
    ),
    "with no average corrected for covariates": lambda names: Part(
        [CorrectedEWMAs(SMOOTHINGS, FADING, SMOOTHINGS.index(0.1)), Seasonal(), network(names)]
    ),
    "without the seasonal expert": lambda names: Part([averages(names), network(names)]),
    "without the correction of the network": lambda names: Part(
        [averages(names), Seasonal(), GatedNARX(pretrained=True)]
    ),
    "without network and correction": lambda names: Part([averages(names), Seasonal()], Mixture),
    "with RLS in addition": lambda names: Part([averages(names), RLS(names), Seasonal(), network(names)]),
    "without forgetting the warm-up": KeepsWarmUp,
    "without starting afresh after a jump": KeepsOn,
}


def microseconds(make: Callable[[Covariates], Predictor], sampled: bool) -> float:
    """Return the median CPU time of one call to predict and one to observe."""
    rng = np.random.default_rng(0)
    model = make(())
    model.reset([str(w) for w in range(WORKERS)])
    taken = []
    for speed_W in np.exp(rng.normal(0.0, 0.1, (SETTLED + CALLS, WORKERS))):
        covariates_WD = rng.normal(0.0, 1.0, (WORKERS, len(model.covariate_names))) if sampled else None
        began = time.process_time_ns()
        model.predict(covariates=covariates_WD)
        model.observe(Report(np.ones(WORKERS), 1.0 / speed_W, covariates=covariates_WD))
        taken.append(time.process_time_ns() - began)
    return float(np.median(taken[SETTLED:])) / 1e3


def row(name: str, chosen: list[Set]) -> Iterator[str]:
    for data in chosen:
        covariates = common_covariates(data.traces)
        late = score(served(VARIANTS[name](covariates), data), data)
        early = cold(served(VARIANTS[name](covariates), data, LAST + 1), data)
        print(f"{name}, {data.name}: {late.mean:.4f}", flush=True)
        yield f"{late.mean:.3f} ({late.worst:.2f}) / {early.mean:.3f}"


def main() -> None:
    chosen = [data for data in sets(quick=True) if data.role == DEVELOPMENT and data.name in SETS]
    chosen = [cut(data) for data in [*chosen, chosen_on()]]
    lines = [f"| part | {' | '.join(data.name for data in chosen)} | us a call | with covariates |"]
    lines.append("| --- |" + " --- |" * (len(chosen) + 2))
    # In turns, so that other work on the machine does not fall on one variant alone.
    rounds = [
        {name: (microseconds(make, False), microseconds(make, True)) for name, make in VARIANTS.items()}
        for _ in range(ROUNDS)
    ]
    taken = {name: [min(times) for times in zip(*(one[name] for one in rounds), strict=True)] for name in VARIANTS}
    for name, (alone, sampled) in taken.items():
        lines.append(f"| {name} | {' | '.join(row(name, chosen))} | {alone:.0f} | {sampled:.0f} |")
    table = "\n".join(lines)
    Path(__file__).with_suffix(".md").write_text(
        f"""# What each part of Auto is worth

Command: `python benchmarks/ablation.py`

Machine: {machine()}; one thread.

RMSE over that of the last value in the second half, with the worst series in brackets, then in the steps 5 to 50 of the
job; lower is better. These are sets on which ideas were chosen, at most {MOST} workers and {ITERATIONS} iterations of
each trace; queues are of the second generator, seed {OTHER_SEED}. The time is CPU time of one call to predict and one
to observe, {WORKERS} workers, without covariates and with the {len(Auto().covariate_names)} that the network reads.

{table}
""",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
