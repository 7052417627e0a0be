"""Running a live experiment: two ranks, pinned to cores of their own, one of them disturbed."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from paceline._whole import TemporaryFolder
from paceline.lab.contention.disturbance import DISTURBANCES
from paceline.lab.experiment.asynchronous import RANKS, AsyncOutcome, AsyncSetting, AsyncTurn
from paceline.lab.experiment.outcome import ExperimentOutcome
from paceline.lab.experiment.result import RankResult
from paceline.lab.experiment.setting import DISTURBED, Setting
from paceline.lab.processes.places import places
from paceline.lab.processes.process import POLL_SECONDS, Process, require_alive
from paceline.lab.small_models import require_models
from paceline.recording.place import Place

Seen = TypeVar("Seen")

WORKER = "paceline.lab.experiment.experiment_worker"
ASYNC_WORKER = "paceline.lab.experiment.asynchronous_worker"
COMPETITOR = "paceline.lab.contention.competitor"


def can_set_quotas() -> bool:
    """Return whether this machine lets us limit the CPU of a process."""
    with places(1, 1.0) as (place,):
        return bool(place.folders)


def experiment(setting: Setting, *, progress: Callable[[float], None] | None = None) -> ExperimentOutcome:
    """Train for real on this machine, with equal batches and with every scheme, in turns.

    Parameters
    ----------
    setting
        What is compared, and under what contention.
    progress
        Called now and then with the share that is done, 0 to 1.

    Raises
    ------
    RuntimeError
        If this machine has too few cores or lets nobody set a CPU quota, or a process dies; the sentence says which
        and ends with what it said last.
    """
    return ExperimentOutcome(setting, _ran(setting, WORKER, RankResult.read, progress))


def asynchronous_experiment(setting: AsyncSetting, *, progress: Callable[[float], None] | None = None) -> AsyncOutcome:
    """Train for real on this machine with every asynchronous scheme in turn, each from the same start.

    Parameters
    ----------
    setting
        What is compared, and under what contention.
    progress
        Called now and then with the share that is done, 0 to 1.

    Raises
    ------
    RuntimeError
        As :func:`experiment` does.
    """
    seen, *_ = _ran(setting, ASYNC_WORKER, AsyncTurn.read, progress)  # the first rank holds the server, and saw it all
    return AsyncOutcome(setting, seen)


def _ran(
    setting: Setting, worker: str, read: Callable[[Path], Seen], progress: Callable[[float], None] | None
) -> list[Seen]:
    """Start the ranks, disturb one of them, and return each rank's record."""
    require_models("a live experiment")
    cores = sorted(os.sched_getaffinity(0))[:RANKS]
    if len(cores) < RANKS:
        raise RuntimeError(
            f"a live experiment needs {RANKS} cores, one for each rank; this process may use {len(cores)}"
        )
    with TemporaryFolder() as name, ExitStack() as running:
        folder = Path(name)
        (folder / "finish").write_bytes(struct.pack("q", 0))
        place = _place(setting, running)
        hogs = _hogs(setting, cores[DISTURBED], folder, running)
        ranks = []
        for rank in range(RANKS):
            told = {
                "rank": rank,
                "ranks": RANKS,
                "cores": [cores[rank]],
                "folder": name,
                "setting": asdict(setting),
                "disturbed": rank == DISTURBED,
                "place": asdict(place) if place and rank == DISTURBED else None,
                "hogs": [hog.pid for hog in hogs],
            }
            ranks.append(Process(worker, rank, folder, told))
            running.callback(ranks[-1].end)
        _wait(ranks, len(setting.turns) * setting.seconds, progress or (lambda share: None))
        return [read(folder / f"result{rank}.json") for rank in range(RANKS)]


def _place(setting: Setting, running: ExitStack) -> Place | None:
    if DISTURBANCES[setting.contention].quota is None:
        return None
    (place,) = running.enter_context(places(1, 1.0))
    if not place.folders:
        raise RuntimeError(
            f"the contention {setting.contention!r} needs control groups that can be written, which this machine does "
            "not let us: use 'hogs' or 'bursty-hogs'"
        )
    return place


def _hogs(setting: Setting, core: int, folder: Path, running: ExitStack) -> list[Process]:
    told = {"place": asdict(Place(cores=[core])), "kind": "cpu", "spans": [[0.0, 1e9]]}
    hogs = [Process(COMPETITOR, number, folder, told) for number in range(DISTURBANCES[setting.contention].hogs)]
    for hog in hogs:
        running.callback(hog.end)
        hog.tell("begin")
    return hogs


def _wait(ranks: list[Process], seconds: float, progress: Callable[[float], None]) -> None:
    begin = time.monotonic()
    while not all(rank.ended() for rank in ranks):
        require_alive(ranks)
        progress(min((time.monotonic() - begin) / seconds, 1.0))
        time.sleep(POLL_SECONDS)
    progress(1.0)
