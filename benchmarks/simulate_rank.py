"""One rank of benchmarks/simulate.py: is recorded in plain training, then trains plain and balanced at fresh speeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from imposed_rank import Job, Seen, Told, in_turns, joined

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
    told = trials.told
    with joined(told):
        for trial, (recorded_TW, realised_TW) in enumerate(zip(trials.recorded, trials.realised, strict=True)):
            record(told, recorded_TW, f"{trials.folder}/trial{trial}-rank{told.rank}.jsonl")
            in_turns(told, realised_TW, tell)


def record(told: Told, speed_TW: Array, path: str) -> None:
    """Train with equal batches, and record this rank as anybody would."""
    from paceline.recording import Recorder, watch

    job = Job("equal", replace(told, block=len(speed_TW)), speed_TW)
    with Recorder(path, worker=str(told.rank)) as recorder:
        watching = watch(job.model, job.optimizer, recorder)
        job.block()
        watching.close()
    time.sleep(0.1)  # the last lines are on the disk before the ranks go on
