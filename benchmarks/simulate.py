"""Savings that `paceline simulate` says beforehand, beside those realised: stragglers made by quotas, truth known.

python benchmarks/simulate.py             # about 10 minutes; writes simulate.md
python benchmarks/simulate.py --live 0    # the trials by replay alone; prints only
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from imposed_rank import Seen, Told
from imposed_speeds import BEGINS
from machine import machine
from simulate_rank import SCHEMES, Trials, run

from paceline._arrays import Array
from paceline.coordinator import Policy
from paceline.coordinator.balanced.policy import default_batch_multiple
from paceline.datasets import Trace, recorded
from paceline.eval import Balanced, Simulation, from_speeds, replay, simulate
from paceline.eval.replay.synchronous import EQUAL
from paceline.predictors import Auto
from paceline.recording import merge

TRIALS, LIVE = 30, 10
"""Trials in all, and how many of them are real jobs."""

SHARE, SECONDS = 64, 0.06
"""Samples of a rank in an equal batch, and how long they take an undisturbed rank."""

ITERATIONS, REAL, BLOCK, WARMUP = 400, 160, 20, 40
"""Iterations of a replayed job and of a real one, of a turn of real training, and those at the start that do not count.
"""

RANKS = (2, 4)


@dataclass(frozen=True)
class Quotas:
    """Slow ranks of one trial: each rank's share of its speed, how long that lasts, and the noise."""

    share_W: Array
    mean: int
    noise: float

    @classmethod
    def drawn(cls, trial: int) -> Quotas:
        """Return the quotas of a trial: at times none, at times for the whole job, at times in bursts."""
        rng = np.random.default_rng(trial)
        ranks = RANKS[trial % len(RANKS)]
        slow_W = rng.random(ranks) < 0.5
        share_W = np.where(slow_W, rng.uniform(0.35, 0.9, ranks), 1.0)
        return cls(share_W, mean=(0, 0, 20, 60)[trial // 2 % 4], noise=float(rng.uniform(0.02, 0.08)))

    def speeds(self, seed: int, iterations: int = ITERATIONS) -> Array:
        """Return speeds of one job, ``[T, W]``, in samples/s; another seed is another job of the same kind."""
        rng = np.random.default_rng([seed, 99])
        share_TW = np.tile(self.share_W, (iterations, 1))
        if self.mean:
            slow_W = rng.random(len(self.share_W)) < 0.3
            for share_W in share_TW:
                drawn_W = rng.random(len(slow_W))
                slow_W = np.where(slow_W, drawn_W > 1 / self.mean, drawn_W < BEGINS)
                share_W[~slow_W] = 1.0
        return SHARE / SECONDS * share_TW * np.exp(self.noise * rng.standard_normal(share_TW.shape))

    @property
    def words(self) -> str:
        """What a reader of the table must know."""
        lasting = "all the time" if not self.mean else f"in bursts of {self.mean}"
        slow = ", ".join(f"{share:.2f}" for share in self.share_W if share < 1)
        return f"{slow} {lasting}" if slow else "none"


@dataclass(frozen=True)
class Row:
    """One trial: what was said, and what came."""

    kind: str
    ranks: int
    quotas: str
    said: Simulation
    came: float
    wall: float = float("nan")

    @property
    def holds(self) -> bool:
        """True if the interval holds the saving that came."""
        return self.said.low <= self.came <= self.said.high

    def __str__(self) -> str:
        said, mark = self.said, "" if self.holds else "**"
        interval = f"{100 * said.low:.1f} to {100 * said.high:.1f} %"
        shown = [self.kind, f"{self.ranks}", self.quotas, f"{100 * said.saving:.1f} %", interval]
        wall = "" if np.isnan(self.wall) else f"{100 * self.wall:.1f} %"
        return f"| {' | '.join(shown)} | {mark}{100 * self.came:.1f} %{mark} | {wall} |"


# -- by replay -------------------------------------------------------------------------------------------------------


def replayed(trial: int) -> Row:
    """Return a trial in which both the recording and the job that follows are drawn."""
    quotas = Quotas.drawn(trial)
    said = simulate(of_speeds(quotas.speeds(2 * trial)))
    return Row("replay", len(quotas.share_W), quotas.words, said, realised(quotas.speeds(2 * trial + 1)))


def of_speeds(speed_TW: Array) -> Trace:
    """Return the recording of equal batches at these speeds."""
    return Trace(np.full(speed_TW.shape, float(SHARE)), SHARE / speed_TW)


def realised(speed_TW: Array) -> float:
    """Return the saving of the balancer of a live job at these speeds."""
    ranks = speed_TW.shape[1]
    policy = Policy(batch_multiple=default_batch_multiple(SHARE * ranks, ranks))
    came = replay({"live": Balanced(Auto(), policy)}, of_speeds(speed_TW), warmup=WARMUP)
    return float(1 - came.seconds("live").sum() / came.seconds(EQUAL).sum())


def usual_speeds(count: int) -> list[bool]:
    """Return whether the interval holds, for quotas that last, of which only the usual speeds were known."""
    held = []
    for trial in range(count):
        drawn = Quotas.drawn(trial)
        quotas = Quotas(drawn.share_W, 0, drawn.noise)
        said = from_speeds(SHARE / SECONDS * quotas.share_W, global_batch=SHARE * len(quotas.share_W))
        held.append(Row("", 0, "", said, realised(quotas.speeds(trial))).holds)
    return held


def halves() -> Iterator[Row]:
    """Yield the shipped recordings, real ones: the first half says what the second half then saves."""
    for name in recorded.names():
        trace = recorded.load(name)
        trace = trace.select(slice(-1000, None))
        first, second = trace.select(slice(None, 500)), trace.select(slice(500, None))
        yield Row(name, len(trace.workers), "", simulate(first), simulate(second).saving)


# -- by real jobs ----------------------------------------------------------------------------------------------------


def live(trials: list[int]) -> Iterator[Row]:
    """Yield trials of one number of ranks that are real jobs: recorded first, then trained plain and balanced."""
    context = multiprocessing.get_context("spawn")
    drawn = [Quotas.drawn(trial) for trial in trials]
    ranks = len(drawn[0].share_W)
    with tempfile.TemporaryDirectory() as folder:
        answers, jobs = context.SimpleQueue(), []
        for rank in range(ranks):
            told = Told(rank, ranks, f"{folder}/store", [], SHARE, SCHEMES, BLOCK)
            recorded_TW = [quotas.speeds(2 * trial, REAL) for trial, quotas in zip(trials, drawn, strict=True)]
            realised_TW = [quotas.speeds(2 * trial + 1, REAL) for trial, quotas in zip(trials, drawn, strict=True)]
            given = Trials(told, recorded_TW, realised_TW, folder)
            jobs.append(context.Process(target=run, args=(given, answers.put)))
            jobs[-1].start()
        for number, quotas in enumerate(drawn):
            seen: dict[str, Seen] = answers.get()
            trace = merge([f"{folder}/trial{number}-rank{rank}.jsonl" for rank in range(ranks)])
            # The exchange is left out on both sides: others use this machine too.
            said = simulate(Trace(trace.samples, trace.seconds, workers=trace.workers))
            came = by_the_speeds(seen, realised_TW[number])
            yield Row("job", ranks, quotas.words, said, came, by_the_clock(seen))
        for job in jobs:
            job.join()


def by_the_speeds(seen: dict[str, Seen], speed_TW: Array) -> float:
    """Return the saving of the sizes that the job chose, at the speeds that were imposed, after the warm-up."""
    sizes_TW = np.array(seen["auto"].sizes_TW)
    balanced_T, equal_T = ((sizes / speed_TW).max(axis=1)[WARMUP:] for sizes in (sizes_TW, float(SHARE)))
    return float(1 - balanced_T.sum() / equal_T.sum())


def by_the_clock(seen: dict[str, Seen]) -> float:
    """Return the saving in wall time, after the turns that warm up."""
    plain, balanced = (sum(seen[scheme].wall_seconds[WARMUP // BLOCK :]) for scheme in ("equal", "auto"))
    return 1 - balanced / plain


# -- the page --------------------------------------------------------------------------------------------------------


HEADING = "| trial | ranks | quotas | said | 90 % interval | came | by the clock |"


def table(rows: list[Row]) -> str:
    """Return the table of these trials."""
    return "\n".join([HEADING, "|" + " --- |" * 7, *map(str, rows)])


def held(rows: list[Row]) -> str:
    """Return in how many trials the interval held what came."""
    return f"{sum(row.holds for row in rows)} of {len(rows)}"


def page(jobs: list[Row], drawn: list[Row], speeds: list[bool], shipped: list[Row]) -> str:
    """Return the page."""
    error = 100 * np.mean([abs(row.said.saving - row.came) for row in (*jobs, *drawn)])
    return f"""# What was said beforehand, and what came

Command: `python benchmarks/simulate.py`

Machine: {machine("torch")}

`paceline simulate` says what balancing would save, from a recording of {ITERATIONS} iterations of equal batches ({REAL}
of a real job). Then a job of the same kind runs, at fresh speeds, and what it saves is compared with the 90 % interval.
Quotas slow ranks down to a share of their speed, all the time or in bursts of so many iterations in the mean, each rank
with noise of its own. Bursts of 60 are the hard ones: a recording holds a few of a rank, and one that holds none knows
nothing of them. The shape of the interval was chosen on other draws than these, its least width after a look at them.

- **The interval held what came in {held([*jobs, *drawn])} trials.** The mean error is {error:.1f} points.
- *job*, {held(jobs)}: real `DistributedDataParallel` jobs whose ranks sleep samples / speed, recorded by
  `paceline.recording`, then trained plain and attached in turns of {BLOCK} iterations. What came is the time of the
  sizes that the attached job chose, at the imposed speeds. *By the clock* is the wall time beside it, which holds the
  exchange, the hooks, and whatever else runs on this machine: read it only if nothing did.
- *replay*, {held(drawn)}: both are drawn, and the balancer runs on exact times.
- By replay, if only usual speeds are known (`--speeds`) and quotas last: {sum(speeds)} of {len(speeds)}.

Bold: outside of the interval.

{table([*jobs, *drawn])}

## Recordings that are shipped

The interval is for a job that resembles the recorded one. Here the first 500 of 1,000 recorded iterations say what the
next 500 save, by replay; where competitors came and went, halves differ. {held(shipped)} hold.

{table(shipped)}
"""


def main() -> None:
    """Run the trials, and write the page if all of them ran."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--live", type=int, default=LIVE)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    by_ranks = [[trial for trial in range(asked.live) if trial % len(RANKS) == one] for one in range(len(RANKS))]
    with ThreadPoolExecutor() as both:  # ranks sleep nearly all the time
        real = both.map(lambda trials: list(live(trials)) if trials else [], by_ranks)
        jobs = [row for rows in real for row in rows]  # the replays come afterwards: they would disturb the ranks
    drawn = [replayed(trial) for trial in range(asked.live, TRIALS)]
    speeds, shipped = usual_speeds(TRIALS), list(halves())
    print(*jobs, *drawn, sep="\n")
    print(held([*jobs, *drawn]), sum(speeds), *shipped, sep="\n")
    if asked.live == LIVE:
        Path(__file__).with_suffix(".md").write_text(page(jobs, drawn, speeds, shipped), encoding="utf-8")


if __name__ == "__main__":
    main()
