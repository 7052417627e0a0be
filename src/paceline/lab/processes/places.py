"""Isolate workers on one machine: each in a control group with its competitors, under a CPU quota.

A competitor then takes CPU time only from its own worker, as on a cluster of separate machines. If control groups
cannot be written, each worker is pinned to a core together with its competitors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from paceline.recording.control_group import mounted
from paceline.recording.launch import Place

PERIOD_SECONDS = 0.005
"""Period of a quota: much shorter than an iteration, so that each iteration spans many periods."""


@contextmanager
def places(workers: int, quota: float, root: str | Path = "/") -> Iterator[list[Place]]:
    """Make a place for each worker; control groups are removed at the end.

    Parameters
    ----------
    workers
        Number of places.
    quota
        Cores that a worker and its competitors may use together.
    root
        The folder that contains ``proc`` and ``sys``.

    Raises
    ------
    ValueError
        If the quotas sum to more than the cores of this machine, because workers would then disturb each other.
    """
    _check(workers, quota)
    remove_stale(root)
    with ExitStack() as stack:
        try:
            found = [_group(f"paceline-{os.getpid()}-{w}", quota, root, stack) for w in range(workers)]
        except OSError:
            stack.close()
            found = _pinned(workers)
        yield found


def remove_stale(root: str | Path = "/") -> list[Path]:
    """Remove control groups left behind by killed recordings, and return their folders.

    A group is stale if the process named in it is gone. A group that still holds processes is left alone.
    """
    removed = []
    for mount in set(mounted(root).values()):
        for folder in mount.glob("paceline-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdigit() and not (Path(root) / "proc" / pid).exists():
                with suppress(OSError):
                    folder.rmdir()
                    removed.append(folder)
    return removed


def _check(workers: int, quota: float) -> None:
    cores = len(os.sched_getaffinity(0))
    if workers * quota > cores:
        raise ValueError(
            f"quota must leave room for all workers on {cores} cores, got {workers} workers with {quota:g} cores each; "
            f"choose at most {cores / workers:g}, or fewer workers"
        )


def _pinned(workers: int) -> list[Place]:
    cores = sorted(os.sched_getaffinity(0))
    return [Place(cores=(cores[w % len(cores)],)) for w in range(workers)]


def _group(name: str, quota: float, root: str | Path, made: ExitStack) -> Place:
    mounts = mounted(root)
    period = round(PERIOD_SECONDS * 1e6)
    settings: dict[str, object] = {"cpu.cfs_period_us": period, "cpu.cfs_quota_us": round(quota * period)}
    if "cpu" not in mounts:
        if "" not in mounts:
            raise FileNotFoundError("no control groups are mounted")
        (mounts[""] / "cgroup.subtree_control").write_text("+cpu")
        settings = {"cpu.max": f"{round(quota * period)} {period}"}
    # Version 2 mounted beside version 1 has no quotas, but it reports the pressure of each group.
    folders = list(dict.fromkeys(mounts[kind] / name for kind in ("cpu", "cpuacct", "") if kind in mounts))
    for folder in folders:
        folder.mkdir()
        made.callback(_remove, folder)
    for setting, value in settings.items():
        (folders[0] / setting).write_text(str(value))
    return Place(folders=[str(folder) for folder in folders])


def _remove(folder: Path) -> None:
    # The kernel keeps a group busy for a moment after its last process was reaped.
    for _ in range(100):
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError:
            time.sleep(0.02)
    return folder.rmdir()
