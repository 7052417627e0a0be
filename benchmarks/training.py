"""Fitting to traces of any size: time, memory, and how they grow with the number of workers.

Run as ``python benchmarks/training.py``; it makes traces in a temporary folder (removed afterwards), measures each step
in a process of its own, and writes training.md beside this file. Sizes are arguments: ``--workers 1000 --steps 2000``
for the fit, ``--largest 100000`` for the growth, ``--full`` for a usage trace of Alibaba 2018's size (4,000 machines,
8 days) in its own format. ``--quick`` takes small ones, prints, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from machine import machine

COMMAND = "python benchmarks/training.py"

MEASURE = """
import json, time
import numpy as np
from paceline.predictors import *
from paceline.training import fit, Source
began, cpu = time.perf_counter(), time.process_time()
told = {{}}
{body}
seconds = time.perf_counter() - began
status = open("/proc/self/status").read()  # not getrusage: its peak includes that of the process that forked
peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({{"seconds": seconds, "cpu": time.process_time() - cpu, "peak": peak, **told}}))
"""

MAKE = """
from paceline.datasets.synthetic import synthetic_fleet
from dataclasses import replace
for part in range({files}):
    fleet = synthetic_fleet("mixed", {workers} // {files}, {steps}, part)
    names = [f"m_{{part}}_{{w}}" for w in range(len(fleet.workers))]
    fleet = replace(fleet, workers=names, meta={{**fleet.meta, "job": f"part {{part}}"}})
    fleet.save({folder!r} + f"/{{part:05}}.parquet")
"""

FIT = """
from paceline.predictors import checks
fit(NARX(training=Training(epochs=1)), [checks.example_trace()])  # imports what torch needs
first = {{}}
def tell(moment):
    first.setdefault(moment.stage, time.perf_counter() - began)
    told["windows"] = moment.total
began = time.perf_counter()
fit({predictor}, {folder!r}, progress=tell)
told["reading and windowing"] = first["training"] / (time.perf_counter() - began)
told["fit"] = time.perf_counter() - began
"""

PEER = """
import logging, warnings
warnings.simplefilter("ignore")
logging.disable(logging.INFO)
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import MLP
frames = [trace.to_frame() for trace in Source({folder!r})]
frame = pd.concat(frames, ignore_index=True)
frame = frame.assign(unique_id=frame["worker"], ds=frame["iteration"], y=np.log(frame["samples"] / frame["seconds"]))
# As many windows as our fit sees: epochs times windows over the windows of a step of theirs.
steps = max({windows} // (32 * 128), 1)
model = MLP(h=1, input_size=12, hidden_size=16, num_layers=1, max_steps=steps, batch_size=32, windows_batch_size=128,
            enable_progress_bar=False, logger=False, enable_checkpointing=False, enable_model_summary=False)
began = time.perf_counter()
NeuralForecast(models=[model], freq=1).fit(frame[["unique_id", "ds", "y"]])
told["fit"] = time.perf_counter() - began
"""

BACKTEST = """
from paceline.eval import backtest
(trace,) = Source({folder!r})
began = time.perf_counter()
backtest(Auto(), trace)
told["backtest"] = time.perf_counter() - began
"""

BOARD = """
import joblib
from paceline.eval import leaderboard
traces = list(Source({folder!r}))
began = time.perf_counter()
with joblib.parallel_config(n_jobs={jobs}):
    if {jobs} > 1:
        joblib.Parallel()(joblib.delayed(abs)(n) for n in range(4))  # start the processes
        began = time.perf_counter()
    leaderboard({{"ewma": EWMA(), "rls": RLS(drivers=())}}, traces)
told["board"] = time.perf_counter() - began
"""

FULL = """
from itertools import islice
from paceline.datasets import iter_traces
from paceline.datasets.usage_speed import speed_from_usage
from paceline.eval import backtest
def speeds():
    for trace in iter_traces({path!r}, "alibaba_machine_usage", period=300):
        yield speed_from_usage(trace, "cpu_util_percent")
source = Source(speeds())
told["read"] = time.perf_counter() - began
narx = fit(NARX(drivers=(), training=Training(epochs=1)), source)
told["fitted"] = time.perf_counter() - began - told["read"]
began_backtest = time.perf_counter()
for trace in source:
    backtest(narx, trace, warmup=min(50, len(trace) - 1))
told["backtest"] = time.perf_counter() - began_backtest
"""


def measured(body: str, **values: object) -> dict[str, float]:
    """Run code in a process of its own, and return what it measured."""
    code = MEASURE.format(body=body.format(**values))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def made(folder: Path, workers: int, steps: int, files: int) -> str:
    """Write a fleet as Parquet files, and return their folder."""
    folder.mkdir()
    measured(MAKE, folder=str(folder), workers=workers, steps=steps, files=files)
    return str(folder)


def fit_rows(place: Path, workers: int, steps: int) -> list[str]:
    """Return the rows of one fit, ours and neuralforecast's."""
    folder = made(place / "fit", workers, steps, files=max(workers // 500, 1))
    ours = measured(FIT, predictor="NARX(training=Training(epochs=3))", folder=folder)
    rows = [
        f"| NARX, 3 passes | {ours['fit']:.1f} s | {ours['windows']:,.0f} | {ours['reading and windowing']:.0%} | "
        f"{ours['peak'] / 1e6:,.0f} MB |"
    ]
    if find_spec("neuralforecast") is None:
        return [*rows, '| neuralforecast | not installed: `pip install "paceline[peers]"` | | | |']
    peer = measured(PEER, folder=folder, windows=int(ours["windows"]))
    return [*rows, f"| neuralforecast, MLP | {peer['fit']:.1f} s | the same | | {peer['peak'] / 1e6:,.0f} MB |"]


def growth_rows(place: Path, largest: int, steps: int) -> list[str]:
    """Return one row per size of fleet, in files of at most 1,000 workers."""
    rows, workers = [], 100
    while workers <= largest:
        folder = made(place / f"growth{workers}", workers, steps, files=-(-workers // 1000))
        ours = measured(FIT, predictor="NARX(training=Training(epochs=1))", folder=folder)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        rows.append(
            f"| {workers:,} | {size / 1e6:,.0f} MB | {ours['fit']:.1f} s | {ours['reading and windowing']:.0%} | "
            f"{ours['peak'] / 1e6:,.0f} MB |"
        )
        shutil.rmtree(folder)
        workers *= 10
    return rows


def other_rows(place: Path, workers: int, steps: int) -> list[str]:
    """Return the rows of backtesting and of spreading over two processes."""
    one = made(place / "one", workers, steps, files=1)
    many = made(place / "many", workers, steps, files=8)
    seconds = {jobs: measured(BOARD, folder=many, jobs=jobs)["board"] for jobs in (1, 2)}
    backtest = measured(BACKTEST, folder=one)["backtest"]
    return [
        f"| backtest of `auto`, {workers:,} workers x {steps:,} iterations | {backtest:.1f} s |",
        f"| leaderboard of 8 jobs, one process | {seconds[1]:.1f} s |",
        f"| the same through joblib, two processes | {seconds[2]:.1f} s, {seconds[1] / seconds[2]:.2f} times as fast |",
    ]


def full_rows(place: Path, megabytes: int) -> list[str]:
    """Return the row of reading a usage trace in Alibaba's format; about 8,000 MB is 4,000 machines over 8 days."""
    from reading import make

    path = place / "machine_usage.csv"
    rows = make(path, megabytes << 20)
    read = measured(FULL, path=str(path))
    return [
        f"| {megabytes:,} MB, {rows:,} rows | {read['read']:.0f} s | {read['fitted']:.0f} s | "
        f"{read['backtest']:.0f} s | "
        f"{read['peak'] / 1e6:,.0f} MB |"
    ]


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=1000)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    workers, steps, largest = (100, 300, 100) if asked.quick else (asked.workers, asked.steps, asked.largest)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        page = [
            "# Fitting to traces of any size",
            "",
            f"`{COMMAND}{f' {arguments}' if (arguments := ' '.join(sys.argv[1:])) else ''}` on {machine('torch')}.",
            "",
            f"A global NARX over {workers:,} workers x {steps:,} iterations, one thread. As many windows pass through",
            "neuralforecast's network of the same inputs and units.",
            "",
            "| | time | windows | of it reading and windowing | peak memory |",
            "| --- | --- | --- | --- | --- |",
            *fit_rows(place, workers, steps),
            "",
            "How one pass grows with the fleet, in files of at most 1,000 workers, 500 iterations:",
            "",
            "| workers | files | time | of it reading and windowing | peak memory |",
            "| --- | --- | --- | --- | --- |",
            *growth_rows(place, largest, 500 if not asked.quick else 100),
            "",
            "| | time |",
            "| --- | --- |",
            *other_rows(place, workers, steps),
            "",
            "A usage trace in Alibaba 2018's format, read as means of 5 minutes, with speeds derived from its usage:",
            "",
            "| size | read | one pass of NARX | backtest | peak memory |",
            "| --- | --- | --- | --- | --- |",
            *full_rows(place, 8000 if asked.full else 40 if asked.quick else 200),
            "",
        ]
    print("\n".join(page))
    if not asked.quick:
        (Path(__file__).parent / "training.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
