"""Memory and speed of reading a large usage trace, against pandas.read_csv, in turns in one run.

Run as ``python benchmarks/reading.py``; it makes a 2 GB file in the layout of Alibaba's machine_usage.csv in a
temporary folder (removed afterwards) and writes reading.md beside this file. ``--megabytes 200`` for a quick try,
which prints and writes nothing. Every reading is a process of its own, whose peak memory the kernel tells.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from machine import machine
from pyarrow import csv

COMMAND = "python benchmarks/reading.py"
MACHINES, PERIOD = 4000, 10
BLOCK_ROWS = 200_000
TURNS = 2

READERS = {
    "paceline, all traces": """
from paceline.datasets import iter_traces
cells = sum(trace.covariates.size for trace in iter_traces({path!r}, "alibaba_machine_usage"))
""",
    "paceline, means of 5 minutes": """
from paceline.datasets import iter_traces
cells = sum(trace.covariates.size for trace in iter_traces({path!r}, "alibaba_machine_usage", period=300))
""",
    "pandas.read_csv": """
import pandas as pd
names = ["machine_id", "time_stamp", "cpu", "mem", "mem_gps", "mkpi", "net_in", "net_out", "disk"]
cells = pd.read_csv({path!r}, names=names, header=None).size
""",
    "pandas.read_csv in chunks of 1,000,000 rows, kept nowhere": """
import pandas as pd
names = ["machine_id", "time_stamp", "cpu", "mem", "mem_gps", "mkpi", "net_in", "net_out", "disk"]
cells = sum(chunk.size for chunk in pd.read_csv({path!r}, names=names, header=None, chunksize=1_000_000))
""",
}
MEASURE = """
import json, time
began = time.perf_counter()
{body}
seconds = time.perf_counter() - began
status = open("/proc/self/status").read()  # not getrusage: its peak includes that of the process that forked
print(json.dumps([seconds, int(status.split("VmHWM:")[1].split()[0]) * 1024]))
"""


def make(path: Path, size: int) -> int:
    """Write rows until the file has this many bytes, and return how many; machines take turns, as in a live log."""
    rng = np.random.default_rng(0)
    options = csv.WriteOptions(include_header=False, quoting_style="none")
    rows = 0
    with path.open("wb") as file:
        while file.tell() < size:
            number = np.arange(rows, rows + BLOCK_ROWS)
            cpu, memory, disk = rng.integers(0, 102, (3, BLOCK_ROWS))  # 101 is invalid
            net_in, net_out = rng.uniform(0, 100, (2, BLOCK_ROWS)).round(2)
            names = np.char.add("m_", (number % MACHINES + 1).astype(str))
            empty = pa.nulls(BLOCK_ROWS, pa.float64())
            columns = [names, number // MACHINES * PERIOD, cpu, memory, empty, empty, net_in, net_out, disk]
            block = pa.table([pa.array(column) for column in columns], names=list("abcdefghi"))
            csv.write_csv(block, file, options)
            rows += BLOCK_ROWS
    return rows


def measured(body: str, path: Path) -> tuple[float, float] | None:
    """Return seconds and peak bytes of a reading in a process of its own; ``None`` if it was killed."""
    code = MEASURE.format(body=body.format(path=str(path)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode < 0:
        return None
    if done.returncode:
        raise RuntimeError(done.stderr)
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def table(results: dict[str, list[tuple[float, float] | None]], rows: int) -> str:
    """Return the table: the best time of the turns, the largest peak."""
    lines = ["| reader | peak memory, MB | rows/s | seconds |", "| --- | --- | --- | --- |"]
    for name, turns in results.items():
        ended = [turn for turn in turns if turn is not None]
        if not ended:
            lines.append(f"| {name} | killed, out of memory | | |")
            continue
        seconds, peak = min(turn[0] for turn in ended), max(turn[1] for turn in ended)
        lines.append(f"| {name} | {peak / 1e6:.0f} | {rows / seconds:,.0f} | {seconds:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=2000)
    size = parser.parse_args().megabytes
    results: dict[str, list[tuple[float, float] | None]] = {name: [] for name in READERS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine_usage.csv"
        began = time.perf_counter()
        rows = make(path, size * 1_000_000)
        print(f"made {path.stat().st_size / 1e6:.0f} MB, {rows:,} rows in {time.perf_counter() - began:.0f} s")
        for _ in range(TURNS):
            for name, body in READERS.items():
                results[name].append(measured(body, path))
                print(name, results[name][-1], flush=True)
    text = table(results, rows)
    print(text)
    if size >= 2000:
        page = PAGE.format(
            size=size,
            rows=rows,
            table=text,
            machine=machine("pandas", "pyarrow"),
            command=COMMAND,
            turns=TURNS,
            machines=MACHINES,
        )
        Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


PAGE = """# Reading a large usage trace

    {command}

A synthetic file in the layout of Alibaba's `machine_usage.csv`: {size} MB, {rows:,} rows of {machines} machines that
take turns. Every reading is a separate process, {turns} times in turns; the best time and the largest peak are shown.

{table}

`pandas.read_csv` returns the rows as they are in the file. Paceline's reader checks every cell, puts each machine's
rows together on a regular grid (through temporary files) and yields traces, none of which needs the others in memory;
so it does more work per row, and `pandas.read_csv` may be faster if the file fits into memory.

{machine}.
"""


if __name__ == "__main__":
    main()
