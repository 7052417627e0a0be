"""How long a step of the load balancer takes, with warm and with cold caches, and how much code it runs.

Run as ``python benchmarks/step.py``; it writes step.md beside this file. ``--quick`` prints small fleets only.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

# One thread: set before numpy starts its own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from machine import machine
from numpy.typing import NDArray

import paceline
from paceline.coordinator import LoadBalancer
from paceline.predictors import Auto, LastValue, Predictor, Report

ROOMS = Path(paceline.__file__).resolve().parents[2]
"""Where this library's code lies."""

PREDICTORS: dict[str, Callable[[], Predictor]] = {"LastValue": LastValue, "Auto": Auto}
SIDE = 1024
"""Rows and columns of the matrices whose product displaces the caches: 12 MiB in all."""

MATRIX = np.ones((SIDE, SIDE), np.float32)

SETTLED, STEPS = 60, 200
"""Steps before the first that is timed, and timed ones."""


def warm() -> None:
    """Leave the caches alone."""


def cold() -> None:
    """Do what a training step does between two plans."""
    np.matmul(MATRIX, MATRIX)


class Job:
    """A balanced fleet with noise of 3 %, of which another eighth is half as fast every 20 iterations."""

    def __init__(self, predictor: Predictor, workers: int) -> None:
        self._rng = np.random.default_rng(workers)
        self._usual_W = self._rng.lognormal(4.6, 0.4, workers)
        self._slow_W = np.ones(workers)
        self._within = 0.0
        for name in ("observe", "predict"):
            setattr(predictor, name, self._timed(getattr(predictor, name)))
        self.balancer = LoadBalancer(predictor, workers=range(workers), global_batch=64 * workers)
        self.steps = 0

    def report(self) -> Report:
        """Return the next report."""
        if self.steps % 20 == 10:
            self._slow_W = np.where(self._rng.random(len(self._usual_W)) < 1 / 8, 0.5, 1.0)
        self.steps += 1
        speed_W = self._usual_W * self._slow_W * self._rng.lognormal(0, 0.03, len(self._usual_W))
        sizes = self.balancer.plan.sizes
        return Report(sizes, sizes / speed_W)

    def step(self, between: Callable[[], None]) -> tuple[float, float, bool]:
        """Return the seconds of a step, those outside of the predictor, and whether it changed sizes."""
        report, self._within = self.report(), 0.0
        between()
        began = time.perf_counter()
        plan = self.balancer.step(report)
        took = time.perf_counter() - began
        return took, took - self._within, plan.acted

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = call(*given, **named)
            self._within += time.perf_counter() - began
            return result

        return timed


def times(fleets: tuple[int, ...]) -> Iterator[str]:
    """Yield the rows of the table of times: medians, all in turns."""
    yield "| workers | predictor | caches | a step | that changes sizes | without the predictor | that changes sizes |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for workers in fleets:
        jobs = {(name, how): Job(make(), workers) for name, make in PREDICTORS.items() for how in (warm, cold)}
        taken: dict[Any, list[tuple[float, float, bool]]] = {key: [] for key in jobs}
        for k in range(SETTLED + STEPS):
            for key, job in jobs.items():
                row = job.step(warm if k < SETTLED else key[1])
                if k >= SETTLED:
                    taken[key].append(row)
        for (name, how), rows in taken.items():
            whole, mine, acted = (np.array(column) for column in zip(*rows, strict=True))
            cells = (_median(whole), _median(whole[acted]), _median(mine), _median(mine[acted]))
            yield f"| {workers:,} | {name} | {how.__name__} | {' | '.join(cells)} |"


def _median(seconds: NDArray[np.float64]) -> str:
    return f"{1e6 * float(np.median(seconds)):,.0f}" if len(seconds) else "-"


def counts() -> Iterator[str]:
    """Yield the rows of the table of what runs in a step."""
    yield "| predictor | step | functions of ours | of the balancer | files of ours | of the balancer | C functions |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, make in PREDICTORS.items():
        found = {}
        job = Job(make(), 2)
        for _ in range(SETTLED + STEPS):
            ours, files, native, acted = counted(job)
            found["changes sizes" if acted else "keeps sizes"] = ours, files, native
        for kind, (ours, files, native) in sorted(found.items(), reverse=True):
            mine = [
                sum(n for file, n in each.items() if file.startswith(("coordinator", "solver")))
                for each in (ours, files)
            ]
            yield f"| {name} | {kind} | {ours.total()} | {mine[0]} | {files.total()} | {mine[1]} | {native} |"


def counted(job: Job) -> tuple[Counter[str], Counter[str], int, bool]:
    """Return the calls in each of our files in one step, these files, the calls of C functions, and if it acted."""
    report, calls, native = job.report(), Counter[str](), 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal native
        native += event == "c_call"
        file = Path(os.path.realpath(frame.f_code.co_filename))
        if event == "call" and file.is_relative_to(ROOMS) and not file.is_relative_to(ROOMS / "benchmarks"):
            calls[str(file.relative_to(ROOMS))] += 1

    sys.setprofile(profile)
    plan = job.balancer.step(report)
    sys.setprofile(None)
    return calls, Counter(dict.fromkeys(calls, 1)), native, plan.acted


def report(fleets: tuple[int, ...]) -> Iterator[str]:
    """Yield the page."""
    yield "# How long a step of the load balancer takes\n"
    yield "Command: `python benchmarks/step.py`\n"
    yield f"Machine: {machine()}; one thread; other work ran on it.\n"
    yield "All of `LoadBalancer.step`: learn, forecast, decide, split; its sentence is made when it is read. In"
    yield f"microseconds, medians of {STEPS} steps, all in turns. Cold: before each step a product of two matrices of"
    yield f"{SIDE} x {SIDE} float32 displaces the caches, as training does. Speeds have 3 % of noise, and every 20"
    yield "iterations another eighth of the fleet runs at half speed. Without the predictor: less its `observe` and"
    yield "`predict`.\n"
    yield from times(fleets)
    yield "\n## What runs in a step\n"
    yield "Two workers. Comprehensions count as functions, as Python 3.11 calls them; constructors that dataclasses"
    yield "make do not.\n"
    yield from counts()


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    text = []
    for row in report((2, 8) if quick else (2, 8, 32, 1000)):
        print(row, flush=True)
        text.append(row)
    if not quick:
        Path(__file__).with_suffix(".md").write_text("\n".join(text) + "\n")
