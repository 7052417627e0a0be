"""The papers, claim by claim: what each claims, what this library measures of it, and why they differ.

python benchmarks/papers.py           # some ten minutes on one core; writes papers.md
python benchmarks/papers.py --quick   # a part of it; prints only

Published batch time curves and other public data are looked for in ``$PACELINE_DATA``, or in ``../shared/data`` beside
the checkout. Axes: T iterations, W workers.
"""

from __future__ import annotations

import os
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from accuracy_scores import geometric, score, served
from accuracy_sets import DATA, Set, sets
from asynchronous_problems import digits
from curves import Mix, load_curves, random_mixes
from machine import machine

from paceline._arrays import Array, Sizes
from paceline.coordinator import LoadBalancer
from paceline.coordinator.asynchronous import Vector, scheme
from paceline.datasets import Trace, recorded
from paceline.eval import leaderboard
from paceline.eval.asynchronous import AsyncRunSettings, FleetTimes, simulate_training
from paceline.predictors import ARIMA, EWMA, NARX, BatchTime, Predictor, Report, named

QUICK = "--quick" in sys.argv
SEEDS = range(2 if QUICK else 8)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --- |" * (len(heads) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# -- LB-BSP on GPUs: published curves ----------------------------------------------------------------------------


def saved_on_devices(mix: Mix, seed: int, iterations: int = 100) -> float:
    """Return the share of BSP's time that balancing saves a fleet of devices, the search for sizes included."""
    names = [str(w) for w in range(len(mix.fleet))]
    balancer = LoadBalancer(BatchTime(), workers=names, global_batch=mix.global_batch)
    noise_TW = np.exp(np.random.default_rng(seed).normal(0.0, 0.03, (iterations, len(names))))
    equal, ours = 0.0, 0.0
    for noise_W in noise_TW:
        sizes = balancer.plan.sizes
        seconds_W = mix.seconds(sizes) * np.maximum(1.0, sizes / mix.upper) * noise_W
        ours += float(seconds_W.max())
        equal += float((mix.seconds(np.full(len(names), mix.global_batch // len(names))) * noise_W).max())
        balancer.step(Report(sizes, seconds_W))
    return 1 - ours / equal


def gpus() -> str:
    """Return the table of fleets of GPUs whose batch times were published."""
    chosen = [curve for curve in load_curves() if curve.source in ("gavel", "zeus")]
    saved = [100 * saved_on_devices(mix, seed) for seed, mix in enumerate(random_mixes(chosen, 20 if QUICK else 150))]
    low, middle, high = np.quantile(saved, [0.1, 0.5, 0.9])
    row = [
        f"{len(saved)}",
        f"{middle:.0f}%",
        f"{low:.0f} to {high:.0f}%",
        f"{max(saved):.0f}%",
        f"{min(saved):.0f}%",
    ]
    return table(["fleets", "median", "8 of 10 fleets", "most", "least"], [row])


# -- LB-BSP on CPUs: time to accuracy ----------------------------------------------------------------------------

FLEETS = ("digits-autoencoder-steady", "digits-attention-moving", "digits-cnn-bursty", "photo-denoiser-moving")
WORKERS, BATCH, TARGET = 8, 16, 0.95
RATES = (0.05, 0.1, 0.2, 0.4)
RIVALS = ("bsp", "lb-bsp", "asp", "ssp")
PRICES = (0.0, 0.02, 0.05)
"""Prices of a chunk of shed work, as shares of an equal iteration."""


class Digits:
    """scikit-learn's digits, by a softmax over a hidden layer of 32 units: a task for `simulate_training`."""

    def __init__(self) -> None:
        self.problem = digits(32, TARGET, tried=None)
        self.samples = len(self.problem.labels)

    def start(self, seed: int) -> Vector:
        """Return parameters to start from."""
        return self.problem.start(np.array([seed]))

    def gradient(self, parameters: Vector, rows: Sizes) -> Vector:
        """Return the mean gradient of the cross-entropy."""
        return self.problem.gradient(parameters[None], rows[None])[0]

    def accuracy(self, parameters: Vector) -> float:
        """Return the share of held-out digits that are recognized."""
        return float(self.problem.accuracy(parameters[None])[0])


@dataclass(frozen=True)
class Contest:
    """The digits on one fleet of a trace."""

    times: FleetTimes
    batch: int

    def seconds(self, name: str, rate: float, seed: int) -> float:
        """Return the simulated seconds until the target accuracy is reached."""
        course = AsyncRunSettings(
            batch=self.batch, rate=rate, epochs=8, seed=seed, num_evaluations=120, target_accuracy=TARGET
        )
        race = simulate_training(Digits(), self.times, scheme(name, self.times.workers), course)
        return race.seconds_to_accuracy(TARGET)

    def best(self, name: str) -> float:
        """Return the median over the seeds at the rate where it is least, tuned on two other seeds."""
        tried = {rate: max(self.seconds(name, rate, seed) for seed in (100, 101)) for rate in RATES}
        rate = min(tried, key=lambda one: tried[one])
        return statistics.median(self.seconds(name, rate, seed) for seed in SEEDS)


def shed_seconds(speed_W: Array, batch: int, chunk: float, price: float) -> float:
    """Return how long an iteration takes if whoever is done takes over work of the worker that would end last.

    After FlexRR (A. Harlap et al., SoCC 2016), with foresight: every worker's speed in this iteration is known, and
    help is taken only if it pays. ``price`` is seconds from asking for a chunk until its samples and the model are
    there.
    """
    end_W = batch / speed_W
    while True:
        helper, last = int(end_W.argmin()), int(end_W.argmax())
        left = (end_W[last] - end_W[helper]) * speed_W[last]
        helped = end_W[helper] + price + chunk / speed_W[helper]
        if left < chunk or helped >= end_W[last]:
            return float(end_W[last])
        end_W[helper], end_W[last] = helped, end_W[last] - chunk / speed_W[last]


def shed(times: FleetTimes, batch: int, price: float, iterations: int = 300) -> float:
    """Return the time of iterations with shed work, over that of equal batches."""
    equal = shared = 0.0
    for iteration in range(iterations):
        speed_W = np.array([batch / times.seconds(w, batch, float(iteration)) for w in range(times.workers)])
        even = float((batch / speed_W).max())
        equal += even + times.comm_seconds
        shared += shed_seconds(speed_W, batch, batch / 20, price * even) + times.comm_seconds
    return shared / equal


def cpus() -> str:
    """Return the table of time to accuracy on fleets of recorded workers under contention."""
    rows = []
    for name in FLEETS[: 1 if QUICK else None]:
        times = FleetTimes.from_trace(recorded.load(name), workers=WORKERS, batch=BATCH)
        contest = Contest(times, BATCH)
        taken = {rival: contest.best(rival) for rival in RIVALS}
        saved = f"**{100 * (1 - taken['lb-bsp'] / taken['bsp']):.0f}%**"
        sheds = [f"{taken['bsp'] * shed(times, BATCH, price):.0f}" for price in PRICES]
        rows.append([f"`{name}`", *(f"{taken[rival]:.0f}" for rival in RIVALS), *sheds, saved])
    heads = ["fleet", *(one.upper() for one in RIVALS), *(f"shedding, {price:.0%}" for price in PRICES), "saved of BSP"]
    return table(heads, rows)


# -- NARX --------------------------------------------------------------------------------------------------------

COMPARED = {
    "memoryless": "last-value",
    "EMA": "ewma",
    "ARIMA": "arima",
    "SimpleRNN": "simple-rnn",
    "LSTM": "lstm",
    "NARX": "narx",
    "(`Auto`, ours)": "auto",
}


def forecasts() -> str:
    """Return the errors of the predictors that the first version compares, and the wait that they leave."""
    fit, held_out = recorded.load_split("fit"), recorded.load_split("held-out")
    models = {label: named(name) for label, name in COMPARED.items() if not QUICK or name in ("last-value", "ewma")}
    for model in models.values():
        model.fit(fit)
    rows = leaderboard(models, held_out).overall.to_dict("records")
    return table(
        ["predictor", "RMSE over the memoryless", "extra time of an iteration over an oracle"],
        [
            [str(row["predictor"]), f"{row['rmse']:.3f}", f"{100 * row['overhead']:.1f}%"]
            for row in rows
            if row["predictor"] in models
        ],
    )


TRACES, SET_WORKERS, ITERATIONS = 12, 16, 1000
"""At most this many traces of a set, spread over it, and this many first workers and iterations of each."""


def all_sets() -> Iterator[Set]:
    """Yield the sets of the accuracy page, and series unlike those, cut to a few traces each."""
    unlike = [("gpu_h200", [Trace.load(path)]) for path in sorted(DATA.glob("gpu_h200/*.parquet"))]
    for path in sorted(DATA.glob("unlike_2026/*.parquet")):
        frame = pd.read_parquet(path)
        parts = [part for _, part in frame.groupby("trace", sort=False)] if "trace" in frame else [frame]
        unlike.append((path.stem, [Trace.from_frame(part.drop(columns="trace", errors="ignore")) for part in parts]))
    for data in (*sets(quick=True), *(Set(name, "unlike the others", traces) for name, traces in unlike)):
        few = [
            trace.select(slice(0, ITERATIONS), workers=trace.workers[:SET_WORKERS])
            for trace in data.traces[:: -(-len(data.traces) // TRACES)]
        ]
        named_apart = [replace(t, workers=tuple(f"{k}/{w}" for w in t.workers)) for k, t in enumerate(few)]
        yield replace(data, traces=named_apart)


def over_sets() -> str:
    """Return the errors of NARX and two rivals on every set, and over all sets."""
    found: dict[str, dict[str, float]] = {}
    for data in all_sets():
        if QUICK and data.name != "recorded":
            continue
        rivals: dict[str, Predictor] = {"EMA": EWMA(smoothing=None), "ARIMA": ARIMA(), "NARX": NARX()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="covariates")  # some never change
            for rival in rivals.values():
                rival.fit(data.fitting)
        found[data.name] = {name: geometric(score(served(one, data), data).rmse) for name, one in rivals.items()}
    mean = {name: statistics.geometric_mean(row[name] for row in found.values()) for name in ("EMA", "ARIMA", "NARX")}
    rows = [
        [name, *(f"{row[rival]:.3f}" for rival in mean), min(row, key=lambda one: row[one])]
        for name, row in found.items()
    ]
    first = sum(row[-1] == "NARX" for row in rows)
    rows.append(["**all**", *(f"**{error:.3f}**" for error in mean.values()), f"NARX on {first} of {len(found)}"])
    return table(["set", *mean, "first"], rows)


# -- the page ----------------------------------------------------------------------------------------------------

PARTS = {"gpus": gpus, "cpus": cpus, "forecasts": forecasts, "over_sets": over_sets}


def main() -> None:
    """Measure all claims, and write the page."""
    made = {}
    for name, part in PARTS.items():
        made[name] = part()
        print(f"\n{name}\n{made[name]}", flush=True)
    if not QUICK:
        about = machine("torch", "scikit-learn", "statsmodels")
        Path(__file__).with_suffix(".md").write_text(PAGE.format(machine=about, seeds=len(SEEDS), **made))


PAGE = """# The papers, claim by claim

Command: `python benchmarks/papers.py`

Machine: {machine}; one thread; other work ran on it. Nothing below depends on the machine's speed.

The papers' clusters, images and texts are not at hand. Each claim is measured on the nearest thing that is: published
measurements of real devices, recorded jobs, and real training in simulated time. Read the figures as *does the
mechanism do what the paper says, and how much is there to gain here*, not as a repetition.

## LB-BSP on GPUs: up to 54% of the time

**Claim** (Chen et al., SoCC 2020): on clusters of mixed GPUs training takes up to 54% less time than BSP.

**Here**: random fleets of 2 to 8 GPUs, K80 to V100, whose batch times Gavel and Zeus have published; equal batches
against `LoadBalancer(BatchTime())` over 100 iterations with noise of 3%, in which it also has to find the sizes. Time
saved:

{gpus}

**Why it differs**: it does not; how much there is to save is a matter of the fleet. Nearly equal devices have nothing
to gain, and a K80 beside V100s gains more than the paper's K520, K80 and M60. The network is left out.

## LB-BSP on CPUs: 38.7% of the time

**Claim**: with workers under interference, 38.7% less time to accuracy than BSP, ahead of ASP, SSP and FlexRR.

**Here**: a perceptron on digits, trained for real at the speeds of recorded jobs, {seeds} seeds, every scheme at its
own best of four rates. Simulated seconds until 95% of held-out digits are recognized. *Shedding* is FlexRR's idea:
whoever is done takes over a twentieth of a batch from the worker that would end last. It is given perfect foresight
within an iteration, and its message costs nothing, 2% or 5% of an equal iteration. LB-BSP forecasts by an EWMA here.

{cpus}

**Why it differs**: over BSP most is saved where a worker is slow for good; where competitors move, the forecast comes
late at every move. The rest of the claim is not met here. ASP and SSP are ahead: a small model on eight workers hardly
minds stale gradients, which a synchronous scheme buys off by waiting. Shedding is ahead as long as its messages cost
next to nothing; samples would have to be where they are computed, and a forecast needs no message.

## NARX: the best of six

**Claim** (first version, 2018): NARX forecasts speeds better than memoryless, EMA, ARIMA, SimpleRNN and LSTM.

**Here**: all fitted to the recorded jobs for fitting, scored on those held out, with CPU and memory as covariates where
a predictor takes them. The last column is what an error costs: sizes are split by the forecast.

{forecasts}

**Why it differs**: it does not: NARX is the best of the six, as claimed. ARIMA, which regresses log speed on the same
covariates, is level with it: these jobs are disturbed by what the covariates measure, and nearly all that NARX
forecasts here is its linear path.

On other data, one step ahead, fitted on the first half of each trace and scored on the second, with covariates where
there are some; at most 12 traces of a set and 16 workers of each, RMSE over the memoryless:

{over_sets}

NARX is behind ARIMA on one set of CM-DARE, whose jobs have fifty to a hundred speeds each, and on a made fleet whose
covariates mislead (misled).

## Federated: adapt the batch alone

**Claim** (TCC): adapting the batch keeps the accuracy of standard federated learning, and is faster; adapting the local
steps as well as adapting the rate with the batch loses accuracy.

**Here**: [federated rounds](federated.md) of phones with published batch times, whose rows *balanced*, *adaptive-steps*
and *adaptive-rate* are these three.

**Why it differs**: with a tenth of 100 phones in a round, all three are a third faster and within a point of the
accuracy of standard federated averaging, so neither the loss that the paper reports for steps and rates nor the full
accuracy that it reports for batches shows.
This task is small; a larger one may show what the paper saw.

## SaPS: before synchronous and asynchronous training

**Claim** (Yu et al., HPCC 2019): it converges before fully synchronous, fully asynchronous and some other variants of
SGD.

**Here**: [time to accuracy](asynchronous.md) on fleets of which, say, a quarter each is 1x, 2x, 4x and 8x as fast;
every scheme at its own best batch and rate.

**Why it differs**: far ahead of synchronous training, as claimed, and level with asynchronous training once everybody's
batch and rate are tuned. The paper's rules are not public, and ours are stated in [asynchronous
training](../docs/howto/asynchronous.md).
"""


if __name__ == "__main__":
    main()
