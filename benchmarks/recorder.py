"""What recording costs an iteration, and what each covariate costs.

Run as ``python benchmarks/recorder.py``; it writes recorder.md beside this file. ``--quick`` tries it in seconds and
writes nothing. As root on Linux the covariates are measured in a control group with a CPU quota, as recorded jobs are.
"""

from __future__ import annotations

import os
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

from paceline.lab.processes import join_control_group, quota_placement
from paceline.recording import Recorder, watch
from paceline.recording.covariates import Covariate, all_covariates

QUICK = "--quick" in sys.argv
ITERATIONS = 2_000 if QUICK else 20_000
BLOCKS = 4 if QUICK else 20
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
    """Yield what an iteration that does nothing costs: in a ``with`` block, and by hooks in a training loop."""
    with Recorder(folder / "with.jsonl", "0") as recorder:

        def block() -> None:
            with recorder.iteration(samples=64):
                pass

        yield "`with recorder.iteration(...)`", *microseconds(block, ITERATIONS)

    yield "`watch`: in a loop of PyTorch's, by difference", *watch_difference(folder)


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
    with quota_placement(QUOTA) as place:
        if place is None:
            yield "in no control group"
            return
        join_control_group(place)
        try:
            yield f"in a control group with a quota of {QUOTA:g} cores"
        finally:
            for folder in place:
                (Path(folder).parent / own.name).write_text(str(os.getpid()))


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
    with under_a_quota() as where:
        covariates = list(covariate_rows())
    return f"""# What recording costs

Command: `python benchmarks/recorder.py`

Machine: {machine("torch")}; one thread. Files are written to the disk of the working folder.

## An iteration, without its covariates

The aim is under 50 us. An iteration that does nothing, {ITERATIONS} times; what a loop of PyTorch's takes longer when
watched is the median and the largest of {BLOCKS} blocks of {ITERATIONS // 20} steps, each against one without.

{table("an iteration", rows)}

## Covariates

The aim is under 200 us together. Sampled {where}.

{table("covariate", covariates)}

"""


if __name__ == "__main__":
    text = page()
    print(text)
    if not QUICK:
        Path(__file__).with_suffix(".md").write_text(text, encoding="utf-8")
