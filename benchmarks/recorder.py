"""What recording costs an iteration, what each covariate costs, and what is lost when the process is killed.

Run as ``python benchmarks/recorder.py``; it writes recorder.md beside this file. ``--quick`` tries it in seconds and
writes nothing. As root on Linux the covariates are measured in a control group with a CPU quota, as recorded jobs are.
"""

from __future__ import annotations

import csv
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from machine import machine
from torch.utils.tensorboard import SummaryWriter

from paceline.lab.processes import quota_place
from paceline.recording import Recorder, merge, watch
from paceline.recording.covariates import Covariate, all_covariates

QUICK = "--quick" in sys.argv
ITERATIONS = 2_000 if QUICK else 20_000
BLOCKS = 4 if QUICK else 20
KILLS = 3 if QUICK else 30
QUOTA = 0.9

Row = tuple[str, float, float]
"""What was measured, and the median and the 99th percentile of its microseconds."""


def microseconds(act: Callable[[], object], times: int) -> tuple[float, float]:
    """Return the median and the 99th percentile of how long an act takes, after some acts that do not count."""
    taken = np.empty(times)
    for _ in range(times // 10):
        act()
    for k in range(times):
        begin = time.perf_counter_ns()
        act()
        taken[k] = time.perf_counter_ns() - begin
    return float(np.median(taken)) / 1e3, float(np.quantile(taken, 0.99)) / 1e3


# -- an iteration ------------------------------------------------------------------------------------------------


def iteration_rows(folder: Path) -> Iterator[Row]:
    """Yield what an iteration that does nothing costs: in a ``with`` block, by hooks, and written by others."""
    with Recorder(folder / "with.jsonl", "0") as recorder:

        def block() -> None:
            with recorder.iteration(samples=64):
                pass

        yield "`with recorder.iteration(...)`", *microseconds(block, ITERATIONS)

    with Recorder(folder / "parts.jsonl", "0") as recorder:

        def parts() -> None:
            with recorder.iteration(samples=64) as step:
                with step.waiting():
                    pass
                with step.communicating():
                    pass

        yield "the same with `waiting` and `communicating`", *microseconds(parts, ITERATIONS)

    with Recorder(folder / "watch.jsonl", "0") as recorder:
        model, arguments = torch.nn.Linear(1, 1), (torch.zeros(64, 1),)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        watching = watch(model, optimizer, recorder)

        def marks() -> None:
            watching.before_forward(model, arguments, {})
            watching.after_forward(model, arguments, None)
            watching.before_step(optimizer)
            watching.after_step(optimizer)

        yield "`watch`: its hooks, with four phases", *microseconds(marks, ITERATIONS)
    yield "`watch`: in a loop of PyTorch's, by difference", *watch_difference(folder)
    yield from peer_rows(folder)


def watch_difference(folder: Path) -> tuple[float, float]:
    """Return what a step of a tiny model takes longer when watched, in blocks that take turns: median, highest."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(8, 4)

    def step() -> None:
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()

    differences = []
    for block in range(BLOCKS):
        plain, _ = microseconds(step, ITERATIONS // 20)
        with Recorder(folder / f"block{block}.jsonl", "0") as recorder, watch(model, optimizer, recorder):
            watched, _ = microseconds(step, ITERATIONS // 20)
        differences.append(watched - plain)
    return float(np.median(differences)), max(differences)


def peer_rows(folder: Path) -> Iterator[Row]:
    """Yield what others take to write the same five numbers."""
    numbers = [64.0, 0.0123, 0.0, 0.0, 1.7e9]
    with (folder / "peer.csv").open("w") as file:
        writer = csv.writer(file)

        def row() -> None:
            writer.writerow(numbers)
            file.flush()

        yield "`csv.writer`, flushed every row", *microseconds(row, ITERATIONS)
    board, at = SummaryWriter(str(folder / "board")), iter(range(10**9))

    def scalars() -> None:
        k = next(at)
        for name, value in enumerate(numbers):
            board.add_scalar(str(name), value, k)

    yield "TensorBoard's `add_scalar`, five of them", *microseconds(scalars, ITERATIONS // 10)
    board.close()


# -- covariates -----------------------------------------------------------------------------------------------------


def covariate_rows() -> Iterator[Row]:
    """Yield what each covariate costs, and all of those that a recorded command has together."""
    covariates = all_covariates()
    for covariate in covariates:
        yield f"`{covariate.name}`", *microseconds(covariate.sample, ITERATIONS // 4)
    yield f"all {len(covariates)} of `all_covariates()`", *microseconds(lambda: sample(covariates), ITERATIONS // 4)


def sample(covariates: list[Covariate]) -> list[float]:
    """Sample as the recorder does."""
    return [covariate.sample() for covariate in covariates]


@contextmanager
def under_a_quota() -> Iterator[str]:
    """Move this process into a control group with a quota while the block runs; say whether it could be."""
    own = Path("/sys/fs/cgroup/cpu/cgroup.procs")
    with quota_place(QUOTA) as place:
        if place is None:
            yield "in no control group"
            return
        place.enter()
        try:
            yield f"in a control group with a quota of {QUOTA:g} cores"
        finally:
            for folder in place.folders:
                (Path(folder).parent / own.name).write_text(str(os.getpid()))


# -- killed ------------------------------------------------------------------------------------------------------

ENDLESS = """
import mmap, sys
from paceline.recording import Recorder
with open(sys.argv[2], "r+b") as file, Recorder(sys.argv[1], "0") as recorder:
    over = mmap.mmap(file.fileno(), 8)
    while True:
        with recorder.iteration(samples=8):
            sum(range(2000))
        over[:] = recorder.next_iteration.to_bytes(8, "little")
"""


def lost_iterations(folder: Path, kills: int) -> list[int]:
    """Kill a recording process again and again; return how many iterations that were over each file lacks."""
    lost = []
    for kill in range(kills):
        path, counter = folder / f"killed{kill}.jsonl", folder / f"counter{kill}"
        counter.write_bytes(bytes(8))
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path), str(counter)])
        while int.from_bytes(counter.read_bytes(), "little") < 100:
            time.sleep(0.01)
        time.sleep(random.Random(kill).uniform(0.0, 0.3))
        process.kill()
        process.wait()
        with counter.open("rb") as file, mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ) as over:
            lost.append(max(0, int.from_bytes(over[:], "little") - len(merge([path]))))
    return lost


# -- the page ----------------------------------------------------------------------------------------------------


def table(title: str, rows: list[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = [f"| {title} | median, us | 99 of 100 below, us |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {median:.1f} | {high:.1f} |" for name, median, high in rows)])


def page() -> str:
    """Measure everything and return the page."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        rows = list(iteration_rows(folder))
        lost = lost_iterations(folder, KILLS)
    with under_a_quota() as where:
        covariates = list(covariate_rows())
    peers = [name for name, median, _ in rows[4:] if median < rows[0][1]]
    return f"""# What recording costs

Command: `python benchmarks/recorder.py`

Machine: {machine("torch", "tensorboard")}; one thread. Files are written to the disk of the working folder.

## An iteration, without its covariates

The aim is under 50 us. An iteration that does nothing, {ITERATIONS} times; what a loop of PyTorch's takes longer when
watched is the median and the largest of {BLOCKS} blocks of {ITERATIONS // 20} steps, each against one without.

{table("an iteration", rows)}

{won(peers)}

## Covariates

The aim is under 200 us together. Sampled {where}.

{table("covariate", covariates)}

## Killed

A process that records iterations as fast as possible was killed with `kill -9` {KILLS} times, at a random moment. Of
the iterations that were over, the files lack {sum(lost)} in all, at most {max(lost)} in one of them: every iteration is
handed to the operating system, as one line, when it ends. (A power failure can lose more, because nothing waits for the
disk.)
"""


def won(peers: list[str]) -> str:
    """Say which peers are quicker."""
    if not peers:
        return "None of the others is quicker than the `with` block."
    names = " and ".join(peers)
    return f"{names} is faster than the `with` block, because it gets the numbers and measures nothing."


if __name__ == "__main__":
    text = page()
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
