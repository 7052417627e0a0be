"""Record a job: start its workers and competitors, wait, merge their records, and leave no process behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from paceline._whole import TemporaryFolder
from paceline.datasets.trace import Trace
from paceline.lab.contention.contention import Contention
from paceline.lab.contention.patterns import Competitor
from paceline.lab.contention.usage import Usage
from paceline.lab.processes.places import places
from paceline.lab.processes.process import POLL_SECONDS, Process, require_alive, wait
from paceline.lab.record.jobs import Job
from paceline.lab.record.machine import machine
from paceline.lab.small_models import MODELS, require_models
from paceline.recording.merging import merge
from paceline.recording.place import Place

WORKER, COMPETITOR = "paceline.lab.record.made_worker", "paceline.lab.contention.competitor"

LONGEST_ITERATION = 1.0  # seconds; contention is planned for a job whose iterations all take this long


def record_job(
    job: Job, path: str | Path, *, usage: Usage | None = None, progress: Callable[[int], None] | None = None
) -> Trace:
    """Train the job for real, under real contention on this machine, and write its trace to a Parquet file.

    Parameters
    ----------
    job
        What to train, such as ``JOBS["digits-cnn-bursty"]``.
    path
        The trace file to write; it appears only once the job is done.
    usage
        How busy real hosts were, for a job of the pattern ``usage``.
    progress
        Called repeatedly with the number of iterations that worker 0 has recorded.

    Raises
    ------
    FileExistsError, FileNotFoundError
        If the file exists, or its folder does not.
    ValueError
        If the quotas of the workers sum to more than the cores of this machine, or a usage trace is missing or not
        needed.
    RuntimeError
        If a worker or a competitor dies; the message ends with its last output.
    """
    require_models("record")
    path = Path(path)
    contention = job.contention(usage)
    if path.exists():
        raise FileExistsError(f"{path} exists, and a recording is never overwritten: choose a new path")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} into")
    with TemporaryFolder() as name, places(job.workers, job.quota) as where:
        folder = Path(name)
        _run(
            job,
            contention.planned(job.iterations * LONGEST_ITERATION),
            folder,
            where,
            progress or (lambda iterations: None),
        )
        trace = merge(folder / f"rank{rank}.jsonl" for rank in range(job.workers))
        trace = replace(trace, meta=_meta(job, contention, where[0], folder))
    trace.save(path)
    return trace


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
            start(COMPETITOR, c, where[one.worker], spans=one.spans, kind=job.kind) for c, one in enumerate(planned)
        ]
        workers = [
            start(WORKER, rank, place, job=asdict(job), rank=rank, folder=str(folder))
            for rank, place in enumerate(where)
        ]
        # A worker's record exists once it has warmed up: contention begins only then, so the plan's time 0 is the first
        # recorded iteration's.
        wait(competitors + workers, until=lambda: all(record.exists() for record in records))
        for competitor in competitors:
            competitor.tell("begin")
        while not all(worker.ended() for worker in workers):
            require_alive(competitors + workers)
            progress(_recorded(records[0]))
            time.sleep(POLL_SECONDS)
        progress(_recorded(records[0]))


def _recorded(record: Path) -> int:
    return max(0, record.read_bytes().count(b"\n") - 1)


def _meta(job: Job, contention: Contention, place: Place, folder: Path) -> dict[str, str]:
    losses = json.loads((folder / "losses0.json").read_text())
    tenth = max(1, len(losses) // 10)
    return {
        "job": job.name,
        "source": "recorded by paceline record",
        "licence": "Apache-2.0",
        "split": job.split,
        **contention.meta(place),
        "model": job.model,
        "data": MODELS[job.model]().data,
        "batch_size": " ".join(map(str, job.batch_sizes)),
        "loss": f"{np.mean(losses[:tenth]):.4g} in the first tenth, {np.mean(losses[-tenth:]):.4g} in the last",
        **machine(),
    }
