"""Fitting to traces of any size: time, memory, and how they grow with the number of workers.

Run as ``python benchmarks/training.py``; it makes traces in a temporary folder (removed afterwards), measures each step
in a process of its own, and writes training.md beside this file. Beside the seconds of the clock it reports those of
the processor, which other work on the machine changes less. Parts of the page can be measured one by one: their
results are kept in a folder (``--results FOLDER PART ...``), and the page is made of all that are there. ``--quick``
takes small sizes, prints, and writes nothing. The whole takes some hours of two cores and 20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from machine import machine

COMMAND = "python benchmarks/training.py"

MEASURE = """
import json, time
import numpy as np
from paceline.predictors import *
from paceline.training import fit, Source

class Clock:
    def __init__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
    def __call__(self):
        return [time.perf_counter() - self.wall, time.process_time() - self.cpu]

def peak():
    status = open("/proc/self/status").read()  # not getrusage: its peak includes that of the process that forked
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

told = {{}}
{body}
print(json.dumps(told))
"""

MAKE = """
from dataclasses import replace
from pathlib import Path
from paceline.datasets.synthetic import synthetic_fleet
for part in range({files}):
    fleet = synthetic_fleet("mixed", {workers} // {files}, {steps}, part)
    names = [f"m_{{part}}_{{w}}" for w in range(len(fleet.workers))]
    fleet = replace(fleet, workers=names, meta={{**fleet.meta, "job": f"part {{part}}"}}, drivers=None, driver_names=())
    for folder, share in (("whole", 1.0), ("first", 0.9)):
        Path({folder!r}, folder).mkdir(exist_ok=True, parents=True)
        # By pandas, not Trace.save, which packs as small as it can: that took longer than all that is measured.
        frame = fleet.select(slice(int(share * {steps}))).to_frame()
        frame.to_parquet(f"{folder}/{{folder}}/{{part:05}}.parquet", index=False)
"""

WARM = """
import tempfile
from paceline.predictors import checks
with tempfile.TemporaryDirectory() as small:  # imports what reading and torch need
    checks.example_trace().save(small + "/small.parquet")
    fit(NARX(training=Training(epochs=1)), small)
"""

FIT = (
    WARM
    + """
first = {{}}
def tell(moment):
    first.setdefault(moment.stage, clock())
    told["windows"] = moment.total
clock = Clock()
narx = fit({predictor}, {folder!r} + "/first", progress=tell)
told["fit"] = clock()
told["reading"] = [part / whole for part, whole in zip(first["training"], told["fit"])]
told["peak"] = peak()
"""
)

HELD_OUT = """
errors = []
for trace in Source({folder!r} + "/whole"):
    narx.reset(trace.workers)
    log_TW = np.log(trace.speed)
    for k in range(len(trace)):
        if k >= int(0.9 * {steps}) and k % 10 == 0:
            errors.append(np.log(narx.predict().speed) - log_TW[k])
        narx.observe(Report(samples=trace.samples[k], seconds=trace.seconds[k]))
told["rmse"] = float(np.sqrt(np.nanmean(np.square(errors))))
"""

PEER = """
import logging, warnings
warnings.simplefilter("ignore")
logging.disable(logging.INFO)
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.models import MLP

def tidy(folder):
    frame = pd.concat([trace.to_frame() for trace in Source(folder)], ignore_index=True)
    log_speed = np.log(frame["samples"] / frame["seconds"])
    return pd.DataFrame(dict(unique_id=frame["worker"].astype(str), ds=frame["iteration"], y=log_speed))

frame = tidy({folder!r} + "/first")
# A step takes 1,024 windows of 32 series, its defaults: so many steps that as many windows pass as through ours.
# Every window is standardised: without that its error is larger.
model = MLP(h=1, input_size=12, hidden_size=16, num_layers=1, max_steps=max({windows} // 1024, 1),
            scaler_type="standard", enable_progress_bar=False, logger=False, enable_checkpointing=False,
            enable_model_summary=False)
clock = Clock()
forecast = NeuralForecast(models=[model], freq=1)
forecast.fit(frame)
told["fit"] = clock()
told["peak"] = peak()
# Its forecast from every tenth origin of the last tenth, each as a series of the 12 values before it.
whole = tidy({folder!r} + "/whole").pivot(index="ds", columns="unique_id", values="y").to_numpy()
errors = []
for k in range(int(0.9 * {steps}), {steps}, 10):
    workers, y = np.arange(whole.shape[1]), whole[k - 12 : k].T.ravel()
    before = pd.DataFrame(dict(unique_id=workers.repeat(12), ds=np.tile(np.arange(12), len(workers)), y=y))
    made = forecast.predict(df=before).sort_values("unique_id")["MLP"].to_numpy()
    errors.append(made - whole[k])
told["rmse"] = float(np.sqrt(np.nanmean(np.square(errors))))
"""

DISTINCT = 2 * 10**9
"""Bytes of files that are written; further ones are links to these, so that 20 GB need no 20 GB of disk."""

LARGE = """
import os
import pyarrow as pa, pyarrow.parquet as pq
rng, size, part = np.random.default_rng(0), 0, 0
workers, steps = 200, 2000
names = pa.array([f"w{{w:03}}" for w in range(workers)]).dictionary_encode()
worker = pa.DictionaryArray.from_arrays(np.tile(np.arange(workers, dtype=np.int32), steps), names.dictionary)
samples = np.full(workers * steps, 64.0)
distinct = None
while size < {megabytes} * 10**6:
    path = f"{folder}/{{part:05}}.parquet"
    part += 1
    if size >= {distinct}:
        distinct = distinct or part - 1
        os.link(f"{folder}/{{(part - 1) % distinct:05}}.parquet", path)
        size += os.path.getsize(path)
        continue
    load = rng.uniform(0.0, 1.0, (steps, workers))
    columns = dict(iteration=np.repeat(np.arange(steps), workers), worker=worker, samples=samples)
    columns["seconds"] = (0.5 * (1.0 + load) * np.exp(rng.normal(0.0, 0.05, load.shape))).ravel()
    for d in range(12):  # drivers that the predictor does not read fill the files, as in recorded usage
        columns[f"driver{{d}}"] = rng.uniform(0.0, 1.0, workers * steps)
    pq.write_table(pa.table(columns), path, compression="none", use_dictionary=["worker", "samples", "iteration"])
    size += os.path.getsize(path)
told["bytes"], told["files"], told["rows"] = size, part, part * workers * steps
"""

READ = """
import pandas as pd
from paceline.datasets import Trace
from paceline.datasets.readers import read_traces
clock = Clock()
{call}
told["read"] = clock()
told["peak"] = peak()
"""

BACKTEST = """
from paceline.eval import backtest
(trace,) = Source({folder!r} + "/whole")
clock = Clock()
backtest(Auto(), trace)
told["backtest"] = clock()
told["peak"] = peak()
"""

BOARD = """
import joblib
from dataclasses import replace
from paceline.eval import leaderboard
traces = list(Source({folder!r} + "/whole"))
traces = [replace(trace, meta=dict(trace.meta, job=f"part {{n}}")) for n, trace in enumerate(traces)]
with joblib.parallel_config(n_jobs={jobs}):
    joblib.Parallel()(joblib.delayed(leaderboard)(dict(ewma=EWMA()), traces[:1]) for n in range({jobs}))  # imports
    clock = Clock()
    leaderboard(dict(ewma=EWMA(), narx=NARX(), rls=RLS(drivers=())), traces)
told["board"] = clock()
"""

FULL = """
from paceline.datasets import iter_traces
from paceline.datasets.health import health
from paceline.datasets.usage_speed import speed_from_usage
from paceline.eval import backtest, worth

told["machines"] = told["checked"] = 0
def fleets():
    for usage in iter_traces({path!r}, "alibaba_machine_usage", period=300):
        told["machines"] += len(usage.workers)
        yield speed_from_usage(usage, "cpu_util_percent")

clock = Clock()
source = Source(fleets())
told["read"] = clock()
clock = Clock()
for fleet in source:
    told["checked"] += len(str(health(fleet))) + len(str(worth(fleet))) > 0
told["check"] = clock()
first, clock = {{}}, Clock()
def tell(moment):
    first.setdefault(moment.stage, clock())
narx = fit(NARX(drivers=(), training=Training(epochs=1)), source, progress=tell)
told["fit"], told["windowed"] = clock(), first["training"]
clock, rmse, last = Clock(), [], []
for fleet in source:
    warmup = min(50, len(fleet) // 4)  # a small file holds few iterations
    rmse.append(backtest(narx, fleet, warmup=warmup).rmse)
    last.append(backtest(LastValue(), fleet, warmup=warmup).rmse)
told["backtest"] = clock()
told["error"] = float(np.exp(np.nanmean(np.log(np.concatenate(rmse) / np.concatenate(last)))))
told["peak"] = peak()
"""


def measured(body: str, **values: object) -> dict[str, Any]:
    """Run code in a process of its own, and return what it measured."""
    code = MEASURE.format(body=body.format(**values))
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Sizes:
    """How large everything is: by default as in the targets."""

    workers: int = 1000
    steps: int = 2000
    largest: int = 100_000
    megabytes: tuple[int, ...] = (100, 2_000, 20_000)
    full: int = 8_000
    passes: int = 3
    turns: int = 3


QUICK = Sizes(workers=100, steps=300, largest=1000, megabytes=(20, 60), full=40, turns=1)


@contextmanager
def made(workers: int, steps: int, files: int) -> Iterator[str]:
    """Yield a folder with a fleet as Parquet files: ``whole``, and the ``first`` nine tenths of each."""
    with tempfile.TemporaryDirectory() as folder:
        measured(MAKE, folder=folder, workers=workers, steps=steps, files=files)
        yield folder


def taken(turns: list[dict[str, Any]], key: str) -> str:
    """Return the median seconds of some turns, by the clock and of the processor."""
    wall, cpu = (median(turn[key][k] for turn in turns) for k in (0, 1))
    return " | ".join(f"{seconds:.{2 if seconds < 10 else 1}f} s" for seconds in (wall, cpu))


def ratio(mine: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str, k: int = 1) -> float:
    """Return the ratio of two medians, by default of the processor's seconds."""
    return median(one[key][k] for one in mine) / median(one[key][k] for one in theirs)


# -- the parts of the page: each measures, and says in a table and a sentence what came of it ------------------------


def measure_fit(sizes: Sizes) -> dict[str, Any]:
    """Fit the same windows with NARX and with neuralforecast's MLP, in turns."""
    found: dict[str, Any] = {"narx": [], "peer": []}
    with made(sizes.workers, sizes.steps, files=max(sizes.workers // 500, 1)) as folder:
        for _ in range(sizes.turns):
            narx = f"NARX(drivers=(), training=Training(epochs={sizes.passes}))"
            found["narx"].append(measured(FIT + HELD_OUT, predictor=narx, folder=folder, steps=sizes.steps))
            if find_spec("neuralforecast") is None:
                continue
            windows = found["narx"][-1]["windows"]
            found["peer"].append(measured(PEER, folder=folder, windows=windows, steps=sizes.steps))
    return found


def page_fit(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    mine = found["narx"]
    names = {"narx": f"NARX, {sizes.passes} passes", "peer": "neuralforecast's MLP"}
    rows = [
        f"| {names[name]} | {taken(turns, 'fit')} | {turns[0]['rmse']:.4f} | {turns[0]['peak'] / 1e6:,.0f} MB |"
        for name, turns in found.items()
        if turns
    ]
    share = median(turn["reading"][1] for turn in mine)
    missed = [f"reading and windowing take {share:.0%} of the fit's time, not under 20 %"] if share >= 0.2 else []
    if peer := found["peer"]:
        if (times := ratio(mine, peer, "fit")) > 1 / 3:
            missed.append(f"the fit takes {times:.2f} of the time of {names['peer']}, not a third")
        if mine[0]["rmse"] >= peer[0]["rmse"]:
            missed.append(f"its error is {mine[0]['rmse']:.4f}, that of {names['peer']} {peer[0]['rmse']:.4f}")
    lines = [
        "## A global network",
        "",
        f"One network over {sizes.workers:,} workers x {sizes.steps:,} iterations, fitted to the first nine tenths: 12",
        f"past speeds, 16 units, {mine[0]['windows']:,} windows through each, one thread. The error is the RMSE of the",
        "logarithm of the speed one iteration ahead, at every tenth origin of the last tenth. Medians of "
        f"{len(mine)} turns.",
        "",
        "| | time | processor | held-out error | peak memory |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"Of our time, reading and windowing take {share:.0%}.",
    ]
    return lines, missed


def measure_memory(sizes: Sizes) -> dict[str, Any]:
    """Fit to files of growing size in all; only one set of files is on the disk at a time."""
    found: dict[str, Any] = {}
    for megabytes in sizes.megabytes:
        with tempfile.TemporaryDirectory() as folder:
            first = Path(folder, "first")
            first.mkdir()
            about = measured(LARGE, folder=str(first), megabytes=megabytes, distinct=DISTINCT)
            narx = "NARX(lags=4, drivers=(), training=Training(epochs=1, batch_size=4096))"
            found[str(megabytes)] = about | measured(FIT, predictor=narx, folder=folder)
    return found


def page_memory(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    peaks = [one["peak"] for one in found.values()]
    missed = [] if max(peaks) < 2e9 else [f"peak memory is {max(peaks) / 1e9:.1f} GB, not under 2 GB"]
    if peaks[-1] > 1.1 * peaks[0]:
        missed.append(f"the largest trace takes {peaks[-1] / peaks[0]:.2f} times the memory of the smallest")
    rows = [
        f"| {one['bytes'] / 1e9:,.1f} GB in {one['files']} files, {one['rows']:,} rows | {taken([one], 'fit')} | "
        f"{one['reading'][1]:.0%} | {one['peak'] / 1e6:,.0f} MB |"
        for one in found.values()
    ]
    lines = [
        "## Memory",
        "",
        "One pass of a NARX with 4 lags over Parquet files of 200 workers x 2,000 iterations with twelve drivers.",
        f"Beyond {DISTINCT / 1e9:.0f} GB, the files are links to the first: read and windowed again like any others.",
        "",
        "| trace | time | processor | of it reading and windowing | peak memory |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    if max(one["bytes"] for one in found.values()) < 20e9:
        missed.append(
            f"the largest trace measured has {max(one['bytes'] for one in found.values()) / 1e9:.1f} GB, not 20"
        )
    return lines, missed


READERS = {
    "parquet": ("Trace.load({path!r})", "pd.read_parquet({path!r}).pivot(index='iteration', columns='worker')"),
    "csv": ("read_traces({path!r}, 'csv')", "pd.read_csv({path!r}).pivot(index='iteration', columns='worker')"),
}
"""Per kind of file, how we read it and how pandas does: to columns, and on to a panel with a column for each worker."""


def measure_reading(sizes: Sizes) -> dict[str, Any]:
    """Read plain columns as a trace, and with pandas, in turns."""
    found: dict[str, Any] = {}
    with made(sizes.workers, sizes.steps, files=1) as folder:
        whole = f"{folder}/whole/00000.parquet"
        measured(f"import pandas as pd; pd.read_parquet({whole!r}).to_csv({folder + '/whole.csv'!r}, index=False)")
        for kind, path in (("parquet", whole), ("csv", f"{folder}/whole.csv")):
            mine, panel = READERS[kind]
            calls = {"ours": mine, "columns": panel.partition(".pivot")[0], "panel": panel}
            turns: dict[str, list[Any]] = {name: [] for name in calls}
            for _ in range(sizes.turns):
                for name, call in calls.items():
                    turns[name].append(measured(READ.replace("{call}", call), path=path))
            found[kind] = turns
    return found


def page_reading(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    missed, rows = [], []
    for kind, turns in found.items():
        for name, who in (
            ("ours", "paceline, a checked trace"),
            ("columns", "pandas"),
            ("panel", "pandas, as a panel"),
        ):
            rows.append(f"| {kind} | {who} | {taken(turns[name], 'read')} | {turns[name][0]['peak'] / 1e6:,.0f} MB |")
        if (times := ratio(turns["ours"], turns["columns"], "read")) > 1.05:  # turns of one reader differ by as much
            missed.append(f"reading {kind} takes {times:.1f} times as long as with pandas alone")
    lines = [
        "## Reading plain columns",
        "",
        f"{sizes.workers * sizes.steps:,} rows of iteration, worker, samples and seconds in one file; medians of "
        f"{len(found['csv']['ours'])} turns.",
        "A trace is a panel, a row for each iteration and a column for each worker.",
        "",
        "| file | reader | time | processor | peak memory |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    return lines, missed


def measure_backtest(sizes: Sizes) -> dict[str, Any]:
    """Backtest the default mixture."""
    with made(sizes.workers, sizes.steps, files=1) as folder:
        return {"turns": [measured(BACKTEST, folder=folder) for _ in range(sizes.turns)]}


def page_backtest(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    turns = found["turns"]
    seconds = median(one["backtest"][1] for one in turns)
    missed = [] if seconds < 10 else [f"the backtest of `auto` takes {seconds:.1f} s of the processor, not under 10 s"]
    lines = [
        "## Backtests",
        "",
        f"`auto` over {sizes.workers:,} workers x {sizes.steps:,} iterations, the median of {len(turns)} turns: "
        f"{taken(turns, 'backtest').replace(' |', ', processor')}.",
    ]
    return lines, missed


def measure_processes(sizes: Sizes) -> dict[str, Any]:
    """Compare predictors in one process and in two, in turns."""
    found: dict[str, Any] = {"1": [], "2": []}
    with made(sizes.workers, sizes.steps, files=8) as folder:
        for _ in range(sizes.turns):
            for jobs in (1, 2):
                found[str(jobs)].append(measured(BOARD, folder=folder, jobs=jobs))
    return found


def page_processes(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    times = 1 / ratio(found["2"], found["1"], "board", 0)
    missed = [] if times >= 1.7 else [f"two processes are {times:.2f} times as fast as one, not 1.7 times"]
    lines = [
        "## Two processes",
        "",
        f"The leaderboard of EWMA, RLS and an unfitted NARX over {sizes.workers:,} x {sizes.steps:,} iterations",
        f"in 8 jobs. Medians of {len(found['1'])} turns.",
        "",
        "| | time | processor, this process |",
        "| --- | --- | --- |",
        f"| one process | {taken(found['1'], 'board')} |",
        f"| through joblib, two processes | {taken(found['2'], 'board')} |",
        "",
        f"Two processes are {times:.2f} times as fast as one.",
    ]
    return lines, missed


def measure_growth(sizes: Sizes) -> dict[str, Any]:
    """Fit one pass to fleets of growing size, in files of at most 1,000 workers."""
    found: dict[str, Any] = {}
    workers = 100
    while workers <= sizes.largest:
        with made(workers, 100, files=-(-workers // 1000)) as folder:
            found[str(workers)] = measured(
                FIT, predictor="NARX(drivers=(), training=Training(epochs=1))", folder=folder
            )
        workers *= 10
    return found


def page_growth(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    rows = [
        f"| {int(workers):,} | {one['windows']:,} | {taken([one], 'fit')} | {one['reading'][1]:.0%} | "
        f"{1e6 * one['fit'][1] / one['windows']:.1f} us | {one['peak'] / 1e6:,.0f} MB |"
        for workers, one in found.items()
    ]
    lines = [
        "## Growth with the fleet",
        "",
        "One pass of NARX over 90 iterations, in files of at most 1,000 workers.",
        "",
        "| workers | windows | time | processor | of it reading and windowing | each window | peak memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
    ]
    most = max(map(int, found))
    return lines, [f"growth was measured up to {most:,} workers, not 100,000"] if most < 100_000 else []


def measure_full(sizes: Sizes) -> dict[str, Any]:
    """Read, check, window, fit and backtest a usage trace in Alibaba 2018's format."""
    from reading import make

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine_usage.csv"
        rows = make(path, sizes.full << 20)
        return {"rows": rows, "bytes": path.stat().st_size} | measured(FULL, path=str(path))


def page_full(sizes: Sizes, found: dict[str, Any]) -> tuple[list[str], list[str]]:
    steps = {
        "read as means of 5 minutes, speeds derived from usage": "read",
        "checked (`health` and `worth`, as `paceline data check` does)": "check",
        "fitted, one pass of NARX": "fit",
        "of it until the first batch: surveyed and windowed": "windowed",
        "backtested, NARX and the last value": "backtest",
    }
    lines = [
        "## A usage trace of 4,000 machines",
        "",
        f"A file in the format of Alibaba 2018's `machine_usage.csv`: {found['bytes'] / 1e9:.1f} GB, {found['rows']:,}",
        f"rows of {found['machines']:,} machines, {found['rows'] // found['machines'] * 10 / 86400:.1f} days; its",
        "numbers are random.",
        "",
        "| | time | processor |",
        "| --- | --- | --- |",
        *(f"| {what} | {taken([found], key)} |" for what, key in steps.items()),
        "",
        f"Peak memory: {found['peak'] / 1e6:,.0f} MB. The error is {found['error']:.2f} of the last value's.",
    ]
    of = found["bytes"] / (Sizes.full << 20)
    return lines, [f"the usage trace was measured at {of:.0%} of its full size"] if of < 0.99 else []


Part = tuple[Callable[[Sizes], dict[str, Any]], Callable[[Sizes, dict[str, Any]], tuple[list[str], list[str]]]]
PARTS: dict[str, Part] = {
    "fit": (measure_fit, page_fit),
    "memory": (measure_memory, page_memory),
    "reading": (measure_reading, page_reading),
    "backtest": (measure_backtest, page_backtest),
    "processes": (measure_processes, page_processes),
    "growth": (measure_growth, page_growth),
    "full": (measure_full, page_full),
}


def page_of(results: Path, sizes: Sizes) -> str:
    """Return the page made of all parts that were measured; missed targets come first."""
    body: list[str] = []
    missed: list[str] = []
    for name, (_, page) in PARTS.items():
        if (kept := results / f"{name}.json").exists():
            lines, lacking = page(sizes, json.loads(kept.read_text()))
            body += ["", *lines, "", f"`{(results / name).with_suffix('.command').read_text()}`"]
            missed += lacking
        else:
            missed.append(f"the part `{name}` was not measured")
    first = ["Targets that are missed:", "", *(f"- {one}" for one in missed)] if missed else ["Every target is met."]
    about = [
        f"{machine('torch')}. The command of a part stands below it.",
        "Other work ran on the machine; *processor* is what a step itself took.",
    ]
    return "\n".join(["# Fitting to traces of any size", "", *about, "", *first, *body, ""])


def main() -> None:
    """Measure the parts and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--results", type=Path, help="Folder of the parts' results.")
    parser.add_argument("--turns", type=int, default=Sizes.turns)
    parser.add_argument("--passes", type=int, default=Sizes.passes)
    parser.add_argument("--largest", type=int, default=Sizes.largest, help="Workers of the largest fleet.")
    parser.add_argument("--megabytes", type=int, nargs="+", default=Sizes.megabytes)
    parser.add_argument("--full", type=int, default=Sizes.full, help="Megabytes of the usage trace.")
    parser.add_argument("--page", action="store_true", help="Measure nothing; write the page of what is there.")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    sizes = (
        QUICK
        if asked.quick
        else Sizes(
            turns=asked.turns,
            passes=asked.passes,
            largest=asked.largest,
            megabytes=tuple(asked.megabytes),
            full=asked.full,
        )
    )
    with tempfile.TemporaryDirectory() as temporary:
        results = asked.results or Path(temporary)
        results.mkdir(exist_ok=True, parents=True)
        for name in () if asked.page else asked.parts or PARTS:
            found = PARTS[name][0](sizes)
            (results / f"{name}.json").write_text(json.dumps(found))
            chosen = [one for one in sys.argv[1:] if one not in (*PARTS, "--results", str(asked.results))]
            (results / f"{name}.command").write_text(" ".join([COMMAND, name, *chosen]))
            print(name, json.dumps(found), flush=True)
        page = page_of(results, sizes)
    print(page)
    if not asked.quick:
        (Path(__file__).parent / "training.md").write_text(page)


if __name__ == "__main__":
    main()
