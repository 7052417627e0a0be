"""Time to accuracy of asynchronous and synchronous schemes, trained for real at the times that a fleet dictates.

python benchmarks/asynchronous.py            # some 30 minutes on one core; writes asynchronous.md
python benchmarks/asynchronous.py --quick    # a minute; prints only
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from asynchronous_problems import costs, digits, fleet, made, teacher
from asynchronous_race import Course, Problem, Race, Ran
from machine import machine
from scipy.stats import t as student

from paceline._arrays import Array
from paceline.coordinator.asynchronous import SCHEMES, scheme
from paceline.datasets import Trace, recorded
from paceline.eval.asynchronous import FleetTimes

SEEDS, TUNING = np.arange(16), np.arange(100, 108)
FIRST, FINALISTS = 3, 3
"""All rates and batches run with so many tuning seeds, and so many rates of the two best batches with all of them."""

FEW = ("saps", "saps-measured", "saps-dc", "asp", "dc-asgd-a", "ssp", "lb-bsp", "bsp")
ALL = (*FEW, *(name for name in SCHEMES if name not in FEW))
MEANS = ("bsp", "lb-bsp", "k-sync", "backup", "k-async", "k-batch-async", "fed-buff", "con-sgd", "dyn-sgd", "sa-asgd")
"""Schemes whose rates are larger: their updates are means, or damped."""

EPOCHS, EVALUATIONS = 8, 100


@dataclass(frozen=True)
class Kind:
    """An optimizer: torch's class, its settings, whether its steps grow with their gradients, and rates to try."""

    name: str = ""
    settings: tuple[tuple[str, float], ...] = ()
    is_linear: bool = True
    lowest: float = 0.0125

    def __call__(self, place: Any) -> Any:
        """Return the optimizer of some parameters, at the rate 1."""
        import torch

        return getattr(torch.optim, self.name)(place, lr=1.0, **dict(self.settings))


SGD, MOMENTUM = Kind(), Kind("SGD", (("momentum", 0.9),), lowest=0.00125)
ADAM, ADADELTA = Kind("Adam", is_linear=False, lowest=0.000625), Kind("Adadelta", is_linear=False, lowest=0.125)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One problem on one fleet."""

    name: str
    problem: Problem
    fleet: Trace
    workers: int
    batches: tuple[int, ...]
    kind: Kind = SGD
    wire: float = 0.1
    rank_0_is_near: bool = False
    heavy: str = ""
    is_wide: bool = False
    schemes: tuple[str, ...] = FEW

    def course(self, batch: int) -> Course:
        """Return the setting of its races; the largest batch but one of the median worker takes a second."""
        times = FleetTimes.from_trace(self.fleet, workers=self.workers, batch=self.batches[-2], comm_share=self.wire)
        comm_W = np.full(self.workers, self.wire)
        comm_W[0] *= not self.rank_0_is_near
        return Course(
            problem=self.problem,
            times=times,
            batch=batch,
            epochs=EPOCHS,
            optimizer=self.kind if self.kind.name else None,
            is_linear=self.kind.is_linear,
            evaluations=EVALUATIONS,
            costs=costs(self.heavy, len(self.problem.labels)) if self.heavy else None,
            comm=comm_W,
        )

    def rates(self, name: str) -> Array:
        """Return the rates that a scheme is tuned over; each cell's schemes get as many."""
        return self.kind.lowest * (4 if name in MEANS else 1) * 2.0 ** np.arange(7)


def cells(quick: bool) -> Iterator[Cell]:
    """Yield the cells, those that matter most first."""
    mlp, grades, thirds, even = digits(32, 0.94), (1, 2, 4, 8), (1, 3, 10), (1, 1.05)
    small, large = {"workers": 8, "batches": (2, 4, 8, 16)}, {"workers": 24, "batches": (1, 2, 4, 8), "is_wide": True}
    wide = fleet(grades, 8)
    first = Cell(name="digits, 1x/2x/4x/8x", problem=mlp, fleet=wide, **small)
    if quick:
        yield replace(first, schemes=("saps", "asp"))
        return
    yield Cell(name="digits, 1x/3x/10x", problem=mlp, fleet=fleet(thirds, 24), **large)
    yield first
    yield Cell(
        name="made, 1x/3x/10x", problem=made(0.72), fleet=fleet(thirds, 24), **large | {"batches": (2, 4, 8, 16)}
    )
    yield Cell(name="made, 1x/3x/10x", problem=made(0.72), fleet=fleet(thirds, 9), workers=9, batches=(4, 8, 16, 32))
    yield Cell(name="teacher, 1x/3x/10x", problem=teacher(0.67), fleet=fleet(thirds, 24), **large)
    yield Cell(name="teacher, nearly even", problem=teacher(0.67), fleet=fleet(even, 8), **small)
    yield Cell(name="digits, nearly even", problem=mlp, fleet=fleet(even, 8), **small)
    slow = {"wire": 1.0, "workers": 8, "batches": (4, 8, 16, 32)}
    yield Cell(name="digits, 1x/2x/4x/8x, slow wire", problem=mlp, fleet=wide, **slow)
    yield Cell(name="digits, even, slow wire", problem=mlp, fleet=fleet((1,), 8), rank_0_is_near=True, **slow)
    yield Cell(name="digits, 1x/2x/4x/8x, one sample in 100 costs 30", problem=mlp, fleet=wide, heavy="rare", **small)
    yield Cell(name="digits, nearly even, log-normal costs", problem=mlp, fleet=fleet(even, 8), heavy="normal", **small)
    yield Cell(name="digits, 1x/2x/4x/8x, momentum", problem=mlp, fleet=wide, kind=MOMENTUM, **small)
    yield Cell(name="digits, 1x/2x/4x/8x, Adam", problem=mlp, fleet=wide, kind=ADAM, **small)
    yield Cell(name="digits, 1x/2x/4x/8x, Adadelta", problem=mlp, fleet=wide, kind=ADADELTA, **small)
    for job in ("digits-autoencoder-steady", "digits-cnn-bursty"):
        yield Cell(name=f"digits, recorded {job}", problem=mlp, fleet=recorded.load(job), **small)
    yield Cell(name="digits, 1x/3x/10x, Adam", problem=mlp, fleet=fleet(thirds, 24), kind=ADAM, **large)
    more = tuple(name for name in ALL if name not in FEW)
    yield replace(first, name="digits, 1x/2x/4x/8x, the other schemes", schemes=("saps", *more))


@dataclass(frozen=True)
class Row:
    """One scheme in a cell, at a base batch and learning rate.

    ``seconds`` to the target of every scored seed are those of the race's end where it was not reached, by ``missed``
    seeds. Then the largest staleness applied, the share of the samples and of the computing time that was wasted, and
    samples applied in a second.
    """

    scheme: str
    batch: int
    rate: float
    seconds: Array
    missed: int
    staleness: int
    lost: float
    lost_seconds: float
    speed: float

    @classmethod
    def of(cls, name: str, batch: int, rate: float, ran: Ran) -> Row:
        """Sum up a race."""
        ledger, reached = ran.server.ledger, np.isfinite(ran.seconds)
        return cls(
            name,
            batch,
            rate,
            np.where(reached, ran.seconds, ran.end),
            int((~reached).sum()),
            ledger.largest_staleness,
            ledger.wasted_share,
            ledger.wasted_seconds_share,
            ran.server.sampler.applied / ran.end,
        )


def rows(cell: Cell) -> Iterator[Row]:
    """Yield a row for every scheme of a cell."""
    for name in cell.schemes:
        batch, rate = tuned(cell, name)
        ran = Race(cell.course(batch), scheme(name, cell.workers), SEEDS, np.full(len(SEEDS), rate)).run()
        yield Row.of(name, batch, rate, ran)


def tuned(cell: Cell, name: str) -> tuple[int, float]:
    """Return the base batch and the rate with the least geometric mean of the seconds over the tuning seeds."""
    rates = cell.rates(name)
    first = {batch: tried(cell, name, batch, rates, TUNING[:FIRST]) for batch in cell.batches}
    best = sorted(first, key=lambda batch: float(first[batch].min()))[:2]
    finals = {}
    for batch in best:
        finalists = rates[np.sort(np.argsort(first[batch], kind="stable")[:FINALISTS])]
        means = tried(cell, name, batch, finalists, TUNING)
        finals |= {(batch, float(rate)): mean for rate, mean in zip(finalists, means, strict=True)}
    return min(finals, key=lambda choice: float(finals[choice]))


def tried(cell: Cell, name: str, batch: int, rates: Array, seeds: Any) -> Array:
    """Return the mean log seconds to the target at each rate, over the seeds."""
    race = Race(
        cell.course(batch),
        scheme(name, cell.workers),
        np.tile(seeds, len(rates)),
        np.repeat(rates, len(seeds)),
        settled=len(seeds),
    )
    ran = race.run()
    # Who has not arrived when others are long through counts as later than all that were seen.
    log_RS = np.log(np.where(np.isfinite(ran.seconds), ran.seconds, 2 * ran.end)).reshape(len(rates), -1)
    return np.asarray(log_RS.mean(axis=1))


# -- the page ---------------------------------------------------------------------------------------------------

OURS = ("saps", "saps-measured", "saps-dc")
SYNCHRONOUS = ("bsp", "lb-bsp")
AHEAD, LEAST_WORKERS, MOST_LOST = 0.15, 24, 0.05

Results = Sequence[tuple[Cell, Sequence[Row]]]


class Ratio(NamedTuple):
    """Ratio of two geometric means, and its 95% interval over seeds that both ran."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return it as the page shows it."""
        return f"{self.mean:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio(one: Row, other: Row) -> Ratio:
    """Return the seconds of one scheme over those of another, seed by seed."""
    logs = np.log(one.seconds) - np.log(other.seconds)
    half = float(student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    return Ratio(*(float(np.exp(logs.mean() + shift)) for shift in (0.0, -half, half)))


def best_rival(rows: Sequence[Row]) -> Row:
    """Return the scheme that is not ours and takes least."""
    return min((row for row in rows if row.scheme not in OURS), key=mean)


def mean(row: Row) -> float:
    """Return the geometric mean of the seconds."""
    return float(np.exp(np.log(row.seconds).mean()))


def table(cell: Cell, rows: Sequence[Row]) -> str:
    """Return a cell's table, the fastest scheme first."""
    saps = next(row for row in rows if row.scheme == "saps")
    lines = [
        f"### {title(cell)}\n",
        "| scheme | batch | rate | seconds to the target | SaPS over it | not reached | largest staleness | "
        "samples/s | wasted samples | wasted seconds |",
        "| --- |" + " --- |" * 9,
    ]
    for row in sorted(rows, key=mean):
        name = f"**{row.scheme}**" if row.scheme in OURS else row.scheme
        over = "" if row is saps else str(ratio(saps, row))
        lines.append(
            f"| {name} | {row.batch} | {row.rate:g} | {mean(row):.1f} | {over} | {row.missed or ''} | "
            f"{row.staleness} | {row.speed:.0f} | {row.lost:.1%} | {row.lost_seconds:.1%} |"
        )
    return "\n".join([*lines, ""])


def title(cell: Cell) -> str:
    """Return the name of a cell."""
    return f"{cell.name}, {cell.workers} workers"


def behind(results: Results) -> Iterator[str]:
    """Yield a line for every target that SaPS misses in a cell, and for each that it only ties."""
    for cell, rows in results:
        saps, rival = next(row for row in rows if row.scheme == "saps"), best_rival(rows)
        found = ratio(saps, rival)
        if found.low > 1:
            yield f"{title(cell)}: behind {rival.scheme}, {found} times its seconds."
        elif found.mean > 1:
            yield f"{title(cell)}: level with {rival.scheme}, {found} times its seconds."
        if cell.is_wide and cell.workers >= LEAST_WORKERS and found.mean > 1 - AHEAD:
            yield f"{title(cell)}: not 15% ahead of {rival.scheme}, {found} times its seconds."
        if saps.lost_seconds >= MOST_LOST:
            yield f"{title(cell)}: {saps.lost_seconds:.1%} of the computing time is wasted."
        if saps.missed:
            yield f"{title(cell)}: {saps.missed} of {len(saps.seconds)} seeds do not reach the target."


def overview(results: Results) -> str:
    """Return a row for every cell: SaPS beside ASP and the best rival."""
    lines = [
        "| cell | SaPS, seconds | ASP, seconds | SaPS over ASP | best rival | SaPS over it | wasted seconds |",
        "| --- |" + " --- |" * 6,
    ]
    for cell, rows in results:
        by_name, rival = {row.scheme: row for row in rows}, best_rival(rows)
        saps, asp = by_name["saps"], by_name.get("asp")
        beside = ("", "") if asp is None else (f"{mean(asp):.1f}", str(ratio(saps, asp)))
        lines.append(
            f"| {title(cell)} | {mean(saps):.1f} | {beside[0]} | {beside[1]} | {rival.scheme} | {ratio(saps, rival)} | "
            f"{saps.lost_seconds:.1%} |"
        )
    return "\n".join(lines)


def write(results: Results, took: float, missing: Sequence[Cell]) -> None:
    """Write the page."""
    lines = [f"- {line}" for line in behind(results)]
    to_asp = [ratio(of["saps"], of["asp"]) for of in map(_by_name, results) if "asp" in of]
    to_best = [ratio(_by_name(one)["saps"], best_rival(one[1])) for one in results]
    text = PAGE.format(
        behind="\n".join(lines) or "Nowhere.",
        missing="".join(f"Not run yet: {title(cell)}.\n" for cell in missing),
        overview=overview(results),
        tables="\n".join(table(*one) for one in results),
        machine=machine("torch", "scikit-learn"),
        minutes=took / 60,
        seeds=len(SEEDS),
        tuning=len(TUNING),
        cells=len(results),
        ahead=sum(one.high < 1 for one in to_asp),
        slower=sum(one.low > 1 for one in to_asp),
        kept=sum(one.low <= 1 for one in to_best),
    )
    Path(__file__).with_suffix(".md").write_text(text)


def _by_name(result: tuple[Cell, Sequence[Row]]) -> dict[str, Row]:
    return {row.scheme: row for row in result[1]}


PAGE = """# Time to accuracy, asynchronous and synchronous

## Where SaPS is not first, not 15% ahead, or wastes 5%

Base batch and learning rate are tuned for every scheme alike, and then SaPS is about as fast as ASP: by the 95%
interval of their ratio it is ahead in {ahead} of {cells} cells, behind in {slower}, and level in the others. It is
ahead of the best rival, or level with it, in {kept}. With 24 and more workers of wide spread it was to be 15% ahead of
the best rival, and in every cell it was to waste less than 5% of the computing time. Each cell in which it misses one
of these, or is level and not first:

{behind}

{missing}
## Overview

Geometric means over {seeds} seeds; ratios are of the same seeds, with 95% intervals. The best rival is picked after
the fact, so a SaPS that is level seems behind it more often than not.

{overview}

## How

Command: `python benchmarks/asynchronous.py` ({minutes:.0f} minutes of CPU time).
Machine: {machine}; one thread. Simulated seconds do not depend on the machine.

Every gradient is real; when it is pulled and pushed is simulated. A worker's speed at any time is that of its fleet's
trace, a row of which lasts a second, scaled so that the largest base batch but one takes the median worker one second;
each step spends 0.1 s more on the wire, 1 s where the wire is slow ("even, slow wire": none for rank 0). Nothing queues
at the server. "1x/3x/10x": a third of the workers each needs so many times as long, with 10% noise; "nearly even" is
1x/1.05x. Unequal samples cost so much wherever they are drawn. Forecasts are those of an EWMA of the speeds.

Problems: scikit-learn's digits; made clusters (54 inputs, 7 classes); labels of a random network (30 inputs, 5
classes); all by 32 hidden units. The target accuracy (94, 72 and 67% of held-out samples) is reached when the mean of
three evaluations is; there are 100 in 8 epochs.

Tuning, for every scheme: four base batches, seven rates a factor of two apart (from 0.0125 for gradient descent,
0.00125 with momentum 0.9, 0.000625 for Adam, 0.125 for Adadelta; four times as much for schemes whose updates are means
or damped), all on 3 seeds; then three rates of the best two batches on {tuning}; the least geometric mean wins. The
{seeds} scored seeds are others. A seed that does not reach the target counts with the time of all 8 epochs.

The trainings of one scheme at one base batch differ in seeds and rates only, so that their steps come at the same
times: they run side by side on one server, each with its own parameters, order of samples and rate.

Staleness counts versions. "Wasted seconds" is computing time of steps that were given up, dropped or refused.

{tables}"""


def main() -> None:
    """Run the cells, and write the page after each."""
    quick = "--quick" in sys.argv
    began, results, planned = time.process_time(), [], list(cells(quick))
    for number, cell in enumerate(planned):
        results.append((cell, list(rows(cell))))
        print(table(*results[-1]), f"[{time.process_time() - began:.0f} s]\n", sep="\n", flush=True)
        if not quick:  # after every cell: what was measured is there, should somebody end it early
            took = time.process_time() - began
            write(results, took, planned[number + 1 :])


if __name__ == "__main__":
    sys.exit(main())
