"""What balanced batches gain in federated rounds: accuracy over simulated time, and how even the rounds are.

Run as ``python benchmarks/federated.py``; it writes federated.md and federated.png beside this file; with ``--quick``
a part of them, in the folder for temporary files. ``python benchmarks/federated.py --predictors`` writes only the part
about predictors, federated_predictors.md, in a few minutes. The phones' profiles and the PAI traces are looked for in
``$PACELINE_DATA``, or in ``../shared/data`` beside the checkout. Axis: R rounds.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from federated_lab import (
    AdaptiveRate,
    AdaptiveSteps,
    BalancedClients,
    ClientAssignment,
    ClientScheme,
    DeadlineDrop,
    Population,
    RoundMoment,
    RoundSetting,
    Shards,
    Standard,
    digits,
    fedscale,
    iter_buffered,
    iter_rounds,
    mixture,
    phones,
)
from federated_page import About, page, predictors_page
from machine import machine
from numpy.typing import NDArray

from paceline.coordinator.federated import FederatedBalancer, RoundReport
from paceline.datasets import Trace, read_traces, recorded
from paceline.predictors import EWMA, Auto, Curves, LastValue, LocalLevel, Predictor
from paceline.solver import split

Array = NDArray[np.float64]

DATA = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[2] / "shared" / "data"))


class BalancedDrop:
    """The clients that :class:`DeadlineDrop` lets in, with batches that end together: FedCS and sizing combined."""

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return balanced batches for those that are expected in time, and nothing for the others."""
        let_in = DeadlineDrop().assign(balancer, chosen).participating
        plan = balancer.plan([name for name, participating in zip(chosen, let_in, strict=True) if participating])
        sizes = np.zeros(len(chosen), dtype=np.int64)
        sizes[let_in] = plan.sizes
        return ClientAssignment(sizes, np.full(len(chosen), plan.local_steps), np.ones(len(chosen)))


SCHEMES: dict[str, ClientScheme] = {
    "standard": Standard(),
    "balanced": BalancedClients(),
    "adaptive-steps": AdaptiveSteps(),
    "adaptive-rate": AdaptiveRate(),
    "deadline-drop": DeadlineDrop(),
    "balanced-drop": BalancedDrop(),
}
LEVELS: dict[str, float | None] = {"IID": None, "Dirichlet 0.5": 0.5, "Dirichlet 0.1": 0.1}
TARGET = 0.98
"""The target accuracy is this share of what standard federated learning ends with."""

LAST = 10
"""Rounds over which the final accuracy is a mean."""

SMOOTH = 5
"""Rounds over which accuracy is averaged before it is compared with the target."""

QUICK = "--quick" in sys.argv
SEEDS = range(2 if QUICK else 5)
SETTING = RoundSetting(rounds=50, batch=32, local_steps=10, rate=0.3)
FEDSCALE_LIKE = (20.0, 0.6, 8000.0, 0.6)
"""Median and log deviation of ms per sample and of kbit/s, for a table in FedScale's layout. Our assumption."""


@dataclass(frozen=True)
class Task:
    """Clients and their data: how they are spread, who they are, how many take part."""

    name: str
    clients: int
    shards: Callable[..., Shards]
    participations: Sequence[float]


TASKS = [
    Task("mixture, 100 phones", 100, mixture, (0.1, 0.3)),
    Task("mixture, 30 phones", 30, lambda *args, **kw: mixture(*args, **kw, samples=12_000), (1.0,)),
    Task("digits, 20 phones", 20, digits, (0.5,)),
    Task("mixture, 1,000 phones", 1000, lambda *args, **kw: mixture(*args, **kw, samples=100_000), (0.05,)),
]
FLEETS = ((10, 1.0), (100, 0.1), (100, 1.0))
"""Clients, and the share of them in a round, whose rounds are looked at for evenness."""

KINDS = ("none", "steady", "pai", "usage", "moving", "bursty")
SMALLEST = (SETTING.batch // 8, SETTING.batch // 4, 3 * SETTING.batch // 8)


@cache
def traces(kind: str) -> tuple[Trace, ...]:
    """Return the recordings of a kind: of the jobs that ship with the library, or of PAI's."""
    if kind == "pai":
        return tuple(read_traces(DATA / "pai_minibatch" / f"job_{k}_norm.csv")[0] for k in (1, 3))
    return tuple(recorded.load(name) for name in recorded.names() if kind == "recorded" or kind in name)


def in_proportion(count: int, seed: int) -> Population:
    """Return clients whose time is in proportion to their samples, through a table in FedScale's layout."""
    generator = np.random.default_rng(seed)
    ms, ms_spread, kbps, kbps_spread = FEDSCALE_LIKE
    rows = zip(
        generator.lognormal(np.log(ms), ms_spread, count),
        generator.lognormal(np.log(kbps), kbps_spread, count),
        strict=True,
    )
    text = "".join(f"{i},{computation:.4f},{bandwidth:.1f}\n" for i, (computation, bandwidth) in enumerate(rows))
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "capacity.csv"
        table.write_text(f"client,computation,communication\n{text}")
        return fedscale(read_traces(table, "fedscale")[0])


def phones_of(count: int, seed: int) -> Population:
    return phones(count, DATA / "batch_profiles" / "flash", seed=seed)


# -- accuracy over time ------------------------------------------------------------------------------------------


Runs = Mapping[str, Sequence[Sequence[RoundMoment]]]
"""The rounds of every seed, by scheme."""


def trained(task: Task, alpha: float | None, participation: float, seed: int) -> dict[str, list[RoundMoment]]:
    """Let every scheme train with a seed."""
    setting = replace(SETTING, participation=participation, seed=seed)
    shards = task.shards(task.clients, alpha, seed=seed)
    population = phones_of(task.clients, seed).moved_by(traces("recorded"), seed)
    runs = {name: list(iter_rounds(population, shards, scheme, setting)) for name, scheme in SCHEMES.items()}
    return {**runs, "fedbuff": list(iter_buffered(population, shards, setting))}


def final_accuracy(run: Sequence[RoundMoment]) -> float:
    return statistics.fmean(moment.accuracy for moment in run[-LAST:])


def time_to(run: Sequence[RoundMoment], accuracy: float) -> float:
    """Return the time after which the mean of a few rounds first reaches an accuracy; infinite if it never does."""
    mean_R = np.convolve([moment.accuracy for moment in run], np.full(SMOOTH, 1 / SMOOTH), mode="valid")
    reached = np.flatnonzero(mean_R >= accuracy)
    return run[int(reached[0]) + SMOOTH - 1].seconds if len(reached) else float("inf")


@dataclass(frozen=True)
class Score:
    """A scheme against standard federated learning, over the seeds: means with 95% half-widths."""

    accuracy: float
    points: float
    points_half: float
    time: float
    time_half: float
    never: int
    total_time: float


def score(runs: Runs, name: str) -> Score:
    points, times, totals = [], [], []
    for run, plain in zip(runs[name], runs["standard"], strict=True):
        target = TARGET * final_accuracy(plain)
        points.append(100 * (final_accuracy(run) - final_accuracy(plain)))
        times.append(time_to(run, target) / time_to(plain, target))
        totals.append(run[-1].seconds / plain[-1].seconds)
    reached = [ratio for ratio in times if np.isfinite(ratio)]
    return Score(
        accuracy=100 * statistics.fmean(map(final_accuracy, runs[name])),
        points=statistics.fmean(points),
        points_half=half_width(points),
        time=statistics.fmean(reached) if reached else float("inf"),
        time_half=half_width(reached),
        never=len(times) - len(reached),
        total_time=statistics.fmean(totals),
    )


def half_width(values: Sequence[float]) -> float:
    """Return the 95% half-width of a mean of so few values, by Student's t."""
    from scipy.stats import t

    if len(values) < 2:
        return float("nan")
    return float(t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5)


def with_smallest(seed: int) -> dict[int, list[tuple[float, float]]]:
    """Return points over standard and the time over standard's, for each kind of data, by the smallest batch."""
    found: dict[int, list[tuple[float, float]]] = {min_batch: [] for min_batch in SMALLEST}
    for alpha in LEVELS.values():
        shards = mixture(100, alpha, seed=seed)
        population = phones_of(100, seed).moved_by(traces("recorded"), seed)
        setting = replace(SETTING, participation=0.1, seed=seed)
        plain = list(iter_rounds(population, shards, SCHEMES["standard"], setting))
        for min_batch in SMALLEST:
            ours = list(iter_rounds(population, shards, SCHEMES["balanced"], replace(setting, min_batch=min_batch)))
            points = 100 * (final_accuracy(ours) - final_accuracy(plain))
            found[min_batch].append((points, ours[-1].seconds / plain[-1].seconds))
    return found


# -- evenness of rounds ------------------------------------------------------------------------------------------


class Oracle:
    """Balanced by one who knows every speed and link of the round to come: only the bounds hold it back."""

    def __init__(self, population: Population, setting: RoundSetting) -> None:
        self.population = population
        self.setting = setting
        self.round = 0

    def assign(self, balancer: FederatedBalancer, chosen: Sequence[str]) -> ClientAssignment:
        """Return the exact split of what will be."""
        population, count = self.population, len(chosen)
        generator = np.random.default_rng([self.setting.seed, self.round])
        rows = generator.choice(len(population), count, replace=False)  # as the replay draws them
        comm = population.comm_seconds(rows, generator)
        steps = np.full(count, balancer.local_steps)
        position = self.round * balancer.local_steps
        fixed = population.compute_seconds(rows, np.zeros(count, dtype=np.int64), steps, position)
        one = population.compute_seconds(rows, np.ones(count, dtype=np.int64), steps, position)
        curves = Curves(np.zeros(count), one - fixed, fixed, np.full(count, np.inf))
        upper = np.minimum(balancer.largest * balancer.batch, balancer.plan(chosen).upper)
        total = int(min(balancer.batch * count, upper.sum()))
        sizes = split(curves, total, lower=np.minimum(balancer.min_batch, upper), upper=upper, comm=comm).sizes
        self.round += 1
        return ClientAssignment(sizes, steps, np.ones(count))


def spreads(clients: int, kind: str, participation: float, seed: int) -> dict[str, list[list[float]]]:
    """Return slowest over median of each round with a seed, for both populations.

    Of standard federated learning, balanced, balanced down to batches of one sample, and so by one who knows the speeds
    to come.
    """
    found: dict[str, list[list[float]]] = {}
    rounds = max(60, round(12 / participation))  # so that clients are met often enough
    setting = replace(SETTING, participation=participation, rounds=rounds, rate=0.0, seed=seed)
    shards = mixture(clients, None, seed=seed, samples=200 * clients)
    for label, made in (("in proportion", in_proportion), ("phones", phones_of)):
        population = made(clients, seed).moved_by(traces(kind), seed)
        free = replace(setting, min_batch=1)
        balanced, oracle = SCHEMES["balanced"], Oracle(population, setting)
        tried = ((SCHEMES["standard"], setting), (balanced, setting), (balanced, free), (oracle, free))
        for scheme, of_scheme in tried:
            run = iter_rounds(population, shards, scheme, of_scheme)
            found.setdefault(label, []).append([moment.spread for moment in run if np.isfinite(moment.spread)])
    return found


# -- predictors --------------------------------------------------------------------------------------------------

PREDICTORS: dict[str, tuple[Callable[[], Predictor], float]] = {
    "local-level, risk 0": (LocalLevel, 0.0),
    "ewma, risk 0": (EWMA, 0.0),
    "local-level": (LocalLevel, 0.7),
    "last-value": (LastValue, 0.7),
    "ewma": (EWMA, 0.7),
    "auto": (Auto, 0.7),
}
"""What the core is given, and its risk: at 0 a client never seen is taken at the mean of its device type."""

RARE = ((5000, 50, 100), (1000, 50, 100))
"""Clients, those asked in a round, and rounds."""

RARE_KINDS, RARE_SEEDS = ("none", "recorded"), range(2)
SAMPLES_EACH = 300


@dataclass
class Rare:
    """Rounds in which most clients are asked rarely: the median of slowest over median, and the time of all rounds."""

    spread: list[float]
    seconds: list[float]

    def add(self, run: Sequence[RoundMoment]) -> None:
        """Add the rounds of one more seed."""
        self.spread.append(statistics.median(moment.spread for moment in run))
        self.seconds.append(run[-1].seconds)


def timed_shards(clients: int) -> Shards:
    """Return amounts of data alone: nobody trains."""
    count = SAMPLES_EACH * clients
    rows = tuple(np.array_split(np.arange(count), clients))
    return Shards("timed", np.zeros((count, 1)), np.arange(count) % 2, rows, np.zeros((2, 1)), np.arange(2))


def rarely_seen(label: str, kind: str, clients: int, participating: int, rounds: int) -> dict[str, Rare]:
    """Return how rounds end with each predictor, among all that are asked, never seen before or not."""
    found: dict[str, Rare] = {}
    for seed in RARE_SEEDS:
        population = {"in proportion": in_proportion, "phones": phones_of}[label](clients, seed)
        population, shards = population.moved_by(traces(kind), seed), timed_shards(clients)
        setting = replace(
            SETTING, participation=participating / clients, rounds=rounds, rate=0.0, seed=seed, met_before=0
        )
        runs = {"standard": (SCHEMES["standard"], setting), "oracle": (Oracle(population, setting), setting)}
        for name, (made, risk) in PREDICTORS.items():
            runs[name] = (SCHEMES["balanced"], replace(setting, predictor=made(), risk=risk))
        for name, (scheme, of_scheme) in runs.items():
            found.setdefault(name, Rare([], [])).add(list(iter_rounds(population, shards, scheme, of_scheme)))
    return found


def compare_predictors() -> None:
    """Write the part of the page about predictors."""
    begin, found = time.process_time(), {}
    for clients, participating, rounds in RARE:
        for kind in RARE_KINDS:
            for label in ("in proportion", "phones"):
                found[clients, participating, kind, label] = rarely_seen(label, kind, clients, participating, rounds)
                minutes = (time.process_time() - begin) / 60
                predictors_page(
                    Path(__file__).with_name("federated_predictors.md"), found, machine(), minutes, len(RARE_SEEDS)
                )
                print(f"{clients} clients, {kind}, {label}: {minutes:.1f} minutes of computing", flush=True)


# -- the cost of a plan ------------------------------------------------------------------------------------------


def plan_cost(known: int = 100_000, participating: int = 1_000, rounds: int = 50) -> dict[str, float]:
    """Return milliseconds of computing for a plan and for learning a round, and megabytes of the saved state."""
    generator = np.random.default_rng(0)
    balancer = FederatedBalancer(batch=32, local_steps=10, deadline=60.0)
    names = [f"client-{i:06d}" for i in range(known)]
    balancer.join(names, devices=[f"model-{i % 200}" for i in range(known)], data=generator.integers(20, 2000, known))
    speed, comm = generator.lognormal(4, 0.8, known), generator.lognormal(1, 0.7, known)
    plans, learns = [], []
    for _ in range(rounds):
        rows = generator.choice(known, participating, replace=False)
        begin = time.thread_time()
        plan = balancer.plan([names[row] for row in rows])
        plans.append(time.thread_time() - begin)
        kept = np.flatnonzero(plan.participating)
        samples = plan.sizes[kept] * plan.local_steps
        report = RoundReport(
            clients=[plan.clients[int(i)] for i in kept],
            samples=samples,
            seconds=samples / speed[rows[kept]],
            comm_seconds=comm[rows[kept]],
        )
        begin = time.thread_time()
        balancer.observe(plan, report)
        learns.append(time.thread_time() - begin)
    size = sum(array.nbytes for array in balancer.state_dict().values())
    return {
        "plan": 1e3 * statistics.median(plans),
        "worst": 1e3 * max(plans),
        "learn": 1e3 * statistics.median(learns),
        "state": size / 1e6,
    }


@dataclass
class Found:
    """What was found, over the seeds so far."""

    runs: dict[tuple[str, str, float], dict[str, list[list[RoundMoment]]]]
    uneven: dict[tuple[str, int, float], dict[str, list[list[float]]]]
    smallest: dict[int, list[tuple[float, float]]]

    def add(self, seed: int) -> None:
        """Run everything with one more seed."""
        for task in TASKS[:1] if QUICK else TASKS:
            for level, alpha in LEVELS.items():
                for participation in task.participations:
                    of_task = self.runs.setdefault((task.name, level, participation), {})
                    for name, run in trained(task, alpha, participation, seed).items():
                        of_task.setdefault(name, []).append(run)
        for kind in KINDS:
            for clients, participation in FLEETS:
                of_fleet = self.uneven.setdefault((kind, clients, participation), {})
                for label, of_schemes in spreads(clients, kind, participation, seed).items():
                    before = of_fleet.setdefault(label, [[] for _ in of_schemes])
                    for values, more in zip(before, of_schemes, strict=True):
                        values += more
        for min_batch, values in with_smallest(seed).items():
            self.smallest.setdefault(min_batch, []).extend(values)

    def write(self, cost: Mapping[str, float], about: About) -> None:
        """Write the page, or print it."""
        scores = {key: {name: score(runs, name) for name in runs} for key, runs in self.runs.items()}
        evenness = {
            key: {label: [statistics.median(values) for values in each] for label, each in of_fleet.items()}
            for key, of_fleet in self.uneven.items()
        }
        means = {
            min_batch: (statistics.fmean(points for points, _ in values), statistics.fmean(time for _, time in values))
            for min_batch, values in self.smallest.items()
        }
        shown = self.runs["mixture, 100 phones", "Dirichlet 0.1", 0.3]
        path = Path(tempfile.gettempdir()) / "federated.md" if QUICK else Path(__file__).with_suffix(".md")
        page(path, scores, evenness, cost, means, about, shown)


def main() -> None:
    begin = time.process_time()
    found, cost = Found({}, {}, {}), plan_cost()
    for count, seed in enumerate(SEEDS, start=1):  # the page is written after each seed, with as many as it has
        found.add(seed)
        minutes = (time.process_time() - begin) / 60
        found.write(cost, About(machine(), minutes, count, SETTING))
        print(f"{count} of {len(SEEDS)} seeds after {minutes:.1f} minutes of computing", flush=True)


if __name__ == "__main__":
    compare_predictors() if "--predictors" in sys.argv else main()
