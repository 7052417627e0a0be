"""Time to accuracy of asynchronous and synchronous schemes, trained for real at the times that traces dictate.

python benchmarks/asynchronous.py                   # some 15 minutes on one core; writes asynchronous.md and .png
python benchmarks/asynchronous.py --cache FOLDER    # the same; what an earlier run left in the folder is not run anew
python benchmarks/asynchronous.py --quick           # a minute; prints only

The cache is for a run that was ended: it does not notice that the code has changed since. Empty the folder then.

The traces of other people's jobs are looked for in ``$PACELINE_DATA``, or in ``../shared/data`` beside the checkout.
Without them their rows are missing, and the page says so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from machine import machine

from paceline.coordinator.asynchronous import SCHEMES, Scheme, scheme
from paceline.coordinator.asynchronous.rules.batch_rules import Full
from paceline.datasets import Trace, read_traces, recorded
from paceline.eval.replay.asynchronous import Course, Race, Times, graded_fleet, race, task

DATA = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[2] / "shared" / "data"))
PAI = DATA / "pai_minibatch" / "job_1_norm.csv"
NO_PAI = "`pai_minibatch` was not found, so nothing is said of its jobs.\n"

SEEDS, TUNING_SEEDS, FINALISTS = range(5), range(100, 103), 3
BATCH = {8: 16, 32: 8}
"""Samples of a worker's full batch, by the size of the fleet."""

BEATEN = ("bsp", "asp", "ssp", "dssp", "dc-asgd-a")
"""SaPS is to reach the target before each of these."""

OURS = ("saps", "saps-measured", "saps-dc")
FEW = (*OURS, "lb-bsp", *BEATEN)
ALL = (*FEW, *(name for name in SCHEMES if name not in FEW))
RATES = tuple(0.0125 * 2**k for k in range(8))
"""Every scheme is tuned over the same learning rates; the transformer, which takes longest, over the largest five."""


@dataclass(frozen=True)
class Problem:
    """What is trained: until which accuracy, and for how many epochs at most."""

    task: str
    target: float
    epochs: float
    evaluations: int = 120
    rates: tuple[float, ...] = RATES
    tuning_seeds: range = TUNING_SEEDS
    seeds: range = SEEDS


LOGISTIC, MLP = Problem("digits-logistic", 0.94, 6), Problem("digits-mlp", 0.95, 8)
TRANSFORMER = Problem("letters-transformer", 0.29, 5, 40, rates=RATES[3:], tuning_seeds=TUNING_SEEDS[:1])
LARGE_TRANSFORMER = replace(TRANSFORMER, rates=RATES[3:6], seeds=SEEDS[:3])
"""On 32 workers it takes four times as many gradients of a quarter of the samples: fewer rates, and fewer seeds."""

EVEN_SEEDS, EVEN_RATES = range(200, 208), {8: (0.05, 0.1, 0.2), 32: (0.025, 0.05, 0.1)}
"""Other seeds than those scored or tuned on, for the question whether shrinking costs anything in an even fleet."""


@dataclass(frozen=True)
class Cell:
    """One problem on one fleet."""

    problem: Problem
    fleet: Trace
    workers: int
    schemes: tuple[str, ...]

    @property
    def times(self) -> Times:
        """How long steps take."""
        return Times.of(self.fleet, workers=self.workers, batch=BATCH[self.workers])

    @property
    def name(self) -> str:
        """What it is called on the page."""
        return f"`{self.problem.task}` to {self.problem.target:.0%}, {self.fleet.name}, {self.workers} workers"


@dataclass(frozen=True)
class Row:
    """One scheme in a cell, over all seeds: plain numbers, which a cache can hold.

    Parameters
    ----------
    scheme, rate
        Who, and at which learning rate.
    seconds
        Simulated seconds to the target of every seed, sorted.
    final
        Mean accuracy at the end.
    staleness, wasted, waiting
        The largest staleness applied, share of wasted samples, and share of its time that a worker waited.
    calibration
        Staleness forecast, what it was, and how often it was within the limit; empty where nothing was forecast.
    curve
        Seconds and accuracy of the first seed.
    """

    scheme: str
    rate: float
    seconds: list[float]
    final: float
    staleness: int
    wasted: float
    waiting: float
    calibration: list[float]
    curve: list[list[float]]

    @classmethod
    def of(cls, name: str, rate: float, races: list[Race], target: float) -> Row:
        """Sum up the races of a scheme."""
        ledgers, seen = [ran.server.ledger for ran in races], [ran.server.calibration for ran in races]
        names = ("forecast", "actual", "covered") if all(one.pushes for one in seen) else ()
        return cls(
            scheme=name,
            rate=rate,
            seconds=sorted(ran.seconds_to(target) for ran in races),
            final=statistics.mean(ran.final for ran in races),
            staleness=max(ledger.largest_staleness for ledger in ledgers),
            wasted=max(ledger.wasted_share for ledger in ledgers),
            waiting=max(float(ran.waiting.max()) for ran in races),
            calibration=[statistics.mean(getattr(one, name) for one in seen) for name in names],
            curve=[races[0].seconds.tolist(), races[0].accuracy.tolist()],
        )

    @property
    def median(self) -> float:
        """Median of the seconds to the target."""
        return statistics.median(self.seconds)

    @property
    def forecasts(self) -> str:
        """Staleness forecast, and what it was."""
        if not self.calibration:
            return "-"
        forecast, actual, covered = self.calibration
        return f"{forecast:.1f} / {actual:.1f} ({covered:.0%})"


def cells(quick: bool) -> Iterator[Cell]:
    if quick:
        yield Cell(MLP, graded_fleet(8), 8, FEW)
        return
    yield Cell(MLP, graded_fleet(8), 8, ALL)
    yield Cell(MLP, graded_fleet(32), 32, FEW)
    yield from (Cell(LOGISTIC, graded_fleet(workers), workers, FEW) for workers in (8, 32))
    yield Cell(TRANSFORMER, graded_fleet(8), 8, FEW)
    for workers in (8, 32):
        yield from (Cell(MLP, fleet, workers, FEW) for fleet in others())
    yield Cell(LARGE_TRANSFORMER, graded_fleet(32), 32, FEW)


def others() -> Iterator[Trace]:
    yield recorded.load("digits-autoencoder-steady")
    yield recorded.load("digits-cnn-bursty")
    if PAI.is_file():
        yield from read_traces(PAI)


def rows(cell: Cell, cache: Path | None) -> Iterator[Row]:
    for name in cell.schemes:
        yield Row(**kept(cache, f"{cell.name}-{name}", partial(scored, cell, name)))


def scored(cell: Cell, name: str) -> dict[str, Any]:
    rate = tuned(cell, name)
    races = [run(cell, name, rate, seed) for seed in cell.problem.seeds]
    return asdict(Row.of(name, rate, races, cell.problem.target))


def kept(cache: Path | None, name: str, measure: Callable[[], Any]) -> Any:
    """Return what the cache holds under a name; measure it, and keep it there, if it holds nothing."""
    if cache is None:
        return measure()
    path = cache / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.json"
    if not path.is_file():
        path.write_text(json.dumps(measure()))
    return json.loads(path.read_text())


def tuned(cell: Cell, name: str) -> float:
    """Return the rate that reaches the target first; the best at the end if none does.

    All rates run with one seed, and the three best with the others too, where the slowest run counts: with a single
    seed a rate at the edge of stability may win by luck.
    """
    first, *others = cell.problem.tuning_seeds

    def score(rate: float, *seeds: int) -> tuple[float, float]:
        tried = [run(cell, name, rate, seed, tuning=True) for seed in seeds]
        return max(ran.seconds_to(cell.problem.target) for ran in tried), -min(ran.final for ran in tried)

    once = {rate: score(rate, first) for rate in cell.problem.rates}
    best = sorted(once, key=lambda rate: once[rate])[:FINALISTS]
    return min(best, key=lambda rate: max(once[rate], score(rate, *others))) if others else best[0]


def run(cell: Cell, name: str, rate: float, seed: int, *, tuning: bool = False) -> Race:
    problem, batch = cell.problem, BATCH[cell.workers]
    course = Course(batch=batch, rate=rate, epochs=problem.epochs, seed=seed, evaluations=problem.evaluations)
    if tuning:
        course = replace(course, enough=problem.target, hopeless=problem.target / 2)
    return race(task(cell.problem.task), cell.times, scheme(name, cell.workers), course)


# -- the page --------------------------------------------------------------------------------------------------------


def table(cell: Cell, found: list[Row]) -> str:
    bound = scheme("saps", cell.workers).bound
    lines = [
        f"### {cell.name}\n",
        "| scheme | rate | seconds to the target: median (all seeds) | final accuracy | largest staleness | waiting | "
        "wasted | staleness forecast / actual (within the limit) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(found, key=lambda row: (row.median, -row.final)):
        name = f"**{row.scheme}**" if row.scheme in OURS else row.scheme
        spread = ", ".join(map(seconds, row.seconds))
        lines.append(
            f"| {name} | {row.rate:g} | **{seconds(row.median)}** ({spread}) | {row.final:.1%} | {row.staleness} | "
            f"{row.waiting:.0%} | {row.wasted:.1%} | {row.forecasts} |"
        )
    seeds = (
        "" if cell.problem.seeds == SEEDS else f" Scored on {len(cell.problem.seeds)} seeds instead of {len(SEEDS)}."
    )
    return "\n".join([*lines, f"\nThe bound of SaPS here is {bound} versions.{seeds}\n"])


def taking(value: float) -> str:
    return "never reaches it" if math.isinf(value) else f"takes {value:.0f} s"


def seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"


def misses(cell: Cell, found: list[Row]) -> Iterator[str]:
    """Yield a sentence for every target that SaPS misses in a cell."""
    by_name = {row.scheme: row for row in found}
    saps = by_name["saps"]
    for name in BEATEN:
        if saps.median >= by_name[name].median:
            yield f"{cell.name}: SaPS {taking(saps.median)}, {name} {taking(by_name[name].median)}."
    if saps.median > by_name["saps-measured"].median:
        measured = taking(by_name["saps-measured"].median)
        yield f"{cell.name}: with forecasts SaPS {taking(saps.median)}, without {measured}."
    if saps.final < by_name["bsp"].final - 0.005:
        yield f"{cell.name}: SaPS ends at {saps.final:.1%}, BSP at {by_name['bsp'].final:.1%}."
    if saps.staleness > (scheme("saps", cell.workers).bound or 0):
        yield f"{cell.name}: a staleness of {saps.staleness} was applied."
    if saps.waiting > 0:
        yield f"{cell.name}: a worker waited {saps.waiting:.1%} of its time."
    if saps.wasted >= 0.05:
        yield f"{cell.name}: {saps.wasted:.1%} of the samples were wasted."


def overview(results: list[tuple[Cell, list[Row]]]) -> str:
    names = FEW
    lines = [f"| seconds to the target | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    for cell, found in results:
        by_name = {row.scheme: row for row in found}
        least = min(by_name[name].median for name in names)
        shown = [seconds(by_name[name].median) for name in names]
        bold = [f"**{text}**" if by_name[n].median == least else text for n, text in zip(names, shown, strict=True)]
        lines.append(f"| {cell.name} | {' | '.join(bold)} |")
    return "\n".join(lines)


def even_fleets(cache: Path | None) -> Iterator[str]:
    """Yield a table of SaPS with and without shrinking, and of ASP, on fleets of recorded jobs and on other seeds."""
    yield "| fleet | `saps` | `saps`, nobody shrinks | `asp` |"
    yield "| --- | --- | --- | --- |"
    for workers, rates in EVEN_RATES.items():
        for fleet in others():
            cell, ours = Cell(MLP, fleet, workers, ()), scheme("saps", workers)
            tried = {"saps": ours, "saps-full": replace(ours, sizing=Full()), "asp": scheme("asp", workers)}
            medians = (
                kept(cache, f"even-{cell.name}-{name}", partial(best_median, cell, rules, rates))
                for name, rules in tried.items()
            )
            yield f"| {fleet.name}, {workers} workers | {' | '.join(map(seconds, medians))} |"


def best_median(cell: Cell, rules: Scheme, rates: tuple[float, ...]) -> float:
    """Return the median seconds to the target over the other seeds, at the rate where it is least."""
    problem, medians = cell.problem, []
    for rate in rates:
        course = Course(batch=BATCH[cell.workers], rate=rate, epochs=problem.epochs, enough=problem.target)
        courses = (replace(course, seed=seed, evaluations=problem.evaluations) for seed in EVEN_SEEDS)
        races = [race(task(problem.task), cell.times, rules, one) for one in courses]
        medians.append(statistics.median(ran.seconds_to(problem.target) for ran in races))
    return min(medians)


def page(results: list[tuple[Cell, list[Row]]], took: float, missing: list[Cell], even: list[str]) -> str:
    missed = [f"- {line}" for cell, found in results for line in misses(cell, found)]
    return PAGE.format(
        missed="\n".join(missed) or "None.",
        targets=sum(len(BEATEN) + 5 for _ in results),
        missed_count=len(missed),
        missing="".join(f"Not run yet, so nothing is said of it: {cell.name}.\n" for cell in missing)
        + ("" if PAI.is_file() else NO_PAI),
        even="\n".join(even) or "Not run yet.",
        even_seeds=len(EVEN_SEEDS),
        even_rates=" and ".join(f"{', '.join(map(str, r))} on {w} workers" for w, r in EVEN_RATES.items()),
        overview=overview(results),
        tables="\n".join(table(cell, found) for cell, found in results),
        machine=machine("torch", "scikit-learn"),
        minutes=took / 60,
        rates=", ".join(f"{rate:g}" for rate in RATES),
    )


def figure(results: list[tuple[Cell, list[Row]]], path: Path) -> None:
    """Draw the accuracy over simulated time of the first seed, where all schemes ran."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = {"saps": "#D55E00", "asp": "#0072B2", "dc-asgd-a": "#009E73", "ssp": "#CC79A7", "lb-bsp": "#000000"}
    shown = [(cell, found) for cell, found in results if cell.fleet.name == results[0][0].fleet.name]
    drawing, all_axes = pyplot.subplots(2, math.ceil(len(shown) / 2), figsize=(13, 7), squeeze=False)
    for axes, (cell, found) in zip(all_axes.T.flat, sorted(shown, key=lambda one: one[0].problem.task), strict=False):
        by_name = {row.scheme: row for row in found}
        for name, colour in {**colours, "bsp": "#767676"}.items():
            axes.plot(*by_name[name].curve, color=colour, label=name, linewidth=2 if name == "saps" else 1.2)
        axes.axhline(cell.problem.target, color="#767676", linewidth=0.8, linestyle=":")
        axes.set_title(f"{cell.problem.task}, {cell.workers} workers", fontsize=10)
        axes.set_xlim(0, by_name["lb-bsp"].curve[0][-1])
        axes.set_ylim(max(0.0, cell.problem.target - 0.3), min(1.0, cell.problem.target + 0.06))
        axes.set_xlabel("simulated seconds")
    for axes in all_axes.T.flat[len(shown) :]:
        axes.set_axis_off()
    all_axes[0][0].set_ylabel("accuracy on held-out samples")
    all_axes[0][0].legend(frameon=False, fontsize=9)
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)


PAGE = """# Time to accuracy, asynchronous and synchronous

Command: `python benchmarks/asynchronous.py` ({minutes:.0f} minutes of CPU time in its last run, not counting what a
cache had kept)

Machine: {machine}; one thread; other work ran on it. Simulated seconds do not depend on the machine.

{missing}
## Where SaPS misses its targets

It is to reach the target accuracy before BSP, ASP, SSP, DSSP and DC-ASGD-a, no later with forecasts than without, to
end within half a point of BSP, to keep its bound, to let nobody wait, and to waste less than 5 % of the samples:
{missed_count} of {targets} are missed.

{missed}

## Overview

Median over five seeds, of the transformer on 32 workers over three. `saps` is the default; `saps-measured` sizes
batches by the staleness seen instead of forecast speeds; `saps-dc` adds the delay compensation of DC-ASGD-a, at the
price of two more copies of the parameters a worker. LB-BSP is synchronous and needs all workers at every step.

{overview}

![Accuracy over simulated time, fleet of 1x/2x/4x/8x, first seed](asynchronous.png)

## Where the fleet is nearly even

Does shrinking cost anything where staleness costs little? Seconds to the target on {even_seeds} seeds that are neither
scored nor tuned on above, median, at the best of the learning rates {even_rates}.

{even}

## How

Every gradient is real. When each is pulled and pushed is simulated: a worker's speed at any time is that of the trace,
a row of which lasts one second, scaled so that the median full batch takes one second; each step spends 0.1 s more on
the wire, the same for all schemes. Nothing queues at the server. The 1x/2x/4x/8x fleet has a quarter of each grade, and
10 % noise. A fleet of more workers than its trace has takes them again from later rows.

Each scheme is tuned over the learning rates {rates}, on seeds that are not
scored: all rates on one seed, the best three on two more; the rate is taken that reaches the target first on the
slowest of the three. The transformer, which takes longest, gets one such seed and the largest five rates; on 32 workers
the rates 0.1, 0.2 and 0.4, and three seeds are scored instead of five. Where a scheme never reaches the target there, a
rate at the edge of stability was taken, and more tuning would help it. All
schemes get plain SGD, the same samples drawn by one sampler, and the same number of applied samples. The target is
reached when the mean of three evaluations is. "Final" is the mean of the last tenth of the evaluations. "Waiting" is
the largest share of its time that any worker waited; "wasted" counts a step given up with all its samples. All of
these are the worst of the seeds scored, but for the accuracy, which is their mean. Forecasts are those of an EWMA of
the speeds.

Staleness counts versions. SaPS with smaller batches makes more, smaller versions of the same samples than ASP, so equal
numbers mean less there; and where it gathers pushes for a straggler they make one version together.

{tables}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one fleet, few schemes; print only")
    parser.add_argument("--cache", type=Path, help="a folder that keeps what has been run, to go on from there")
    asked = parser.parse_args()
    if asked.cache is not None:
        asked.cache.mkdir(parents=True, exist_ok=True)
    if not PAI.is_file():
        print(f"there is no {PAI}: set PACELINE_DATA to the folder that holds pai_minibatch", file=sys.stderr)
    began, results, planned = time.process_time(), [], list(cells(asked.quick))
    here = Path(__file__)
    for number, cell in enumerate(planned):
        results.append((cell, list(rows(cell, asked.cache))))
        print(table(*results[-1]), *misses(*results[-1]), sep="\n")
        print(f"[{time.process_time() - began:.0f} s]\n", flush=True)
        if not asked.quick:  # after every cell: what was measured is there, should somebody end it early
            here.with_suffix(".md").write_text(page(results, time.process_time() - began, planned[number + 1 :], []))
            figure(results, here.with_suffix(".png"))
    if not asked.quick:
        even = list(even_fleets(asked.cache))
        here.with_suffix(".md").write_text(page(results, time.process_time() - began, [], even))


if __name__ == "__main__":
    main()
