"""``paceline record`` of an unedited job of two ranks that share a card: both are recorded, with its covariates."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from place import Found, Place, run, started

from paceline.datasets import Trace

RANKS = 2


def part(place: Place, found: Found) -> None:
    """Record the job, and read the trace."""
    device, steps = ("cuda", 200) if place.real else ("cpu", 20)
    command = "record"
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    job += [str(Path(__file__).with_name("recorded_job.py")), device, str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        failed = started([sys.executable, "-m", "paceline", command, "--", *job], 60, folder=folder)
        found.require(not failed, f"paceline {command}: {failed}")
        traces = list(Path(folder).rglob("*.parquet"))
        found.require(len(traces) == 1, f"{len(traces)} traces were written")
        if not traces:
            return
        trace = Trace.load(traces[0])
    rows = [["worker", "iterations", "median, ms", "covariates with values"]]
    for w, worker in enumerate(trace.workers):
        known_T = np.isfinite(trace.seconds[:, w])
        values = [name for d, name in enumerate(trace.covariate_names) if np.isfinite(trace.covariates[:, w, d]).any()]
        rows.append(
            [worker, str(known_T.sum()), f"{1e3 * np.median(trace.seconds[known_T, w]):.2f}", ", ".join(values)]
        )
        found.require(known_T.sum() > steps / 2, f"worker {worker} has {known_T.sum()} of {steps} iterations")
        if place.real:
            found.require("gpu_busy" in values, f"worker {worker} has no gpu_busy")
    found.require(len(trace.workers) == RANKS, f"{len(trace.workers)} of {RANKS} workers were recorded")
    found.tables.append(rows)
    if not place.real:
        found.left_out.append("The recording of a job on a device, and its covariates.")


if __name__ == "__main__":
    run(part)
