"""Recording a job: start its workers and competitors, wait, merge what they recorded, and leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from paceline.datasets.collect.contention import Competitor, plan
from paceline.datasets.collect.jobs import USAGE, Job
from paceline.datasets.collect.limits import PERIOD_SECONDS, Place, places
from paceline.datasets.collect.machine import machine
from paceline.datasets.collect.models import MODELS
from paceline.datasets.collect.usage import Usage
from paceline.datasets.records import merge
from paceline.datasets.trace import Trace

LONGEST_ITERATION = 1.0  # seconds: contention is planned for so long a job
POLL_SECONDS = 0.1
LOG_LINES = 15


def collect(
    job: Job, path: str | Path, *, usage: Usage | None = None, progress: Callable[[int], None] | None = None
) -> Trace:
    """Train the job for real, under real contention on this machine, and write what it did to a Parquet file.

    Parameters
    ----------
    job
        What to train, such as ``JOBS["digits-cnn-bursty"]``.
    path
        The trace file to write; it appears only when the job is done.
    usage
        How busy real hosts were, for a job of the pattern ``usage``.
    progress
        Called now and then with the number of iterations that worker 0 has recorded.

    Raises
    ------
    FileExistsError, FileNotFoundError
        If the file exists, or its folder does not.
    ValueError
        If the quotas of the workers sum to more than the cores of this machine, or the job needs a usage trace and
        got none, or got one that it does not need.
    RuntimeError
        If a worker or a competitor dies; the sentence ends with what it said last.
    """
    path = Path(path)
    if (job.pattern == USAGE) != (usage is not None):
        raise ValueError(f"usage must be given for the pattern {USAGE!r} and for no other, got {usage} for {job.name}")
    if path.exists():
        raise FileExistsError(f"{path} exists, and a recording is never overwritten: give a new path")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    with tempfile.TemporaryDirectory(prefix="paceline-") as name, places(job.workers, job.quota) as where:
        folder = Path(name)
        _run(job, _planned(job, usage), folder, where, progress or (lambda iterations: None))
        trace = merge(folder / f"rank{rank}.jsonl" for rank in range(job.workers))
        trace = replace(trace, meta=_meta(job, usage, where[0], folder))
    trace.save(path)
    return trace


def _planned(job: Job, usage: Usage | None) -> list[Competitor]:
    seconds = job.iterations * LONGEST_ITERATION
    if usage is not None:
        return usage.plan(job.workers, job.competitors, seconds, job.seed)
    return plan(job.pattern, job.workers, job.competitors, seconds, job.seed)


def _run(
    job: Job, planned: Sequence[Competitor], folder: Path, where: Sequence[Place], progress: Callable[[int], None]
) -> None:
    records = [folder / f"rank{rank}.jsonl" for rank in range(job.workers)]
    with ExitStack() as running:

        def start(role: str, number: int, place: Place, **told: object) -> Process:
            process = Process(role, number, folder, {"place": asdict(place), **told})
            running.callback(process.end)
            return process

        competitors = [
            start("competitor", c, where[one.worker], spans=one.spans, kind=job.kind) for c, one in enumerate(planned)
        ]
        workers = [
            start("worker", rank, place, job=asdict(job), rank=rank, folder=str(folder))
            for rank, place in enumerate(where)
        ]
        _wait(competitors + workers, until=lambda: all(record.exists() for record in records))
        for competitor in competitors:
            competitor.tell("begin")
        while not all(worker.ended() for worker in workers):
            _alive(competitors + workers)
            progress(_recorded(records[0]))
            time.sleep(POLL_SECONDS)
        progress(_recorded(records[0]))


def _wait(processes: Sequence[Process], until: Callable[[], bool]) -> None:
    while not until():
        _alive(processes)
        time.sleep(POLL_SECONDS)


def _alive(processes: Sequence[Process]) -> None:
    # Of several that died, the first to be told of is the one with something to say: the others lost contact to it.
    failed = [process for process in processes if process.failed()]
    if failed:
        raise RuntimeError("\n".join(process.last_words() for process in failed))


def _recorded(record: Path) -> int:
    return max(0, record.read_bytes().count(b"\n") - 1)


class Process:
    """A worker or a competitor: a process of this package that is told its task on its standard input.

    It ends when that input is closed, so it never outlives the process that started it.
    """

    def __init__(self, role: str, number: int, folder: Path, told: Mapping[str, object]) -> None:
        self.title = f"{role} {number}"
        self.log = folder / f"{role}{number}.log"
        with self.log.open("wb") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", f"paceline.datasets.collect.{role}"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the one who collects, who then ends the others
            )
        self.tell(json.dumps(told))

    def tell(self, line: str) -> None:
        """Send a line to the process; one that is gone already is noticed by :meth:`failed`."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.write(f"{line}\n".encode())
            self._popen.stdin.flush()

    def ended(self) -> bool:
        """Whether the process has done its task."""
        return self._popen.poll() == 0

    def failed(self) -> bool:
        """Whether the process ended without having done its task."""
        return self._popen.poll() not in (None, 0)

    def last_words(self) -> str:
        """Say how the process ended, and the last lines of what it wrote."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n  ".join([f"{self.title} ended with status {self._popen.poll()}:", *lines[-LOG_LINES:]])

    def end(self) -> None:
        """End the process at once, if it runs, and wait until it is gone."""
        self._popen.kill()
        self._popen.wait()
        with suppress(BrokenPipeError):
            self._popen.__exit__(None, None, None)


def _meta(job: Job, usage: Usage | None, place: Place, folder: Path) -> dict[str, str]:
    losses = json.loads((folder / "losses0.json").read_text())
    tenth = max(1, len(losses) // 10)
    return {
        "job": job.name,
        "source": "recorded by paceline collect",
        "licence": "Apache-2.0",
        "split": job.split,
        "pattern": job.pattern,
        "competitors": f"{job.competitors} ({job.kind})" if job.pattern != "none" else "0",
        **({} if usage is None else {"usage": str(usage)}),
        "isolation": place.isolation(job.quota),
        "quota": f"{job.quota:g} cores",
        "period": f"{PERIOD_SECONDS * 1000:g} ms",
        "seed": str(job.seed),
        "model": job.model,
        "data": MODELS[job.model]().data,
        "batch_size": " ".join(map(str, job.batch_sizes)),
        "loss": f"{np.mean(losses[:tenth]):.4g} in the first tenth, {np.mean(losses[-tenth:]):.4g} in the last",
        **machine(),
    }
