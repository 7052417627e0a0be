"""How good forecasts are: every predictor, and other libraries where they are installed, against the last value.

Run as ``python benchmarks/accuracy.py``; it writes accuracy.md beside this file. ``--quick`` takes small fleets,
``--sets`` and ``--only`` take parts of it and print them, ``--no-peers`` leaves the other libraries out.

One step ahead, fitted on the first half of each series, scored on the second, served through both. Peers are in
accuracy_peers.py, the sets in accuracy_sets.py. Axes: T iterations, W workers.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from accuracy_peers import PEERS, installed
from accuracy_sets import ITERATIONS, SYNTHETIC, WORKERS, Set, half, oracle, sets
from machine import machine
from numpy.typing import NDArray

from paceline import predictors as room
from paceline.datasets import Trace
from paceline.eval import barrier_overhead
from paceline.predictors import KINDS, LastValue, Predictor, Report

Array = NDArray[np.float64]

FIRST, LAST = 5, 50
"""The steps of a new worker that are scored separately: first and last, both included."""

PEER_SERIES = 12
"""Number of a synthetic fleet's first workers that other libraries are fitted to, series by series."""

SLOW_PEERS = ("statsforecast AutoARIMA", "statsforecast AutoETS", "river SNARIMAX + drivers")

SLOW_TO_FIT, FIT_SERIES = ("SimpleRNN", "LSTM", "GRU"), 20
"""These predictors are fitted on only this many of a synthetic fleet's first workers; they are scored on all."""

COVERED = (0.85, 0.95)
"""The 90 % interval of a worker counts as right if the share of speeds that it holds is in this range."""


@dataclass(frozen=True, eq=False)
class Served:
    """Forecasts of the second half of each trace, ``[T, W]``; intervals only of predictors that state them."""

    speed: list[Array]
    low: list[Array] | None = None
    high: list[Array] | None = None


@dataclass(frozen=True, eq=False)
class Scores:
    """Of each series, ``[W]``: errors, and how often the 90 % interval holds; and the barrier's overhead."""

    rmse: Array
    mae: Array
    coverage: Array
    overhead: float


def ours() -> dict[str, Callable[[], Predictor]]:
    """Return the predictors to fit, by name; a name that ends in 'as shipped' is not fitted."""
    found: dict[str, Callable[[], Predictor]] = {kind.__name__: kind for kind in KINDS}
    if hasattr(room, "Auto"):
        found |= {"Auto, as shipped": room.Auto}
    return found


def served(model: Predictor, data: Set) -> Served:
    parts = [forecasts(model, trace) for trace in data.traces]
    speed, low, high = (list(column) for column in zip(*parts, strict=True))
    return Served(speed, low, high)


def forecasts(model: Predictor, trace: Trace) -> tuple[Array, Array, Array]:
    """Return speeds and the ends of the 90 % interval forecast in the second half, ``[T, W]`` each."""
    rows = []
    for k, forecast in steps(model, trace, len(trace)):
        if k >= half(trace):
            rows.append((forecast.speed, forecast.quantile(0.05), forecast.quantile(0.95)))
    speed, low, high = (np.array(column) for column in zip(*rows, strict=True))
    return speed, low, high


def steps(model: Predictor, trace: Trace, count: int):  # type: ignore[no-untyped-def]  # pairs of int and Forecast
    """Serve the first iterations of a trace to a predictor that starts afresh, and yield each forecast."""
    model.reset(trace.workers)
    drivers_TWD = trace.drivers_named(model.driver_names)
    for k in range(count):
        drivers_WD = None if drivers_TWD is None else drivers_TWD[k]
        yield k, model.predict(drivers_WD)
        model.observe(Report(trace.samples[k], trace.seconds[k], drivers=drivers_WD))


def newcomers(model: Predictor, data: Set) -> Array:
    """Return each worker's RMSE in its first steps, ``[W]``, when everybody starts afresh at the second half."""
    found = []
    for trace in data.traces:
        late = trace.select(slice(half(trace), len(trace)))
        count = min(LAST + 1, len(late))
        speed_TW = np.array([forecast.speed for _, forecast in steps(model, late, count)])
        found.append(rms(speed_TW[FIRST:count] - late.speed[FIRST:count]))
    return np.concatenate(found)


def score(found: Served, data: Set) -> Scores:
    truth = [trace.speed[half(trace) :] for trace in data.traces]
    error = [speed_TW - truth_TW for speed_TW, truth_TW in zip(found.speed, truth, strict=True)]
    coverage = np.full(data.series, np.nan)
    if found.low is not None and found.high is not None:
        inside = [(a <= v) & (v <= b) for a, v, b in zip(found.low, truth, found.high, strict=True)]
        holds = [np.where(np.isfinite(v), i, np.nan) for i, v in zip(inside, truth, strict=True)]
        coverage = np.concatenate([np.nanmean(part, axis=0) for part in holds])
    return Scores(
        rmse=np.concatenate([rms(part) for part in error]),
        mae=np.concatenate([np.nanmean(np.abs(part), axis=0) for part in error]),
        coverage=coverage,
        overhead=barrier_overhead(side_by_side(found.speed), side_by_side(truth)),
    )


def rms(error_TW: Array) -> Array:
    return np.asarray(np.sqrt(np.nanmean(np.square(error_TW), axis=0)))


def side_by_side(parts: list[Array]) -> Array:
    """Return all series of a set as one panel; short ones end in gaps."""
    longest = max(len(part) for part in parts)
    return np.concatenate([np.pad(p, ((0, longest - len(p)), (0, 0)), constant_values=np.nan) for p in parts], axis=1)


def mean(ratio_W: Array) -> float:
    """Geometric mean over the series that have a ratio: where the last value never errs there is none."""
    usable = np.isfinite(ratio_W) & (ratio_W > 0)
    return float(np.exp(np.mean(np.log(ratio_W[usable]))))


def row(name: str, found: Scores, baseline: Scores, *, whole: bool = True) -> str:
    """Return a line of the table; the overhead only of forecasts of the whole set, whose groups are the same."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rmse_W, mae_W = found.rmse / baseline.rmse, found.mae / baseline.mae
    worst = np.nanmax(np.where(np.isfinite(rmse_W), rmse_W, np.nan))
    known = np.isfinite(found.coverage)
    right = np.mean((found.coverage >= COVERED[0]) & (found.coverage <= COVERED[1])) if known.any() else np.nan
    holds = f"{np.nanmean(found.coverage):.1%} ({right:.0%})" if known.any() else "-"
    overhead = f"{found.overhead:.2%}" if whole else "-"
    return f"| {name} | {mean(rmse_W):.3f} | {mean(mae_W):.3f} | {worst:.2f} | {holds} | {overhead} |"


def first(data: Set, count: int) -> Set:
    return Set(data.name, data.about, [t.select(workers=t.workers[:count]) for t in data.traces])


def peers(data: Set, names: list[str]) -> Iterator[tuple[str, Scores, Scores]]:
    """Yield each peer's scores, and those of the last value on the same series."""
    for name in names:
        few = first(data, PEER_SERIES) if name in SLOW_PEERS and data.name in SYNTHETIC else data
        began = time.perf_counter()
        try:
            found = Served(PEERS[name](few))
        except ImportError as missing:
            print(f"{data.name}: {name} left out, {missing}", flush=True)
            continue
        print(f"{data.name}: {name} {time.perf_counter() - began:.1f} s", flush=True)
        yield name, score(found, few), score(served(LastValue(), few), few)


def table(data: Set, chosen: list[str], chosen_peers: list[str]) -> Iterator[str]:
    yield f"\n## {data.name}: {data.series} series\n\n{data.about[0].upper()}{data.about[1:]}.\n"
    yield "| predictor | RMSE | MAE | worst series | 90 % holds (workers within 85-95 %) | overhead |"
    yield "| --- | --- | --- | --- | --- | --- |"
    baseline, new_last_W = score(served(LastValue(), data), data), newcomers(LastValue(), data)
    ratios: dict[str, float] = {}
    new: dict[str, float] = {}
    for name in chosen:
        began, model = time.perf_counter(), ours()[name]()
        if not name.endswith("as shipped"):
            few = name in SLOW_TO_FIT and data.name in SYNTHETIC
            model.fit(first(data, FIT_SERIES).fitting if few else data.fitting)
        scores = score(served(model, data), data)
        ratios[name] = mean(scores.rmse / baseline.rmse)
        if name in ("Auto", "Auto, as shipped", "Mixture", "RLS", "EWMA"):
            new[name] = mean(newcomers(model, data) / new_last_W)
        yield row(name, scores, baseline)
        print(f"{data.name}: {name} {time.perf_counter() - began:.1f} s {ratios[name]:.4f}", flush=True)
    best: dict[str, float] = {}
    for name, scores, last in peers(data, chosen_peers):
        best[name] = mean(scores.rmse / last.rmse)
        yield row(f"*{name}*", scores, last, whole=len(scores.rmse) == data.series)
    if data.name in SYNTHETIC:
        truth = Served([oracle(data.name, data.traces[0])[half(data.traces[0]) :]])
        yield row("(oracle: knows the hidden state)", score(truth, data), baseline)
    yield ""
    if new:
        yield (
            f"Steps {FIRST} to {LAST} of new workers, RMSE: " + ", ".join(f"{n} {v:.3f}" for n, v in new.items()) + "."
        )
    yield from against_peers(ratios, best)


def against_peers(ratios: dict[str, float], best: dict[str, float]) -> Iterator[str]:
    """Yield the sentence that relates the defaults to the best peer."""
    if not best:
        return
    peer = min(best, key=lambda name: best[name])
    for name in ("Auto", "Auto, as shipped", "Mixture"):
        if name in ratios:
            yield f"{name} over the best peer, {peer}: {ratios[name] / best[peer]:.3f}."


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="small synthetic fleets")
    options.add_argument("--no-peers", action="store_true", help="leave other libraries out")
    options.add_argument("--sets", nargs="*", help="names of sets; the page is printed, not written")
    options.add_argument("--only", nargs="*", help="names of predictors and peers; the page is printed, not written")
    chosen = options.parse_args()
    warnings.simplefilter("ignore")  # those of peers
    began = time.perf_counter()
    names = [name for name in ours() if not chosen.only or name in chosen.only]
    peer_names = [name for name in PEERS if not chosen.no_peers and (not chosen.only or name in chosen.only)]
    wanted = [data for data in sets(chosen.quick) if not chosen.sets or data.name in chosen.sets]
    lines = [line for data in wanted for line in table(data, names, peer_names)]
    page = head(time.perf_counter() - began) + "\n".join(lines) + "\n"
    if chosen.quick or chosen.no_peers or chosen.sets or chosen.only:
        print(page)
    else:
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


def head(seconds: float) -> str:
    return f"""# How good forecasts are, one step ahead

Command: `python benchmarks/accuracy.py`, {seconds / 60:.0f} minutes.

Machine: {machine("torch", "scikit-learn", *installed())}; one thread.

RMSE and MAE are errors of the speed relative to those of the last value, geometric means over series: below 1 is
better. Every predictor is fitted on the first half of all series of a set and scored on the second; "as shipped" is not
fitted at all; {", ".join(SLOW_TO_FIT)} are fitted on {FIT_SERIES} workers of a synthetic fleet. *Peers* are in italics;
see accuracy_peers.py for how each was served. Those fitted series by series ({", ".join(SLOW_PEERS)}) take the first
{PEER_SERIES} workers of a synthetic fleet, and all ratios are to the last value on the same series. "Worst series" is
the highest RMSE ratio of one series. "90 % holds" is how often the central 90 % interval held the speed, mean over
workers, and for how many workers that share lies between 85 and 95 %. "Overhead" is how much longer a group of 16
workers waits for its slowest than with known speeds, if the forecasts size its batches. Synthetic fleets are {WORKERS}
workers x {ITERATIONS} iterations.
"""


if __name__ == "__main__":
    main()
