"""Two parts of training.py: a backtest of the default mixture, and a leaderboard in one process and in two."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

from training_alone import Clock, Found, alone, peak
from training_sizes import WALL, Sizes, medians, ratio, taken
from training_traces import fleet


def measure_backtest(sizes: Sizes) -> Found:
    """Backtest the default mixture."""
    with fleet(sizes.workers, sizes.steps, files=1) as folder:
        return {"turns": [alone(backtested, folder=folder) for _ in range(sizes.turns)]}


def backtested(folder: str) -> Found:
    """Backtest ``auto`` once."""
    from paceline.eval import backtest
    from paceline.predictors import Auto
    from paceline.training import Source

    (trace,) = Source(f"{folder}/whole")
    clock = Clock()
    backtest(Auto(), trace)
    return {"backtest": clock(), "peak": peak()}


def page_backtest(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    turns = found["turns"]
    seconds = median(one["backtest"][1] for one in turns)
    missed = [] if seconds < 10 else [f"the backtest of `auto` takes {seconds:.1f} s of the processor, not under 10 s"]
    lines = [
        "## Backtests",
        "",
        f"`auto` over {sizes.workers:,} workers x {sizes.steps:,} iterations: "
        f"{taken(turns, 'backtest').replace(' |', ', processor')}. {medians(turns)}.",
    ]
    return lines, missed


def measure_processes(sizes: Sizes) -> Found:
    """Compare predictors in one process and in two, in turns."""
    found: Found = {"1": [], "2": []}
    with fleet(sizes.workers, sizes.steps, files=8) as folder:
        for _ in range(sizes.turns):
            for jobs in (1, 2):
                found[str(jobs)].append(alone(compared, folder=folder, jobs=jobs))
    return found


def compared(folder: str, jobs: int) -> Found:
    """Make a leaderboard once, in this many processes."""
    import joblib

    from paceline.eval import leaderboard
    from paceline.predictors import EWMA, NARX, RLS
    from paceline.training import Source

    traces = [
        replace(trace, meta={**trace.meta, "job": f"part {n}"}) for n, trace in enumerate(Source(f"{folder}/whole"))
    ]
    with joblib.parallel_config(n_jobs=jobs):
        # Every process imports what it needs before the clock starts.
        joblib.Parallel()(joblib.delayed(leaderboard)({"ewma": EWMA()}, traces[:1]) for _ in range(jobs))
        clock = Clock()
        leaderboard({"ewma": EWMA(), "narx": NARX(), "rls": RLS(covariates=())}, traces)
        return {"board": clock()}


def page_processes(sizes: Sizes, found: Found) -> tuple[list[str], list[str]]:
    """Return the lines of this part, and the targets that it misses."""
    times = 1 / ratio(found["2"], found["1"], "board", WALL)
    missed = [] if times >= 1.7 else [f"two processes are {times:.2f} times as fast as one, not 1.7 times"]
    lines = [
        "## Two processes",
        "",
        f"The leaderboard of EWMA, RLS and an unfitted NARX over {sizes.workers:,} x {sizes.steps:,} iterations",
        f"in 8 jobs. {medians(found['1'])}.",
        "",
        "| | time | processor, this process |",
        "| --- | --- | --- |",
        f"| one process | {taken(found['1'], 'board')} |",
        f"| through joblib, two processes | {taken(found['2'], 'board')} |",
        "",
        f"Two processes are {times:.2f} times as fast as one.",
    ]
    return lines, missed
