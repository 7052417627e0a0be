"""Time to accuracy of asynchronous and synchronous schemes, trained for real at the times that traces dictate.

python benchmarks/asynchronous.py            # about 20 minutes on one core; writes asynchronous.md and asynchronous.png
python benchmarks/asynchronous.py --quick    # a minute; prints only

The traces of other people's jobs are looked for in ``$PACELINE_DATA``, or in ``../shared/data`` beside the checkout.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from machine import machine

from paceline.coordinator.asynchronous import SCHEMES, scheme
from paceline.datasets import Trace, read_traces, recorded
from paceline.lab.replay import Course, Race, Times, graded_fleet, race, task

DATA = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[2] / "shared" / "data")) / "pai_minibatch"

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


LOGISTIC, MLP = Problem("digits-logistic", 0.94, 6), Problem("digits-mlp", 0.95, 8)
TRANSFORMER = Problem("letters-transformer", 0.29, 5, 40, rates=RATES[3:], tuning_seeds=TUNING_SEEDS[:1])


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


@dataclass
class Row:
    """One scheme in a cell."""

    scheme: str
    rate: float
    races: list[Race] = field(repr=False)
    target: float

    @property
    def seconds(self) -> list[float]:
        """Simulated seconds to the target, of every seed."""
        return sorted(ran.seconds_to(self.target) for ran in self.races)

    @property
    def median(self) -> float:
        """Their median."""
        return statistics.median(self.seconds)

    @property
    def final(self) -> float:
        """Mean accuracy at the end."""
        return statistics.mean(ran.final for ran in self.races)

    @property
    def staleness(self) -> int:
        """The largest staleness applied."""
        return max(ran.server.ledger.largest_staleness for ran in self.races)

    @property
    def wasted(self) -> float:
        """The largest share of samples computed in vain."""
        return max(ran.server.ledger.wasted_share for ran in self.races)

    @property
    def waiting(self) -> float:
        """The largest share of its time that a worker waited."""
        return max(float(ran.waiting.max()) for ran in self.races)

    @property
    def calibration(self) -> str:
        """Staleness forecast, and what it was."""
        seen = [ran.server.calibration for ran in self.races]
        if not all(one.pushes for one in seen):
            return "-"
        forecast, actual = (statistics.mean(getattr(one, name) for one in seen) for name in ("forecast", "actual"))
        return f"{forecast:.1f} / {actual:.1f} ({statistics.mean(one.covered for one in seen):.0%})"


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
    yield Cell(TRANSFORMER, graded_fleet(32), 32, FEW)


def others() -> Iterator[Trace]:
    yield recorded.load("digits-autoencoder-steady")
    yield recorded.load("digits-cnn-bursty")
    if DATA.is_dir():
        yield from read_traces(DATA / "job_1_norm.csv")


def rows(cell: Cell) -> Iterator[Row]:
    for name in cell.schemes:
        rate = tuned(cell, name)
        races = [run(cell, name, rate, seed) for seed in SEEDS]
        yield Row(name, rate, races, cell.problem.target)


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
        "in vain | staleness forecast / actual (within the limit) |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(found, key=lambda row: (row.median, -row.final)):
        name = f"**{row.scheme}**" if row.scheme in OURS else row.scheme
        spread = ", ".join(map(seconds, row.seconds))
        lines.append(
            f"| {name} | {row.rate:g} | **{seconds(row.median)}** ({spread}) | {row.final:.1%} | {row.staleness} | "
            f"{row.waiting:.0%} | {row.wasted:.1%} | {row.calibration} |"
        )
    return "\n".join([*lines, f"\nThe bound of SaPS here is {bound} versions.\n"])


def seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.0f}"


def misses(cell: Cell, found: list[Row]) -> Iterator[str]:
    """Yield a sentence for every target that SaPS misses in a cell."""
    by_name = {row.scheme: row for row in found}
    saps = by_name["saps"]
    for name in BEATEN:
        if saps.median >= by_name[name].median:
            yield f"{cell.name}: SaPS takes {seconds(saps.median)} s, {name} {seconds(by_name[name].median)} s."
    if saps.median > by_name["saps-measured"].median:
        measured = seconds(by_name["saps-measured"].median)
        yield f"{cell.name}: with forecasts SaPS takes {seconds(saps.median)} s, without {measured} s."
    if saps.final < by_name["bsp"].final - 0.005:
        yield f"{cell.name}: SaPS ends at {saps.final:.1%}, BSP at {by_name['bsp'].final:.1%}."
    if saps.staleness > (scheme("saps", cell.workers).bound or 0):
        yield f"{cell.name}: a staleness of {saps.staleness} was applied."
    if saps.waiting > 0:
        yield f"{cell.name}: a worker waited {saps.waiting:.1%} of its time."
    if saps.wasted >= 0.05:
        yield f"{cell.name}: {saps.wasted:.1%} of the samples were computed in vain."


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


def page(results: list[tuple[Cell, list[Row]]], took: float) -> str:
    missed = [f"- {line}" for cell, found in results for line in misses(cell, found)]
    return PAGE.format(
        missed="\n".join(missed) or "None.",
        targets=sum(len(BEATEN) + 5 for _ in results),
        missed_count=len(missed),
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
            ran = by_name[name].races[0]
            axes.plot(ran.seconds, ran.accuracy, color=colour, label=name, linewidth=2 if name == "saps" else 1.2)
        axes.axhline(cell.problem.target, color="#767676", linewidth=0.8, linestyle=":")
        axes.set_title(f"{cell.problem.task}, {cell.workers} workers", fontsize=10)
        axes.set_xlim(0, by_name["lb-bsp"].races[0].seconds[-1])
        axes.set_ylim(max(0.0, cell.problem.target - 0.3), min(1.0, cell.problem.target + 0.06))
        axes.set_xlabel("simulated seconds")
    for axes in all_axes.T.flat[len(shown) :]:
        axes.set_axis_off()
    all_axes[0][0].set_ylabel("accuracy on held-out samples")
    all_axes[0][0].legend(frameon=False, fontsize=9)
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)


PAGE = """# Time to accuracy, asynchronous and synchronous

Command: `python benchmarks/asynchronous.py` ({minutes:.0f} minutes on one core)
Machine: {machine}; one thread; other work ran on it. Simulated seconds do not depend on the machine.

## Where SaPS misses its targets

It is to reach the target accuracy before BSP, ASP, SSP, DSSP and DC-ASGD-a, no later with forecasts than without, to
end within half a point of BSP, to keep its bound, to let nobody wait, and to compute less than 5 % in vain:
{missed_count} of {targets} are missed.

{missed}

## Overview

Median over five seeds. `saps` is the default; `saps-measured` sizes batches by the staleness seen instead of forecast
speeds; `saps-dc` adds the delay compensation of DC-ASGD-a, at the price of two more copies of the parameters a worker.
LB-BSP is synchronous and needs all workers at every step.

{overview}

![Accuracy over simulated time, fleet of 1x/2x/4x/8x, first seed](asynchronous.png)

## How

Every gradient is real. When each is pulled and pushed is simulated: a worker's speed at any time is that of the trace,
a row of which lasts one second, scaled so that the median full batch takes one second; each step spends 0.1 s more on
the wire, the same for all schemes. Nothing queues at the server. The 1x/2x/4x/8x fleet has a quarter of each grade, and
10 % noise. A fleet of more workers than its trace has takes them again from later rows.

Each scheme is tuned over the learning rates {rates}, on seeds that are not
scored: all rates on one seed, the best three on two more; the rate is taken that reaches the target first on the
slowest of the three. The transformer, which takes longest, gets one such seed and the largest five rates: where a
scheme never reaches the target there, a rate at the edge of stability was taken, and more tuning would help it. All
schemes get plain SGD, the same samples dealt from one deck, and the same number of applied samples. The target is
reached when the mean of three evaluations is. "Final" is the mean of the last tenth of the evaluations. "Waiting" is
the largest share of its time that any worker waited; "in vain" counts a step given up with all its samples. All of
these are the worst of the five seeds, but for the accuracy, which is their mean. Forecasts are those of an EWMA of the
speeds.

Staleness counts versions. SaPS with smaller batches makes more, smaller versions of the same samples than ASP, so equal
numbers mean less there; and where it gathers pushes for a straggler they make one version together.

{tables}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one fleet, few schemes; print only")
    asked = parser.parse_args()
    began, results = time.process_time(), []
    for cell in cells(asked.quick):
        results.append((cell, list(rows(cell))))
        print(table(*results[-1]), *misses(*results[-1]), sep="\n")
        print(f"[{time.process_time() - began:.0f} s]\n", flush=True)
        if not asked.quick:  # after every cell: what was measured is there, should somebody end it early
            here = Path(__file__)
            here.with_suffix(".md").write_text(page(results, time.process_time() - began))
            figure(results, here.with_suffix(".png"))


if __name__ == "__main__":
    main()
