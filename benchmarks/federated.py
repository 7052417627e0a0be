"""What balanced batches gain in federated rounds: accuracy over simulated time, and how even the rounds are.

Run as ``python benchmarks/federated.py``; it writes federated.md beside this file; with ``--quick`` a part of it, in
the folder for temporary files. The phones' profiles and the PAI traces are looked for in ``$PACELINE_DATA``, or in
``../shared/data`` beside the checkout. Axis: R rounds.
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
from federated_clients import Population, Shards, digits, in_proportion, mixture, phones
from federated_rounds import (
    Oracle,
    RoundMoment,
    RoundSetting,
    Scheme,
    adaptive_rate,
    adaptive_steps,
    balanced,
    balanced_drop,
    deadline_drop,
    iter_buffered,
    iter_rounds,
    standard,
)
from machine import machine
from scipy.stats import t as student

from paceline.coordinator.federated import FederatedBalancer, RoundReport
from paceline.datasets import Trace, read_traces, recorded

DATA = Path(os.environ.get("PACELINE_DATA", Path(__file__).parents[2] / "shared" / "data"))

SCHEMES: dict[str, Scheme] = {
    "standard": standard,
    "balanced": balanced,
    "adaptive-steps": adaptive_steps,
    "adaptive-rate": adaptive_rate,
    "deadline-drop": deadline_drop,
    "balanced-drop": balanced_drop,
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


def phones_of(count: int, seed: int) -> Population:
    return phones(count, DATA / "batch_profiles" / "flash", seed)


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
    if len(values) < 2:
        return float("nan")
    return float(student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5)


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


# -- the page ----------------------------------------------------------------------------------------------------

Scores = Mapping[tuple[str, str, float], Mapping[str, Score]]
Evenness = Mapping[tuple[str, int, float], Mapping[str, Sequence[float]]]

ACCURACY_TARGET = 0.5
TIME_TARGET = 0.75
SPREAD_TARGET = 1.15
PLAN_TARGET = 20.0


@dataclass
class Found:
    """What was found, over the seeds so far: rounds by setting and scheme, evenness by fleet, and by smallest batch."""

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

    def page(self, cost: Mapping[str, float], minutes: float, seeds: int) -> str:
        """Return the page."""
        scores = {key: {name: score(runs, name) for name in runs} for key, runs in self.runs.items()}
        evenness = {
            key: {label: [statistics.median(values) for values in each] for label, each in of_fleet.items()}
            for key, of_fleet in self.uneven.items()
        }
        parts = [
            HEAD.format(machine=machine(), minutes=minutes, seeds=seeds, setting=SETTING),
            "## Targets\n",
            *(f"- {line}" for line in targets(scores, evenness, cost)),
            "\n" + ACCURACY,
        ]
        for task in dict.fromkeys(task for task, _, _ in scores):
            parts += [f"### {task}\n", *accuracy_table({key: each for key, each in scores.items() if key[0] == task})]
        parts.append(SMALLEST_BATCHES)
        for min_batch, values in self.smallest.items():
            points, seconds = map(statistics.fmean, zip(*values, strict=True))
            parts.append(f"| {min_batch} | {points:+.2f} | {seconds:.2f} |")
        return "\n".join([*parts, "\n" + EVENNESS, *evenness_table(evenness), COST.format(**cost)])


def targets(scores: Scores, evenness: Evenness, cost: Mapping[str, float]) -> list[str]:
    """Return a sentence for each target: missed ones first."""
    ours = [each["balanced"] for each in scores.values()]
    worst, slowest = min(one.points for one in ours), max(one.time for one in ours)
    kept = sum(one.points >= -ACCURACY_TARGET for one in ours)
    fast = sum(one.time <= TIME_TARGET and not one.never for one in ours)
    even = {
        label: [sum(each[label][column] <= SPREAD_TARGET for each in evenness.values()) for column in (1, 2, 3)]
        for label in ("in proportion", "phones")
    }
    ours_even, free_even, best_even = even["in proportion"]
    skewed = [each for key, each in scores.items() if key[1] != "IID"]
    beaten = {
        name: sum(each["balanced"].accuracy > each[name].accuracy for each in skewed)
        for name in ("adaptive-steps", "adaptive-rate")
    }
    lines = [
        (
            kept == len(ours),
            f"final accuracy within {ACCURACY_TARGET} points of standard federated learning: {kept} of "
            f"{len(ours)} settings, the worst mean {worst:+.2f} points",
        ),
        (
            fast == len(ours),
            f"target accuracy in at most {TIME_TARGET} of its time: {fast} of {len(ours)} settings, the "
            f"slowest {slowest:.2f}",
        ),
        *(
            (
                beaten[name] == len(skewed),
                f"higher final accuracy than {name} on data that are not IID: {beaten[name]} of {len(skewed)} settings",
            )
            for name in beaten
        ),
        (
            ours_even == len(evenness),
            f"slowest over median at most {SPREAD_TARGET}: {ours_even} of {len(evenness)} settings where time is in "
            f"proportion to samples, {free_even} with batches down to one sample, {best_even} for one who knows what "
            f"comes; with the phones' fixed cost {even['phones'][0]}, {even['phones'][1]} and {even['phones'][2]}",
        ),
        (
            cost["worst"] < PLAN_TARGET,
            f"a plan for 1,000 of 100,000 known clients in under {PLAN_TARGET:.0f} ms: "
            f"{cost['plan']:.1f} ms of computing, at worst {cost['worst']:.1f} ms",
        ),
    ]
    return [f"{'**Missed**' if not met else 'Met'}: {text}." for met, text in sorted(lines, key=lambda line: line[0])]


def accuracy_table(scores: Scores) -> list[str]:
    lines = [
        "| data | taking part | scheme | final accuracy | points over standard | time to target | time of all rounds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (_, level, participation), each in scores.items():
        for name, one in each.items():
            never = f" ({one.never} of the seeds never)" if one.never else ""
            half = "" if np.isnan(one.time_half) else f" ± {one.time_half:.2f}"  # one seed alone has none
            reached = "never" if np.isinf(one.time) else f"{one.time:.2f}{half}{never}"
            points = f"{one.points:+.2f} ± {one.points_half:.2f}"
            bold = "**" if name == "balanced" else ""
            lines.append(
                f"| {level} | {participation:.0%} | {bold}`{name}`{bold} | {one.accuracy:.1f}% | {points} | "
                f"{reached} | {one.total_time:.2f} |"
            )
    return [*lines, ""]


def evenness_table(evenness: Evenness) -> list[str]:
    lines = [
        "| speeds move as | clients | taking part | in proportion: standard | **balanced** | down to 1 | oracle | "
        "phones: standard | **balanced** | down to 1 | oracle |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (kind, clients, participation), each in evenness.items():
        cells = " | ".join(f"{value:.2f}" for value in (*each["in proportion"], *each["phones"]))
        lines.append(f"| `{kind}` | {clients} | {participation:.0%} | {cells} |")
    return [*lines, ""]


HEAD = """# Federated rounds that end together

`python benchmarks/federated.py`, on {machine}, one thread, {minutes:.0f} minutes of computing. Clients really
train (a network of one hidden layer, plain gradient descent, learning rate {setting.rate}, {setting.local_steps} local
steps, a mean batch of {setting.batch}, {setting.rounds} rounds, {seeds} seeds); time is simulated: phones of the flash
profiles (two models, their units log-normally apart by 0.4), links log-normal around 10 Mbit/s for a model of 1 MB, and
speeds that move as the workers of all nine recorded jobs did, each local step a row of the recording. The unit spread
and the links are our assumptions. ± is a 95% confidence half-width over the seeds.
"""

ACCURACY = """## Accuracy, and the time it takes

- *standard*: federated averaging, equal batches and steps. *balanced*: ours, only the batch differs.
- *adaptive-steps*: local steps by speed. *adaptive-rate*: batches by speed, learning rates in proportion to them.
- *deadline-drop*: after FedCS, the fastest 70% of the clients by forecast, the late dropped. *balanced-drop*: the
  same clients with balanced batches, nobody dropped. (Oort chooses among all clients by their losses; the replay draws
  a round's clients at random, so it has no row.)
- *fedbuff*: asynchronous, a step of the server for each 10 updates, as many updates as the others. With 30 or 100
  clients at once it so takes 3 or 10 server steps for each round of the others, which is where its accuracy comes
  from; it is shown as its users would run it.
- *time to target*: simulated time until the mean of 5 rounds reaches 98% of standard's final accuracy, over
  standard's.
- Final accuracy is the mean of the last 10 rounds.
"""

SMALLEST_BATCHES = """## How small a batch may be

`mixture`, 100 phones, 10% taking part, the mean over the three kinds of data and the seeds. A step on few samples is
noisy, and with ten clients in a round that shows; the default is a quarter of the mean batch.

| smallest batch | points over standard | time of all rounds over standard's |
| --- | --- | --- |"""

EVENNESS = """## How even rounds are

Slowest reply over the median, among clients that had replied three times before; the median over rounds and seeds.

- *in proportion*: time in proportion to samples, as in FedScale's table and the paper's formula (20 ms a sample and 8
  Mbit/s in the median, log deviation 0.6 each: our assumption).
- *phones*: as above. A step costs as much as 17 to 44 samples besides its samples, and no batch can shorten that.
- *balanced*: batches of at least a quarter of the mean, as by default; *down to 1*: of at least one sample.
- *oracle*: the exact split of the speeds and links to come, down to one sample. What exceeds 1 there, no batch can
  mend: clients whose link or fixed cost alone takes longer than the others' round. What *down to 1* has on top is due
  to forecasts: speeds that move between rounds, and links by 20%.
"""

COST = """## What a plan costs

100,000 known clients, 1,000 asked, a deadline: a plan takes {plan:.1f} ms of computing in the median and {worst:.1f}
ms at worst, learning the replies {learn:.1f} ms; the saved state is {state:.0f} MB.
"""


def main() -> None:
    begin = time.process_time()
    found, cost = Found({}, {}, {}), plan_cost()
    path = Path(tempfile.gettempdir()) / "federated.md" if QUICK else Path(__file__).with_suffix(".md")
    for count, seed in enumerate(SEEDS, start=1):  # the page is written after each seed, with as many as it has
        found.add(seed)
        minutes = (time.process_time() - begin) / 60
        path.write_text(found.page(cost, minutes, count))
        print(f"{count} of {len(SEEDS)} seeds after {minutes:.1f} minutes of computing", flush=True)


if __name__ == "__main__":
    main()
