"""Time to accuracy of asynchronous and synchronous schemes, trained for real at the times that a fleet dictates.

python benchmarks/asynchronous.py            # some 30 minutes on one core; writes asynchronous.md
python benchmarks/asynchronous.py --quick    # a minute; prints only
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import asynchronous_page
import numpy as np
from asynchronous_problems import costs, digits, fleet, made, teacher
from asynchronous_race import Course, Problem, Race, Ran

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


def main() -> None:
    """Run the cells, and write the page after each."""
    quick = "--quick" in sys.argv
    began, results, planned = time.process_time(), [], list(cells(quick))
    for number, cell in enumerate(planned):
        results.append((cell, list(rows(cell))))
        print(asynchronous_page.table(*results[-1]), f"[{time.process_time() - began:.0f} s]\n", sep="\n", flush=True)
        if not quick:  # after every cell: what was measured is there, should somebody end it early
            took = time.process_time() - began
            asynchronous_page.write(Path(__file__), results, took, planned[number + 1 :], len(SEEDS), len(TUNING))


if __name__ == "__main__":
    sys.exit(main())
