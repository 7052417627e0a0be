"""Running a live experiment: two ranks, pinned to cores of their own, one of them disturbed."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.lab.disturbance import DISTURBANCES
from paceline.lab.outcome import ExperimentOutcome, RankResult
from paceline.lab.processes import Process, places, require_alive
from paceline.lab.setting import DISTURBED, Setting
from paceline.lab.tasks import require_models
from paceline.recording.launch import Place


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
        Called regularly with the completed share, 0 to 1.

    Raises
    ------
    RuntimeError
        If this machine has too few cores or allows no CPU quota, or if a process dies; the message then ends with the
        last lines of its output.
    """
    return ExperimentOutcome(setting, _run_ranks(setting, progress or (lambda share: None)))


def _run_ranks(setting: Setting, progress: Callable[[float], None]) -> list[RankResult]:
    """Start the ranks, disturb one of them, and return each rank's record."""
    require_models("a live experiment")
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError(f"a live experiment needs 2 cores, one for each rank; this process may use {len(cores)}")
    with TemporaryDirectory(prefix="paceline-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "finish").write_bytes(struct.pack("q", 0))
        place = _place(setting, stack)
        hogs = _start_hogs(setting, cores[DISTURBED], folder, stack)
        ranks = []
        for rank in range(2):
            task = {
                "rank": rank,
                "ranks": 2,
                "cores": [cores[rank]],
                "folder": name,
                "setting": asdict(setting),
                "disturbed": rank == DISTURBED,
                "place": asdict(place) if place and rank == DISTURBED else None,
                "hogs": [hog.pid for hog in hogs],
            }
            ranks.append(Process("paceline.lab.experiment_worker", rank, folder, task))
            stack.callback(ranks[-1].end)
        _wait_for(ranks, len(setting.turns) * setting.seconds, progress)
        return [RankResult.read(folder / f"result{rank}.json") for rank in range(2)]


def _place(setting: Setting, stack: ExitStack) -> Place | None:
    if DISTURBANCES[setting.contention].quota is None:
        return None
    (place,) = stack.enter_context(places(1, 1.0))
    if not place.folders:
        raise RuntimeError(
            f"the contention {setting.contention!r} needs writable control groups, which this machine does "
            "not have: use 'hogs' or 'bursty-hogs'"
        )
    return place


def _start_hogs(setting: Setting, core: int, folder: Path, stack: ExitStack) -> list[Process]:
    task = {"place": asdict(Place(cores=[core]))}
    hogs = []
    for number in range(DISTURBANCES[setting.contention].hogs):
        hogs.append(Process("paceline.lab.competitor", number, folder, task))
        stack.callback(hogs[-1].end)
    return hogs


def _wait_for(ranks: list[Process], seconds: float, progress: Callable[[float], None]) -> None:
    begin = time.monotonic()
    while not all(rank.ended() for rank in ranks):
        require_alive(ranks)
        progress(min((time.monotonic() - begin) / seconds, 1.0))
        time.sleep(0.1)
    progress(1.0)
