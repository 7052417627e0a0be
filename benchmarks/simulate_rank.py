"""One rank of benchmarks/simulate.py: is recorded in plain training, then trains plain and balanced at fresh speeds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from imposed_rank import Job, Seen, Told

from paceline._arrays import Array

SCHEMES = ("equal", "auto")


@dataclass(frozen=True)
class Trials:
    """What a rank is told beside :class:`Told`: speeds to be recorded at, and then to train at, ``[T, W]`` a trial."""

    told: Told
    recorded: list[Array]
    realised: list[Array]
    folder: str


def run(trials: Trials, tell: Callable[[dict[str, Seen]], None]) -> None:
    """Go through all trials, and tell what each scheme took."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    told = trials.told
    place = {"rank": told.rank, "world_size": told.world_size, "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", init_method=f"file://{told.store}", **place)
    warnings.simplefilter("ignore")
    for trial, (recorded_TW, realised_TW) in enumerate(zip(trials.recorded, trials.realised, strict=True)):
        record(told, recorded_TW, f"{trials.folder}/trial{trial}-rank{told.rank}.jsonl")
        jobs = {scheme: Job(scheme, told, realised_TW) for scheme in SCHEMES}
        for _ in range(len(realised_TW) // told.block):
            for job in jobs.values():
                job.block()
        for job in jobs.values():
            job.close()
        if told.rank == 0:
            tell({scheme: job.seen for scheme, job in jobs.items()})
    dist.barrier()
    dist.destroy_process_group()


def record(told: Told, speed_TW: Array, path: str) -> None:
    """Train with equal batches, and record this rank as anybody would."""
    from paceline.recording import Recorder, watch

    job = Job("equal", replace(told, block=len(speed_TW)), speed_TW)
    with Recorder(path, worker=str(told.rank)) as recorder:
        watching = watch(job.model, job.optimizer, recorder)
        job.block()
        watching.close()
    time.sleep(0.1)  # the last lines are on the disk before the ranks go on
